package main

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ibverbx"
	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
	"ibverbx/settings"
	"ibverbx/verbs"
)

// Titles of flag groups in the help.
const (
	groupTest    = "What to measure"
	groupLanes   = "Lanes and QPs"
	groupFaults  = "Faults"
	groupNICs    = "NICs and memory"
	groupRemote  = "Two processes"
	groupFabric  = "Fabric settings (set them on both sides; each has an environment variable)"
	groupResults = "Output"
)

// clientFlags are the flags of perf that --help shows.
var clientFlags = []string{
	"size", "iters", "duration", "lat", "bidirectional", "imm", "check", "rails", "lanes", "transport", "kill-rail", "impair",
	"provider", "devices", "memory", "token-file", "verbose", "interval", "web", "json",
}

// serverFlags are the flags of perf serve that --help shows.
var serverFlags = []string{
	"rails", "lanes", "provider", "devices", "memory", "listen", "once", "lend", "link", "addr", "token-file", "token-dir",
	"verbose", "json", "metrics",
}

// defineClient adds the flags of perf, in help order.
func (f *perfFlags) defineClient(cmd *cobra.Command, s streams) {
	fl := cmd.Flags()
	fl.SortFlags = false
	c := &f.cfg
	grouped(fl, groupTest, func() {
		fl.FuncP("size", "s", "message `size`, or a list: 65536, 64KiB, 8,4K,1M (default: a short sweep)", sizes(&c.Sizes))
		fl.BoolVarP(&c.All, "all", "a", false, "measure all sizes from 2 to 2^23 bytes in powers of two")
		fl.FuncP("iters", "n", "`messages` per size and direction (default: by --duration)", count(&c.Iterations))
		fl.FuncP("duration", "D", "`time` per size, in seconds or as 500ms (default 200ms)", seconds(&c.Duration))
		fl.BoolVar(&f.lat, "lat", false, "measure latency instead of bandwidth")
		fl.BoolVarP(&c.Bidirectional, "bidirectional", "b", false, "send in both directions; rates are sums")
		fl.BoolVar(&c.Imm, "imm", false, "write with immediate: the receiver is notified of each message")
		fl.BoolVar(&c.Check, "check", false, "compare every byte that arrives")
	})
	grouped(fl, groupLanes, func() {
		f.defineLanes(fl)
		fl.FuncP("tx-depth", "t", "`messages` in flight (default 128, or fewer to stay within 16 MiB)", count(&c.TxDepth))
		fl.FuncP("cq-mod", "Q", "`messages` posted together with one completion (default by size, at most 64)", count(&c.CQMod))
		fl.FuncP("connection", "c", "QP `type`: RC, or raw UC (write, send) or UD (send) without a VirtualQP (default RC)", connection(&c.Connection))
		fl.Func("transport", "`name` of the layer that makes lanes reliable: rc, the NIC, or uc, software over 16 UC QPs per lane (default rc)", word(&c.Transport, measure.TransportRC, measure.TransportUC))
	})
	grouped(fl, groupFaults, func() {
		fl.Func("kill-rail", "lose this `rail` under load and restore it; implies --check (default size 1MiB)", rail(&c.Kill))
		fl.Func("at", "`time` from the start until --kill-rail takes the rail down (default 1s)", seconds(&c.Kill.At))
		fl.Func("back", "`time` from the loss until --kill-rail restores the rail (default 1s)", seconds(&c.Kill.Back))
		fl.Func("impair", "`faults` of software NICs, on one rail or all: rail=1,loss=1%,delay=1ms, also duplicate, reorder, corrupt, jitter, rate=100MiB; "+
			"may be repeated, once per rail. A server's NICs apply them too", impairs(&c.Impair))
	})
	grouped(fl, groupNICs, func() { f.defineNICs(cmd, s) })
	grouped(fl, groupRemote, func() {
		f.defineRemote(fl)
		f.auth.defineClient(fl)
	})
	grouped(fl, groupFabric, func() { f.defineSettings(fl) })
	grouped(fl, groupResults, func() {
		f.out.define(fl)
		f.out.defineFiles(fl)
		f.metrics.define(fl)
	})
	f.finish(cmd, clientFlags)
}

// defineServer adds the flags of perf serve, in help order.
func (f *perfFlags) defineServer(cmd *cobra.Command, s streams) {
	fl := cmd.Flags()
	fl.SortFlags = false
	grouped(fl, groupRemote, func() {
		fl.StringVar(&f.listen, "listen", "", "`address` to listen on (default :18515)")
		fl.BoolVar(&f.once, "once", false, "exit after one client")
		fl.Func("lend", "`memory` limit for the buffers of a client's test, at most 2GiB (default 256MiB)", sizeOrZero(&f.cfg.Lend))
		f.defineRemote(fl)
		f.auth.defineServer(fl)
	})
	grouped(fl, groupNICs, func() { f.defineNICs(cmd, s) })
	grouped(fl, groupLanes, func() { f.defineLanes(fl) })
	grouped(fl, groupFabric, func() { f.defineSettings(fl) })
	grouped(fl, groupResults, func() {
		f.out.define(fl)
		f.metrics.define(fl)
	})
	f.finish(cmd, serverFlags)
}

// defineLanes adds the flags of this side's VirtualQP.
func (f *perfFlags) defineLanes(fl *pflag.FlagSet) {
	c := &f.cfg
	fl.Func("rails", fmt.Sprintf("`NICs` per end, 1 to %d (default 2, or 1 with a single lane)", ibverbx.MaxRails), count(&c.Rails))
	fl.FuncP("lanes", "q", "`number` of lanes; a single lane passes requests through unchanged (default 4 per rail)", count(&c.QPs))
	fl.Func("scheme", "`name` of the notification scheme for --imm: tally, dqplb or spray (default tally)", named(&c.Scheme, schemeNames()))
	fl.Func("policy", "`name` of the policy that chooses a lane for a fragment: "+oneOf(policyNames())+
		" (default auto: round-robin, or two-choices once the rails differ in speed)", named(&c.Policy, policyNames()))
	fl.Func("fragment", "fragment `size`, at most 1GiB; 0 chooses it by message size (default 0)", sizeOrZero(&c.Fragment))
	fl.FuncP("mtu", "m", "path MTU in `bytes`: 256, 512, 1024, 2048 or 4096 (default: the ports' MTU; the memory link never segments)", count(&c.MTU))
}

// defineNICs adds the flags for NICs and buffers.
func (f *perfFlags) defineNICs(cmd *cobra.Command, s streams) {
	f.nics.define(cmd, s)
	usage := "`location` of the buffers: host, or a GPU such as cuda:0; without HOST also host,cuda:0 for initiator and target (default host)"
	if f.server {
		usage = "`location` of the buffers: host, or a GPU such as cuda:0 (default host)"
	}
	cmd.Flags().Func("memory", usage, f.memory.set)
}

// defineRemote adds the flags for tests between processes.
func (f *perfFlags) defineRemote(fl *pflag.FlagSet) {
	fl.Func("link", "`link` between software NICs: shm, shared memory, udp, or auto, shm for processes of one user on one host "+
		"(default auto; udp with --addr, --impair or --pcap)", word(&f.link, peer.LinkAuto, peer.LinkShm, peer.LinkUDP))
	fl.StringArrayVar(&f.addrs, "addr", nil, "local `addresses` of software NICs, one per rail (default: the address of the connection)")
	fl.IPNetSliceVar(&f.networks, "peer-network", nil, "`networks` of the peer's NICs if this host is not on them, such as 10.1.0.0/16")
	fl.BoolVar(&f.unsealed, "unsealed", false, "disable packet encryption between software NICs (set it on both sides): "+
		"anyone on the path can read and change all data and end the session")
	f.auth.defineBoth(fl)
	fl.StringVar(&f.capture.pcap, "pcap", "", "write the packets of software NICs, before encryption, to `file` for Wireshark")
	fl.StringVar(&f.capture.wire, "pcap-wire", "", "write them as they are on the wire, encrypted and with their real ports, to `file`")
	fl.Func("snaplen", "`bytes` of each packet that captures keep, 1 to 65535, IP header included (default all)", number(&f.capture.snapLen, 1, math.MaxUint16))
}

// perftestNames are long names of perftest for flags with the same meaning.
var perftestNames = map[string]string{"pkey_index": "pkey-index", "qp": "lanes", "qp-timeout": "ack-timeout", "report_gbits": "report-gbits"}

// defineSettings adds a flag for every setting.
func (f *perfFlags) defineSettings(fl *pflag.FlagSet) {
	fl.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(cmp.Or(perftestNames[name], name))
	})
	for _, s := range settings.All() {
		usage := fmt.Sprintf("%s: %s (default %s; variable %s)", s.About, s.Range, s.Default, s.Env)
		fl.FuncP(s.Name, s.Short, usage, func(value string) error {
			if f.settings.Set(s.Name, value, "--"+s.Name) != nil {
				return errors.New("use " + s.Range)
			}
			return nil
		})
	}
}

// readEnv takes the settings that no flag has set from the environment.
func (f *perfFlags) readEnv(cmd *cobra.Command, s streams) error {
	err := f.settings.ReadEnv(s.lookup)
	var invalid *settings.ValueError
	switch {
	case errors.As(err, &invalid):
		return wrong(cmd, "%s=%s: use %s", invalid.From, invalid.Value, invalid.Want)
	case err != nil:
		return wrong(cmd, "%w", err)
	}
	return nil
}

// given is what was set, for the report.
func (f *perfFlags) given() (list []measure.Setting) {
	for _, g := range f.settings.Origins {
		list = append(list, measure.Setting(g))
	}
	return list
}

// finish adds perftest's flags and completions, and moves all flags but the common ones to --help-all.
func (f *perfFlags) finish(cmd *cobra.Command, common []string) {
	f.perftest.define(cmd.Flags(), &f.nics)
	_ = cmd.RegisterFlagCompletionFunc("memory", completeMemory)
	for name, values := range map[string][]string{
		"scheme": schemeNames(), "policy": policyNames(), "mtu": {"256", "512", "1024", "2048", "4096"},
		"connection": {"RC", "UC", "UD"}, "transport": {"rc", "uc"}, "link": {"auto", "shm", "udp"},
		"provider": {providerAuto, providerSoftNIC, providerRDMACore},
	} {
		// The only error is a flag that this side lacks.
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	addHelpAll(cmd, common)
}

// The functions below make the function that reads a flag into a field, which is zero if the flag
// is not given.

// sizes takes one message size or several with commas.
func sizes(to *[]int) func(string) error {
	return func(s string) error {
		for part := range strings.SplitSeq(s, ",") {
			n, err := measure.ParseSize(part)
			if err != nil {
				return err
			}
			*to = append(*to, n)
		}
		return nil
	}
}

// sizeOrZero takes a size, or 0.
func sizeOrZero(to *int) func(string) error {
	return func(s string) (err error) {
		if s == "0" {
			*to = 0
			return nil
		}
		*to, err = measure.ParseSize(s)
		return err
	}
}

// count takes a whole number above 0.
func count(to *int) func(string) error { return number(to, 1, math.MaxInt32) }

// number takes a whole number within bounds.
func number(to *int, least, most int64) func(string) error {
	return func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("use a whole number from %d to %d", least, most)
		}
		*to = int(n)
		return nil
	}
}

// seconds takes a number of seconds or a Go duration.
func seconds(to *time.Duration) func(string) error {
	return func(s string) error {
		if n, err := strconv.ParseFloat(s, 64); err == nil && n > 0 && n < 1e9 {
			*to = time.Duration(n * float64(time.Second))
			return nil
		}
		if d, err := time.ParseDuration(s); err == nil && d > 0 {
			*to = d
			return nil
		}
		return errors.New("use seconds such as 5 or 0.5, or a time such as 500ms or 2m")
	}
}

// rail takes the number of a rail to lose.
func rail(to *measure.Kill) func(string) error {
	return func(s string) error {
		to.On = true
		return number(&to.Rail, 0, ibverbx.MaxRails-1)(s)
	}
}

// impairs takes the faults of a rail.
func impairs(to *[]measure.Impair) func(string) error {
	return func(s string) error {
		i, err := measure.ParseImpair(s)
		*to = append(*to, i)
		return err
	}
}

// connection takes the name of a type of QP.
func connection(to *verbs.QPType) func(string) error {
	types := []verbs.QPType{verbs.RC, verbs.UC, verbs.UD}
	return one([]string{"RC", "UC", "UD"}, func(i int) { *to = types[i] })
}

// word takes one of a few names as it is.
func word[T ~string](to *T, names ...T) func(string) error {
	return one(names, func(i int) { *to = names[i] })
}

// named takes one of a few names.
func named(to encoding.TextUnmarshaler, names []string) func(string) error {
	return one(names, func(i int) { _ = to.UnmarshalText([]byte(names[i])) }) // the only error is another name
}

// one takes one of a few names, in any case.
func one[T ~string](names []T, take func(i int)) func(string) error {
	return func(s string) error {
		i := slices.IndexFunc(names, func(name T) bool { return strings.EqualFold(s, string(name)) })
		if i < 0 {
			return errors.New("use " + oneOf(names))
		}
		take(i)
		return nil
	}
}

// oneOf lists two or more names: "a, b or c".
func oneOf[T ~string](names []T) string {
	text := string(names[0])
	for _, name := range names[1 : len(names)-1] {
		text += ", " + string(name)
	}
	return text + " or " + string(names[len(names)-1])
}

func schemeNames() []string {
	return []string{ibverbx.Tally.String(), ibverbx.DQPLB.String(), ibverbx.Spray.String()}
}

func policyNames() []string {
	return []string{ibverbx.AutoPolicy.String(), ibverbx.RoundRobin.String(), ibverbx.TwoChoices.String()}
}
