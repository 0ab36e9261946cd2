package dropin

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Options configures a program's software NICs. The zero value selects the defaults.
type Options struct {
	// Addrs are the addresses of the devices, in order. Each remaining device gets a loopback address
	// unused by other processes.
	Addrs []netip.Addr
	// Devices is the number of devices, at most MaxDevices. Zero means one, or one per address.
	Devices int
	// MTU is the MTU of the ports. Zero means the largest that fits the interface.
	MTU verbs.MTU
	// AnyPeer allows peers other than softnics, such as hardware. The NIC then avoids softnic extensions
	// and is slower.
	AnyPeer bool
	// PortGIDs adds UDP ports to the GIDs of devices with IPv4 addresses. Devices with loopback addresses also report them as LIDs.
	PortGIDs bool
	// SharedMemory makes Validate reject options that disable shared memory. It is on by default where the system allows it.
	SharedMemory bool
	// OnlyPackets disables shared memory with the user's other processes on this host. Impairment and
	// Capture imply it, since they apply to packets.
	OnlyPackets bool
	// Impairment describes the faults injected into the packets that a program sends.
	Impairment softnic.Impairment
	// Capture is the pcap file for a process's packets. %p in the name expands to the process ID. Empty
	// disables it.
	Capture string
	// Metrics is the address at which every process serves Prometheus metrics, at the port or the
	// next free one (metrics.NewProcessServer). Empty disables it.
	Metrics string
	// Stats makes every process print its devices' counters to stderr on exit.
	Stats bool
	// Verbose makes every process report on stderr that it uses rdma_cm, and its listening and
	// connected addresses.
	Verbose bool
}

// MaxDevices is the maximum number of devices of a program.
const MaxDevices = 16

// variable is the environment variable of one option.
type variable struct {
	// name lacks the prefix IBVERBX_.
	name string
	use  string // the legal values, as in "use 1 to 16"
	set  func(o *Options, value string) error
	// text returns the value that set reads, empty for the default.
	text func(o *Options) string
}

// prefix begins the names of all variables.
const prefix = "IBVERBX_"

// Variables returns the names of the environment variables that the drop-in reads.
func Variables() []string {
	names := []string{LibraryVariable}
	for _, v := range variables {
		names = append(names, prefix+v.name)
	}
	return names
}

var variables = []variable{
	{"ADDR", "at most 16 IP addresses with commas, such as 10.0.0.1,10.0.0.2", setAddrs, func(o *Options) string {
		var texts []string
		for _, a := range o.Addrs {
			texts = append(texts, a.String())
		}
		return strings.Join(texts, ",")
	}},
	{"COUNT", "1 to 16", setDevices, func(o *Options) string { return orEmpty(o.Devices != 0, o.Devices) }},
	{"MTU", "256, 512, 1024, 2048 or 4096", setMTU, func(o *Options) string { return orEmpty(o.MTU != 0, o.MTU.Bytes()) }},
	{"PEERS", "softnic or any", setPeers, func(o *Options) string {
		return orEmpty(o.AnyPeer, "any")
	}},
	{"GIDS", "ip or port", setGIDs, func(o *Options) string {
		return orEmpty(o.PortGIDs, "port")
	}},
	{"LINK", "auto, shm or udp", setLink, func(o *Options) string {
		if o.SharedMemory {
			return "shm"
		}
		return orEmpty(o.OnlyPackets, "udp")
	}},
	share("LOSS", func(o *Options) *float64 { return &o.Impairment.Loss }),
	share("REORDER", func(o *Options) *float64 { return &o.Impairment.Reorder }),
	share("DUPLICATE", func(o *Options) *float64 { return &o.Impairment.Duplicate }),
	share("CORRUPT", func(o *Options) *float64 { return &o.Impairment.Corrupt }),
	duration("DELAY", func(o *Options) *time.Duration { return &o.Impairment.Delay }),
	duration("JITTER", func(o *Options) *time.Duration { return &o.Impairment.Jitter }),
	{"RATE", "a number of bytes per second", setRate, func(o *Options) string {
		return orEmpty(o.Impairment.Rate != 0, strconv.FormatFloat(o.Impairment.Rate, 'f', -1, 64))
	}},
	{"PCAP", "the name of a file", func(o *Options, value string) error { o.Capture = value; return nil }, func(o *Options) string {
		return o.Capture
	}},
	{"METRICS", "host:port or :port, such as :9400", setMetrics, func(o *Options) string {
		return o.Metrics
	}},
	toggle("STATS", func(o *Options) *bool { return &o.Stats }),
	toggle("VERBOSE", func(o *Options) *bool { return &o.Verbose }),
}

func orEmpty(set bool, v any) string {
	if !set {
		return ""
	}
	return fmt.Sprint(v)
}

// OptionError reports an invalid value of an environment variable.
type OptionError struct {
	Variable, Value string
	Use             string // the valid values
}

// Error returns the variable, its value and the valid values.
func (e *OptionError) Error() string { return fmt.Sprintf("%s=%s: use %s", e.Variable, e.Value, e.Use) }

// Set sets the option of a variable, named without IBVERBX_. An invalid value returns an *OptionError,
// an unknown name verbs.ErrInvalid.
func (o *Options) Set(name, value string) error {
	for _, v := range variables {
		if v.name == name {
			if err := v.set(o, strings.TrimSpace(value)); err != nil {
				return &OptionError{prefix + name, value, v.use}
			}
			return nil
		}
	}
	return verbs.Invalidf("there is no option %s", name)
}

// ReadEnv sets every option whose variable is set and non-empty. An invalid value returns an
// *OptionError, fewer devices than addresses verbs.ErrInvalid.
func (o *Options) ReadEnv(lookup func(string) (string, bool)) error {
	if lookup == nil {
		return verbs.Invalidf("lookup is nil: use os.LookupEnv")
	}
	for _, v := range variables {
		if value, ok := lookup(prefix + v.name); ok && value != "" {
			if err := o.Set(v.name, value); err != nil {
				return err
			}
		}
	}
	return o.Validate()
}

// Validate rejects options that contradict each other, with an OptionError. ReadEnv calls it.
func (o *Options) Validate() error {
	switch {
	case o.Devices != 0 && o.Devices < len(o.Addrs):
		return &OptionError{prefix + "COUNT", strconv.Itoa(o.Devices), fmt.Sprintf("at least %d, one device per address", len(o.Addrs))}
	case o.SharedMemory && (o.Impairment != softnic.Impairment{} || o.Capture != ""):
		return &OptionError{prefix + "LINK", "shm", "udp or auto to capture or impair packets"}
	}
	return nil
}

// Env returns the non-default options as environment variables, NAME=value. ReadEnv parses them.
func (o *Options) Env() (env []string) {
	for _, v := range variables {
		if text := v.text(o); text != "" {
			env = append(env, prefix+v.name+"="+text)
		}
	}
	return env
}

// errValue rejects a value. Set adds the legal ones.
var errValue = errors.New("not a value of the option")

func setAddrs(o *Options, value string) error {
	o.Addrs = nil
	for part := range strings.SplitSeq(value, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil || a.Zone() != "" || len(o.Addrs) == MaxDevices {
			return errValue
		}
		o.Addrs = append(o.Addrs, a.Unmap())
	}
	return nil
}

func setDevices(o *Options, value string) (err error) {
	o.Devices, err = strconv.Atoi(value)
	if err != nil || o.Devices < 1 || o.Devices > MaxDevices {
		return errValue
	}
	return nil
}

func setMTU(o *Options, value string) error {
	n, err := strconv.Atoi(value)
	if err == nil {
		o.MTU, err = verbs.MTUOf(n)
	}
	return err
}

func setPeers(o *Options, value string) error {
	if value != "any" && value != "softnic" {
		return errValue
	}
	o.AnyPeer = value == "any"
	return nil
}

func setGIDs(o *Options, value string) error {
	if value != "ip" && value != "port" {
		return errValue
	}
	o.PortGIDs = value == "port"
	return nil
}

func setLink(o *Options, value string) error {
	if value != "auto" && value != "shm" && value != "udp" {
		return errValue
	}
	o.SharedMemory, o.OnlyPackets = value == "shm", value == "udp"
	return nil
}

// share describes a probability variable: a number from 0 to 1, or a percentage.
func share(name string, field func(*Options) *float64) variable {
	set := func(o *Options, value string) error {
		text, percent := strings.CutSuffix(value, "%")
		v, err := strconv.ParseFloat(text, 64)
		if percent {
			v /= 100
		}
		if err != nil || !(v >= 0 && v <= 1) {
			return errValue
		}
		*field(o) = v
		return nil
	}
	return variable{name, "0% to 100%", set, func(o *Options) string { return orEmpty(*field(o) != 0, *field(o)) }}
}

// duration describes a variable with a duration of at most a minute.
func duration(name string, field func(*Options) *time.Duration) variable {
	set := func(o *Options, value string) error {
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 || d > time.Minute {
			return errValue
		}
		*field(o) = d
		return nil
	}
	return variable{name, "0 to 1m, such as 50us", set, func(o *Options) string { return orEmpty(*field(o) != 0, *field(o)) }}
}

func setMetrics(o *Options, value string) error {
	_, port, err := net.SplitHostPort(value)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	o.Metrics = value
	return err
}

func setRate(o *Options, value string) error {
	rate, err := strconv.ParseFloat(value, 64)
	if err != nil || !(rate >= 0 && rate <= math.MaxInt64) {
		return errValue
	}
	o.Impairment.Rate = rate
	return nil
}

// toggle is a variable that is 1 or 0.
func toggle(name string, field func(*Options) *bool) variable {
	set := func(o *Options, value string) (err error) {
		*field(o), err = strconv.ParseBool(value)
		return err
	}
	return variable{name, "1 or 0", set, func(o *Options) string { return orEmpty(*field(o), 1) }}
}
