package main

import (
	"encoding"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ibverbx"
	"ibverbx/internal/perf"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// define adds the flags of perf to a command, in the order of its help.
func (f *perfFlags) define(cmd *cobra.Command, s streams) {
	fl := cmd.Flags()
	fl.SortFlags = false
	c := &f.cfg
	fl.FuncP("size", "s", "message `size`, or several with commas: 65536, 64KiB, 8,4K,1M (default: a short sweep)", sizes(&c.Sizes))
	fl.BoolVarP(&c.All, "all", "a", false, "all sizes from 2 to 2^23 bytes in powers of two")
	fl.FuncP("iters", "n", "`messages` per size and direction (default: as many as --duration allows)", count(&c.Iterations))
	fl.FuncP("duration", "D", "`time` to measure each size, in seconds or as 500ms (default 200ms)", seconds(&c.Duration))
	fl.Func("rails", "`NICs` of each end, 1 to 8, each on its own link (default 2; with one lane 1)", count(&c.Rails))
	fl.FuncP("qp", "q", "number of `lanes`; a single one passes requests through unchanged (default 4 per rail)", count(&c.QPs))
	fl.Func("scheme", "`name` of how the receiver learns of a write with --imm: tally, dqplb or spray (default tally)", named(&c.Scheme, schemeNames()))
	fl.Func("policy", "`name` of how a lane is chosen for a fragment: auto, round-robin, least-bytes or two-choices "+
		"(default auto: two-choices if the rails differ in speed, else round-robin)", named(&c.Policy, policyNames()))
	fl.Func("fragment", "`size` of a fragment, at most 1GiB; 0 chooses it by the size of the message (default 0)", sizeOrZero(&c.Fragment))
	fl.BoolVar(&c.Imm, "imm", false, "write with an immediate: the receiver is notified of each message and counts it")
	fl.FuncP("tx-depth", "t", "`messages` in flight (default 128, fewer if that is more than 16 MiB)", count(&c.TxDepth))
	fl.FuncP("cq-mod", "Q", "`messages` posted at once, with one completion (default by size, at most 64)", count(&c.CQMod))
	fl.FuncP("mtu", "m", "path MTU in `bytes`: 256, 512, 1024, 2048 or 4096 (default that of the ports; the memory link cuts nothing)", count(&c.MTU))
	fl.FuncP("connection", "c", "`type` of QP: RC, or raw UC (write, send) or UD (send) without a VirtualQP (default RC)", connection(&c.Connection))
	fl.Func("transport", "`what` makes RC QPs reliable: rc, the NIC, or uc, software over many UC QPs each (default rc; raw UC is -c UC)", word(&c.Transport, perf.TransportRC, perf.TransportUC))
	f.defineSettings(fl)
	fl.BoolVarP(&c.Bidirectional, "bidirectional", "b", false, "both ends send at once; rates are sums")
	fl.BoolVar(&c.Check, "check", false, "compare every byte that arrives")
	fl.Func("kill-rail", "lose this `rail`, 0 to --rails less 1, under load and take it back; implies --check (default size 1MiB)", rail(&c.Kill))
	fl.Func("at", "`time` after the start at which --kill-rail takes the rail down (default 1s)", seconds(&c.Kill.At))
	fl.Func("back", "`time` after the loss at which --kill-rail takes the rail up (default 1s)", seconds(&c.Kill.Back))
	fl.Func("impair", "`faults` of software NICs, for all rails or for one, such as rail=1,loss=1%,delay=1ms: also duplicate, reorder, corrupt, jitter and rate=100MiB; "+
		"once for each rail", impairs(&c.Impair))
	fl.BoolVar(&f.lat, "lat", false, "measure latency instead of bandwidth")
	f.nics.define(cmd, s)
	fl.Func("memory", "`where` buffers are: host, or a GPU such as cuda:0; in one process also two, of the initiator and of the target: host,cuda:0 (default host)", f.memory.set)
	fl.BoolVar(&f.server, "server", false, "wait for clients and serve them one after the other, until Ctrl-C or SIGTERM")
	fl.StringVar(&f.listen, "listen", "", "`address` at which --server waits (default :18515)")
	fl.BoolVar(&f.once, "once", false, "end --server after one client")
	fl.Func("lend", "`memory` that --server takes for the buffers of a client, at most 2GiB (default 256MiB)", sizeOrZero(&c.Lend))
	fl.Func("link", "`what` joins software NICs of two processes: shm, shared memory, udp, or auto, shm if both are of one user on one host "+
		"(default auto; udp with --addr or --pcap)", word(&f.link, peer.LinkAuto, peer.LinkShm, peer.LinkUDP))
	fl.StringArrayVar(&f.addrs, "addr", nil, "local `addresses` of software NICs between processes, one for each rail (default that of the connection)")
	fl.StringVar(&f.capture.pcap, "pcap", "", "write the packets of software NICs between processes, before they are sealed, to `file` for Wireshark")
	fl.StringVar(&f.capture.wire, "pcap-wire", "", "the same as they are on the wire, sealed and with their real ports, to `file`")
	fl.Func("snaplen", "`bytes` of each packet that --pcap and --pcap-wire keep, 1 to 65535, IP header included (default all)", number(&f.capture.snapLen, 1, math.MaxUint16))
	fl.IPNetSliceVar(&f.networks, "peer-network", nil, "`networks` of the other side's NICs if they are not on a network of this host, such as 10.1.0.0/16")
	fl.BoolVar(&f.unsealed, "unsealed", false, "plain packets between software NICs, on both sides: who sees them can read and change all data and end the session")
	f.auth.define(cmd)
	f.out.define(fl)
	f.metrics.define(fl)
	f.perftest.define(fl, &f.nics)
	for first, title := range map[string]string{
		"size": "How much", "rails": "Lanes and QPs", "tclass": "Settings of the fabric", "bidirectional": "What is measured, and what goes wrong",
		"provider": "NICs and memory", "server": "Two processes", "report_gbits": "Output",
	} {
		_ = fl.SetAnnotation(first, helpGroup, []string{title}) // the only error is a flag that is not there
	}
	_ = cmd.RegisterFlagCompletionFunc("memory", completeMemory)
	for name, values := range map[string][]string{
		"scheme": schemeNames(), "policy": policyNames(), "mtu": {"256", "512", "1024", "2048", "4096"},
		"connection": {"RC", "UC", "UD"}, "transport": {"rc", "uc"}, "link": {"auto", "shm", "udp"},
		"provider": {providerAuto, providerSoftNIC, providerRDMACore},
	} {
		// The only error is a flag that is not there.
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// The functions below make the function that reads a flag into a field, which is zero if the flag
// is not given.

// sizes takes one message size or several with commas.
func sizes(to *[]int) func(string) error {
	return func(s string) error {
		for part := range strings.SplitSeq(s, ",") {
			n, err := perf.ParseSize(part)
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
		*to, err = perf.ParseSize(s)
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
			return fmt.Errorf("want a whole number from %d to %d", least, most)
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
		return errors.New("want seconds such as 5 or 0.5, or a time such as 500ms or 2m")
	}
}

// rail takes the number of a rail to lose.
func rail(to *perf.Kill) func(string) error {
	return func(s string) error {
		to.On = true
		return number(&to.Rail, 0, ibverbx.MaxRails-1)(s)
	}
}

// impairs takes the faults of a rail.
func impairs(to *[]perf.Impair) func(string) error {
	return func(s string) error {
		i, err := perf.ParseImpair(s)
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
			return errors.New("want " + oneOf(names))
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
	return []string{ibverbx.AutoPolicy.String(), ibverbx.RoundRobin.String(), ibverbx.LeastBytes.String(), ibverbx.TwoChoices.String()}
}
