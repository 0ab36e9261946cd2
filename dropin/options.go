package dropin

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Options configures the software NICs of a program. The zero value means the defaults.
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
	// PortGIDs adds UDP ports to the GIDs of devices with IPv4 addresses.
	PortGIDs bool
	// OnlyPackets disables shared memory with the user's other processes on this host. Impairment and
	// Capture imply it, since they apply to packets.
	OnlyPackets bool
	// Impairment describes the faults injected into the packets that a program sends.
	Impairment softnic.Impairment
	// Capture is the pcap file for a process's packets. %p in the name expands to the process ID. Empty
	// disables it.
	Capture string
	// Stats makes every process print its devices' counters to stderr on exit.
	Stats bool
}

// MaxDevices is the maximum number of devices of a program.
const MaxDevices = 16

// variable is how one option travels.
type variable struct {
	// name is without the prefix IBVERBX_.
	name  string
	about string
	use   string // which values are legal, as in "use 1 to 16"
	set   func(o *Options, value string) error
	// text returns the value that set reads, empty for the default.
	text func(o *Options) string
}

// prefix begins the names of all variables.
const prefix = "IBVERBX_"

// Variable describes an environment variable of the drop-in.
type Variable struct{ Name, About string }

// Variables returns the environment variables that the drop-in reads.
func Variables() []Variable {
	all := []Variable{{LibraryVariable, "the directory of the library"}}
	for _, v := range variables {
		all = append(all, Variable{prefix + v.name, v.about})
	}
	return all
}

var variables = []variable{
	{"ADDR", "IP addresses of the devices, with commas", "at most 16 IP addresses with commas, such as 10.0.0.1,10.0.0.2", setAddrs, func(o *Options) string {
		var texts []string
		for _, a := range o.Addrs {
			texts = append(texts, a.String())
		}
		return strings.Join(texts, ",")
	}},
	{"DEVICES", "number of devices, 1 to 16", "1 to 16", setDevices, func(o *Options) string { return orEmpty(o.Devices != 0, o.Devices) }},
	{"MTU", "MTU of the ports: 256, 512, 1024, 2048 or 4096 bytes", "256, 512, 1024, 2048 or 4096", setMTU, func(o *Options) string { return orEmpty(o.MTU != 0, o.MTU.Bytes()) }},
	{"PEERS", "softnic if all peers are software NICs of this kind (the default), any otherwise", "softnic or any", setPeers, func(o *Options) string {
		return orEmpty(o.AnyPeer, "any")
	}},
	{"GIDS", "port if GIDs carry the UDP port, for several processes on one address; ip otherwise (the default)", "ip or port", setGIDs, func(o *Options) string {
		return orEmpty(o.PortGIDs, "port")
	}},
	{"LINK", "auto to use shared memory with programs of the same user on the host (the default), udp otherwise", "auto or udp", setLink, func(o *Options) string {
		return orEmpty(o.OnlyPackets, "udp")
	}},
	{"LOSS", "share of packets that are lost, such as 0.1%", "0% to 100%", setShare(func(o *Options) *float64 { return &o.Impairment.Loss }), func(o *Options) string {
		return orEmpty(o.Impairment.Loss != 0, o.Impairment.Loss)
	}},
	{"REORDER", "share of packets that later ones overtake, such as 1%", "0% to 100%", setShare(func(o *Options) *float64 { return &o.Impairment.Reorder }), func(o *Options) string {
		return orEmpty(o.Impairment.Reorder != 0, o.Impairment.Reorder)
	}},
	{"DELAY", "time that every packet takes, such as 50us", "0 to 1m, such as 50us", setDelay, func(o *Options) string {
		return orEmpty(o.Impairment.Delay != 0, o.Impairment.Delay)
	}},
	{"PCAP", "file for the packets of a process; %p in it is the process number", "the name of a file", func(o *Options, value string) error { o.Capture = value; return nil }, func(o *Options) string {
		return o.Capture
	}},
	{"STATS", "1 prints the counters of the devices when a process exits", "1 or 0", setStats, func(o *Options) string { return orEmpty(o.Stats, 1) }},
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
	for _, v := range variables {
		if value, ok := lookup(prefix + v.name); ok && value != "" {
			if err := o.Set(v.name, value); err != nil {
				return err
			}
		}
	}
	if o.Devices != 0 && o.Devices < len(o.Addrs) {
		return verbs.Invalidf("%sDEVICES is %d, and %sADDR has %d addresses: want at least as many devices", prefix, o.Devices, prefix, len(o.Addrs))
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

// errValue refuses a value. Set says what is wanted.
var errValue = errors.New("not a value of the option")

func setAddrs(o *Options, value string) error {
	o.Addrs = nil
	for part := range strings.SplitSeq(value, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil || a.Zone() != "" || len(o.Addrs) == MaxDevices {
			return errValue
		}
		o.Addrs = append(o.Addrs, a)
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
	if value != "auto" && value != "udp" {
		return errValue
	}
	o.OnlyPackets = value == "udp"
	return nil
}

// setShare reads a probability: a number from 0 to 1, or a percentage.
func setShare(field func(*Options) *float64) func(*Options, string) error {
	return func(o *Options, value string) error {
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
}

func setDelay(o *Options, value string) error {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > time.Minute {
		return errValue
	}
	o.Impairment.Delay = d
	return nil
}

func setStats(o *Options, value string) (err error) {
	o.Stats, err = strconv.ParseBool(value)
	return err
}
