package transport

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"ibverbx/peer"
	"ibverbx/settings"
	"ibverbx/verbs"
)

// Options are the settings of a Plugin. The zero value means the defaults.
type Options struct {
	// Settings apply to every rail.
	Settings settings.Settings
	// Addrs are the addresses of software NICs, one rail each. Empty means real NICs if there are any, otherwise the addresses of the
	// network interfaces.
	Addrs []netip.Addr
	// Interfaces selects network interfaces like NCCL_SOCKET_IFNAME.
	Interfaces string
	// Link is peer.LinkAuto or peer.LinkUDP. Empty means peer.LinkAuto.
	Link peer.Link
	// Loss is the share of packets to drop, for tests.
	Loss float64
	// TokenFile is a file with a secret shared by all ranks. Empty means the random key of the handle alone.
	TokenFile string
	// Metrics is the address of the metrics server. Empty means none.
	Metrics string
	// Stats is set to print statistics at the end of the process.
	Stats bool
	// DeadAfter is the silence after which a peer is considered dead. Zero means 15 s.
	DeadAfter time.Duration
	// Deadline limits the duration of a transfer, including recovery. Zero means 60 s.
	Deadline time.Duration
	// Parts is the number of parts that serve the connections of a communicator over software NICs, at most MaxWorkers. Each uses its own core.
	// Zero and 1 mean a single part, served by the threads that call Poll.
	Parts int
	// Runs are words that are 1 while the worker of a part runs, at least Parts of them. Nil creates them.
	Runs []atomic.Uint32
}

// Variable is an environment variable of the plugin.
type Variable struct {
	// Name is its name, and Want its legal values.
	Name, Want string
	set        func(o *Options, value string) bool
}

// Variables returns the environment variables of the plugin, without the ones of package settings.
func Variables() []Variable {
	return []Variable{
		{"IBVERBX_ADDR", "at most 8 IP addresses with commas, such as 10.0.0.1,10.0.0.2", setAddrs},
		{"IBVERBX_LINK", "auto or udp", func(o *Options, v string) bool {
			o.Link = peer.Link(v)
			return o.Link == peer.LinkAuto || o.Link == peer.LinkUDP
		}},
		{"IBVERBX_LOSS", "0% to 99%", setLoss},
		{"IBVERBX_TOKEN_FILE", "the name of a file", func(o *Options, v string) bool { o.TokenFile = v; return true }},
		{"IBVERBX_METRICS", "host:port or :port", func(o *Options, v string) bool {
			o.Metrics = v
			return strings.Contains(v, ":")
		}},
		{"IBVERBX_NCCL_STATS", "1 or 0", func(o *Options, v string) bool {
			var err error
			o.Stats, err = strconv.ParseBool(v)
			return err == nil
		}},
		{"IBVERBX_NCCL_DEAD_AFTER", "a time of 1s to 10m", period(time.Second, func(o *Options) *time.Duration { return &o.DeadAfter })},
		{"IBVERBX_NCCL_DEADLINE", "a time of 1s to 10m", period(time.Second, func(o *Options) *time.Duration { return &o.Deadline })},
	}
}

// ReadEnv returns the Options of the environment. Its error names the variable and its legal values.
func ReadEnv(lookup func(string) (string, bool)) (o Options, err error) {
	if err := o.Settings.ReadEnv(lookup); err != nil {
		return o, err
	}
	for _, v := range Variables() {
		value, ok := lookup(v.Name)
		if ok && value != "" && !v.set(&o, value) {
			return o, fmt.Errorf("%w: %s is %q: want %s", verbs.ErrInvalid, v.Name, value, v.Want)
		}
	}
	if value, ok := lookup("NCCL_SOCKET_IFNAME"); ok {
		o.Interfaces = value
	}
	return o, nil
}

func setAddrs(o *Options, value string) bool {
	for text := range strings.SplitSeq(value, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
			return false
		}
		o.Addrs = append(o.Addrs, a.Unmap())
	}
	return len(o.Addrs) <= maxRails
}

func setLoss(o *Options, value string) bool {
	text, percent := strings.CutSuffix(value, "%")
	x, err := strconv.ParseFloat(text, 64)
	if percent {
		x /= 100
	}
	o.Loss = x
	return err == nil && x >= 0 && x <= 0.99
}

func period(least time.Duration, field func(*Options) *time.Duration) func(*Options, string) bool {
	return func(o *Options, value string) bool {
		d, err := time.ParseDuration(value)
		*field(o) = d
		return err == nil && d >= least && d <= 10*time.Minute
	}
}
