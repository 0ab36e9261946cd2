package settings

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// Setting describes one setting.
type Setting struct {
	// Name is the name of the setting and of its flag, without dashes.
	Name string
	// Short is the one-letter flag, if perftest has one with the same meaning; otherwise empty.
	Short string
	// Env is the environment variable.
	Env string
	// About is the usage text, with the value's name in backquotes.
	About string
	// Range describes the legal values.
	Range string
	// Default describes the value used if the setting is not set.
	Default string
	// Field is the field of Settings that the setting fills, for example "Link" or "Path.SL".
	Field string
	// Join separates the values of a repeated flag; if empty, the last one is used.
	Join string
	// Switch is set for flags without a required value: a bare flag means "1".
	Switch bool
	// Tuning is set for path settings and settings of package reliable, whose values depend on the
	// network.
	Tuning bool
	// Values are the legal values if they are few words, otherwise nil.
	Values []string

	// set parses a value and reports whether it is legal. why may explain an illegal value; if it is empty, Range does.
	set func(s *Settings, value string) (why string, ok bool)
}

// All returns all settings: first NICs and their use, then the path settings, then the settings of package reliable, whose names begin with
// "uc-". Table indexes depend on the port; opening the NICs checks them. The caller owns the slice.
func All() []Setting { return slices.Clone(table) }

// nics are the settings for NICs and their use.
var nics = []Setting{
	{
		Name: "provider", About: "`NICs` to use: softnic (software), rdmacore (hardware, through libibverbs) or auto", Default: "auto",
		Field: "Provider", Values: words(peer.ProviderSoftNIC, peer.ProviderRDMACore, peer.ProviderAuto),
		set: word(func(s *Settings) *peer.Provider { return &s.Provider }, peer.ProviderSoftNIC, peer.ProviderRDMACore, peer.ProviderAuto),
	},
	{
		Name: "devices", About: "`list` of rdmacore devices by name prefix: mlx5_0:1,mlx5_2; =mlx5_1 is an exact name, ^rxe excludes", Range: "names of devices", Default: "all",
		Field: "Devices", set: text(func(s *Settings) *string { return &s.Devices }),
	},
	{
		Name: "addr", About: "local `IPs` of software NICs, comma-separated, one per rail", Range: "IP addresses of this host, such as 10.0.0.1", Default: "the address that reaches the peer",
		Field: "Addrs", Join: ",", set: list(func(s *Settings) *[]netip.Addr { return &s.Addrs }, netip.ParseAddr),
	},
	{
		Name: "rails", About: "`NICs` to use", Range: fmt.Sprintf("1 to %d", ibverbx.MaxRails), Default: "all; perf: 2",
		Field: "RailCount", set: number(1, ibverbx.MaxRails, func(s *Settings, n int) { s.RailCount = n }),
	},
	{
		Name: "lanes", Short: "q", About: "`number` of lanes per peer", Range: "1 to 4094", Default: "one per rail, at least 2; perf: 4 per rail",
		Field: "Lanes", set: number(1, 4094, func(s *Settings, n int) { s.Lanes = n }),
	},
	{
		Name: "link", About: "`link` within this host: shm, udp or auto", Default: "auto",
		Field: "Link", Values: words(peer.LinkAuto, peer.LinkShm, peer.LinkUDP), set: word(func(s *Settings) *peer.Link { return &s.Link }, peer.LinkAuto, peer.LinkShm, peer.LinkUDP),
	},
	{
		Name: "transport", About: "`layer` of reliability: the NIC (rc), or software over UC or UD QPs (uc, ud)", Default: "rc",
		Field: "Transport", Values: words(peer.TransportRC, peer.TransportUC, peer.TransportUD),
		set: word(func(s *Settings) *peer.Transport { return &s.Transport }, peer.TransportRC, peer.TransportUC, peer.TransportUD),
	},
	{
		Name: "peer-network", About: "`networks` of the peer's NICs if this host is not on them, comma-separated", Range: "networks such as 10.1.0.0/16", Default: "none",
		Field: "PeerNetworks", Join: ",", set: list(func(s *Settings) *[]netip.Prefix { return &s.PeerNetworks }, netip.ParsePrefix),
	},
	{
		Name: "unsealed", About: "disable packet encryption between software NICs on both sides: anyone on the path can read and change all data and end the session",
		Default: "0", Field: "Unsealed", Switch: true, set: truth(func(s *Settings) *bool { return &s.Unsealed }),
	},
	{
		Name: "require-sealed", About: "refuse peers unless packets are encrypted; real NICs cannot do it", Default: "0",
		Field: "RequireSealed", Switch: true, set: truth(func(s *Settings) *bool { return &s.RequireSealed }),
	},
	{
		Name: "impair", About: "`faults` of software NICs, on one rail or all: rail=1,loss=1%,delay=1ms, also duplicate, reorder, corrupt, jitter, rate=100MiB; once per rail, " +
			"separated by semicolons or in several flags", Range: "faults such as rail=1,loss=1%", Default: "none",
		Field: "Impair", Join: ";", set: impair,
	},
	{
		Name: "pcap", About: "write the packets of software NICs, before encryption, to `file` for Wireshark; %p becomes the process ID", Range: "the name of a file", Default: "none",
		Field: "Captures.Plain", set: text(func(s *Settings) *string { return &s.Captures.Plain }),
	},
	{
		Name: "pcap-wire", About: "write them as they are on the wire, encrypted and with their real ports, to `file`", Range: "the name of a file", Default: "none",
		Field: "Captures.Wire", set: text(func(s *Settings) *string { return &s.Captures.Wire }),
	},
	{
		Name: "snaplen", About: "`bytes` of each packet that captures keep, IP header included", Range: "1 to 65535", Default: "all",
		Field: "Captures.SnapLen", set: number(1, math.MaxUint16, func(s *Settings, n int) { s.Captures.SnapLen = n }),
	},
}

// paths holds the path settings and the settings of package reliable.
var paths = []Setting{
	{
		Name: "tclass", About: "traffic `class` of packets: four times the DSCP", Range: "0 to 255", Default: "0",
		Field: "Path.TrafficClass", set: number(0, 255, func(s *Settings, n int) { s.Path.TrafficClass = uint8(n) }),
	},
	{
		Name: "sl", Short: "S", About: "service `level`", Range: "0 to 15", Default: "0",
		Field: "Path.SL", set: number(0, 15, func(s *Settings, n int) { s.Path.SL = uint8(n) }),
	},
	{
		Name: "pkey-index", About: "`row` of the port's P_Key table", Range: "0 to 65535", Default: "0",
		Field: "Path.PKeyIndex", set: number(0, math.MaxUint16, func(s *Settings, n int) { s.Path.PKeyIndex = uint16(n) }),
	},
	{
		Name: "gid-index", Short: "x", About: "`row` of the port's GID table; comma-separated for one per rail", Range: "0 to 255, or a comma-separated list", Default: "chosen by the provider",
		Field: "GIDIndex", set: list(func(s *Settings) *[]int { return &s.GIDIndex }, func(v string) (int, error) { return parse(v, 0, 255) }),
	},
	{
		Name: "hop-limit", About: "maximum number of `routers` on the path (TTL)", Range: "1 to 255", Default: "64",
		Field: "Path.HopLimit", set: number(1, 255, func(s *Settings, n int) { s.Path.HopLimit = uint8(n) }),
	},
	{
		Name: "ack-timeout", Short: "u", About: "ACK timeout `code`: 4.096 us * 2^code; 0 waits forever", Range: "0 to 31", Default: "14 (67 ms)",
		Field: "Path.AckTimeout", set: number(0, 31, func(s *Settings, n int) { s.Path.AckTimeout = explicit(n) }),
	},
	{
		Name: "retry", About: "`times` to retransmit a request after ACK timeouts", Range: "0 to 7", Default: "6",
		Field: "Path.RetryCount", set: number(0, 7, func(s *Settings, n int) { s.Path.RetryCount = explicit(n) }),
	},
	{
		Name: "rnr-retry", About: "`times` to retransmit a request after RNR NAKs (no receive posted); 7 is unlimited", Range: "0 to 7", Default: "7",
		Field: "Path.RNRRetry", set: number(0, 7, func(s *Settings, n int) { s.Path.RNRRetry = explicit(n) }),
	},
	{
		Name: "rnr-timer", About: "`code` of the delay that the peer waits after an RNR NAK: 1 is 0.01 ms, 12 is 0.64 ms, 31 is 491 ms, 0 is 655 ms", Range: "0 to 31", Default: "12",
		Field: "Path.MinRNRTimer", set: number(0, 31, func(s *Settings, n int) { s.Path.MinRNRTimer = explicit(n) }),
	},
	{
		Name: "uc-paths", About: "UC `QPs` per RC QP, the same on both sides", Range: "1 to 256", Default: "16",
		Field: "Reliable.Paths", set: number(1, 256, func(s *Settings, n int) { s.Reliable.Paths = n }),
	},
	{
		Name: "uc-window", About: "fixed limit of the `bytes` in flight per QP; without it they adapt to the network", Range: "65536 to 1073741824", Default: "adaptive",
		Field: "Reliable.WindowBytes", set: number(1<<16, 1<<30, func(s *Settings, n int) { s.Reliable.WindowBytes = n }),
	},
	{
		Name: "uc-give-up", About: "no-progress `time` after which a QP fails", Range: "a time of 50ms to 1h", Default: "5s",
		Field: "Reliable.GiveUp", set: duration(50*time.Millisecond, 50*time.Millisecond, time.Hour, func(s *Settings, d time.Duration) { s.Reliable.GiveUp = int64(d) }),
	},
}

// table holds all settings.
var table = complete(slices.Concat(nics, paths))

// complete fills in the fields that follow from others.
func complete(rows []Setting) []Setting {
	for i := range rows {
		r := &rows[i]
		r.Tuning = i >= len(nics)
		r.Env = "IBVERBX_" + strings.ReplaceAll(strings.ToUpper(r.Name), "-", "_")
		if r.Switch {
			r.Values = []string{"0", "1"}
		}
		if n := len(r.Values); r.Range == "" {
			r.Range = strings.Join(r.Values[:n-1], ", ") + " or " + r.Values[n-1]
		}
	}
	return rows
}

// explicit returns n for a field of PathConfig whose zero value means a default.
func explicit(n int) int8 {
	if n == 0 {
		return verbs.ExplicitZero
	}
	return int8(n)
}

// words returns names as text.
func words[T ~string](names ...T) (list []string) {
	for _, n := range names {
		list = append(list, string(n))
	}
	return list
}

// word parses one of a few names, in any case.
func word[T ~string](to func(*Settings) *T, names ...T) func(*Settings, string) (string, bool) {
	return func(s *Settings, value string) (string, bool) {
		i := slices.IndexFunc(names, func(n T) bool { return strings.EqualFold(value, string(n)) })
		if i >= 0 {
			*to(s) = names[i]
		}
		return "", i >= 0
	}
}

// text takes any text.
func text(to func(*Settings) *string) func(*Settings, string) (string, bool) {
	return func(s *Settings, value string) (string, bool) {
		if value != "" {
			*to(s) = value
		}
		return "", value != ""
	}
}

// truth parses 0, 1, true or false.
func truth(to func(*Settings) *bool) func(*Settings, string) (string, bool) {
	return func(s *Settings, value string) (string, bool) {
		on, err := strconv.ParseBool(value)
		if err == nil {
			*to(s) = on
		}
		return "", err == nil
	}
}

// list parses values with commas between them.
func list[T any](to func(*Settings) *[]T, parse func(string) (T, error)) func(*Settings, string) (string, bool) {
	return func(s *Settings, value string) (string, bool) {
		var all []T
		for part := range strings.SplitSeq(value, ",") {
			one, err := parse(strings.TrimSpace(part))
			if err != nil {
				return "", false
			}
			all = append(all, one)
		}
		*to(s) = all
		return "", true
	}
}

// impair parses faults with semicolons between them.
func impair(s *Settings, value string) (string, bool) {
	var all []peer.Impair
	for part := range strings.SplitSeq(value, ";") {
		one, err := ParseImpair(part)
		if err != nil {
			return err.Error(), false
		}
		all = append(all, one)
	}
	f := peer.Fabric{Impair: all}
	var wrong *peer.FabricError
	if errors.As(f.CheckFabric(), &wrong) {
		return wrong.Problem, false
	}
	s.Impair = all
	return "", true
}

// number parses an integer, decimal or hexadecimal with 0x.
func number(low, top int, set func(*Settings, int)) func(*Settings, string) (string, bool) {
	return func(s *Settings, value string) (string, bool) {
		n, err := parse(value, low, top)
		if err == nil {
			set(s, n)
		}
		return "", err == nil
	}
}

func parse(value string, low, top int) (int, error) {
	digits, hex := strings.CutPrefix(value, "0x")
	base := 10
	if hex {
		base = 16
	}
	n, err := strconv.ParseUint(digits, base, 31)
	if err == nil && (int(n) < low || int(n) > top) {
		err = strconv.ErrRange
	}
	return int(n), err
}

// duration parses a time from low to top, or exactly other.
func duration(other, low, top time.Duration, set func(*Settings, time.Duration)) func(*Settings, string) (string, bool) {
	return func(s *Settings, value string) (string, bool) {
		d, err := time.ParseDuration(value)
		if err != nil || d != other && (d < low || d > top) {
			return "", false
		}
		set(s, d)
		return "", true
	}
}

// Reserved reports whether a variable is used by this module's tests and thus never by a setting: IBVERBX_CI and all that
// begin with IBVERBX_TEST_.
func Reserved(variable string) bool {
	return variable == prefix+"CI" || strings.HasPrefix(variable, prefix+"TEST_")
}
