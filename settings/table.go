package settings

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

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

	// set parses a value and reports whether it is legal.
	set func(s *Settings, value string) bool
}

// All returns all settings: first the path settings, then the settings of package reliable, whose names begin with "uc-". Table indexes
// depend on the port; Apply checks them. The caller owns the slice.
func All() []Setting { return slices.Clone(table) }

var table = []Setting{
	{
		"tclass", "", "IBVERBX_TCLASS", "traffic `class` of packets: four times the DSCP", "0 to 255", "0",
		number(0, 255, func(s *Settings, n int) { s.Path.TrafficClass = uint8(n) }),
	},
	{
		"sl", "S", "IBVERBX_SL", "service `level`", "0 to 15", "0",
		number(0, 15, func(s *Settings, n int) { s.Path.SL = uint8(n) }),
	},
	{
		"pkey-index", "", "IBVERBX_PKEY_INDEX", "`row` of the port's P_Key table", "0 to 65535", "0",
		number(0, math.MaxUint16, func(s *Settings, n int) { s.Path.PKeyIndex = uint16(n) }),
	},
	{
		"gid-index", "x", "IBVERBX_GID_INDEX", "`row` of the port's GID table; comma-separated for one per rail", "0 to 255, or a comma-separated list", "chosen by the provider",
		gidIndex,
	},
	{
		"hop-limit", "", "IBVERBX_HOP_LIMIT", "maximum number of `routers` on the path (TTL)", "1 to 255", "64",
		number(1, 255, func(s *Settings, n int) { s.Path.HopLimit = uint8(n) }),
	},
	{
		"ack-timeout", "u", "IBVERBX_ACK_TIMEOUT", "ACK timeout `code`: 4.096 us * 2^code; 0 waits forever", "0 to 31", "14 (67 ms)",
		number(0, 31, func(s *Settings, n int) { s.Path.AckTimeout = explicit(n) }),
	},
	{
		"retry", "", "IBVERBX_RETRY", "`times` to retransmit a request after ACK timeouts", "0 to 7", "6",
		number(0, 7, func(s *Settings, n int) { s.Path.RetryCount = explicit(n) }),
	},
	{
		"rnr-retry", "", "IBVERBX_RNR_RETRY", "`times` to retransmit a request after RNR NAKs (no receive posted); 7 is unlimited", "0 to 7", "7",
		number(0, 7, func(s *Settings, n int) { s.Path.RNRRetry = explicit(n) }),
	},
	{
		"rnr-timer", "", "IBVERBX_RNR_TIMER", "`code` of the delay that the peer waits after an RNR NAK: 1 is 0.01 ms, 12 is 0.64 ms, 31 is 491 ms, 0 is 655 ms", "0 to 31", "12",
		number(0, 31, func(s *Settings, n int) { s.Path.MinRNRTimer = explicit(n) }),
	},
	{
		"uc-paths", "", "IBVERBX_UC_PATHS", "UC `QPs` per RC QP, the same on both sides", "1 to 256", "16",
		number(1, 256, func(s *Settings, n int) { s.Reliable.Paths = n }),
	},
	{
		"uc-window", "", "IBVERBX_UC_WINDOW", "fixed limit of the `bytes` in flight per QP; without it they adapt to the network", "65536 to 1073741824", "adaptive",
		number(1<<16, 1<<30, func(s *Settings, n int) { s.Reliable.WindowBytes = n }),
	},
	{
		"uc-give-up", "", "IBVERBX_UC_GIVE_UP", "no-progress `time` after which a QP fails", "a time of 50ms to 1h", "5s",
		duration(50*time.Millisecond, 50*time.Millisecond, time.Hour, func(s *Settings, d time.Duration) { s.Reliable.GiveUp = int64(d) }),
	},
}

// explicit returns n for a field of PathConfig whose zero value means a default.
func explicit(n int) int8 {
	if n == 0 {
		return verbs.ExplicitZero
	}
	return int8(n)
}

// number parses an integer, decimal or hexadecimal with 0x.
func number(low, top int, set func(*Settings, int)) func(*Settings, string) bool {
	return func(s *Settings, value string) bool {
		n, ok := parse(value, low, top)
		if ok {
			set(s, n)
		}
		return ok
	}
}

func parse(value string, low, top int) (int, bool) {
	digits, hex := strings.CutPrefix(value, "0x")
	base := 10
	if hex {
		base = 16
	}
	n, err := strconv.ParseUint(digits, base, 31)
	return int(n), err == nil && int(n) >= low && int(n) <= top
}

// duration parses a time from low to top, or exactly other.
func duration(other, low, top time.Duration, set func(*Settings, time.Duration)) func(*Settings, string) bool {
	return func(s *Settings, value string) bool {
		d, err := time.ParseDuration(value)
		if err != nil || d != other && (d < low || d > top) {
			return false
		}
		set(s, d)
		return true
	}
}

// gidIndex parses comma-separated indexes.
func gidIndex(s *Settings, value string) bool {
	var rows []int
	for part := range strings.SplitSeq(value, ",") {
		n, ok := parse(strings.TrimSpace(part), 0, 255)
		if !ok {
			return false
		}
		rows = append(rows, n)
	}
	s.GIDIndex = rows
	return true
}

// Reserved reports whether a variable is used by this module's tests and thus never by a setting.
func Reserved(variable string) bool {
	name, ours := strings.CutPrefix(variable, "IBVERBX_")
	return ours && (strings.HasPrefix(name, "TEST_") || slices.Contains([]string{
		"CHAOS", "CI", "DROPIN", "DROPIN_TABLE", "EXPLORE", "FORWARD", "GOLDEN", "LONG", "MUTANT", "MUTATE", "PACKETS", "RXE", "SCREENSHOTS", "SEED",
		"SIM_SEEDS", "SLICE", "STANDIN", "VERBSTEST_STATUS",
	}, name))
}
