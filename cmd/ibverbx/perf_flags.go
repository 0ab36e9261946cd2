package main

import (
	"encoding"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ibverbx"
	"ibverbx/internal/perf"
	"ibverbx/verbs"
)

// define adds the flags of perf to a command, in the order of its help.
func (f *perfFlags) define(cmd *cobra.Command, s streams) {
	fl := cmd.Flags()
	fl.SortFlags = false
	c := &f.cfg
	fl.VarP((*sizes)(&c.Sizes), "size", "s", "message `size`, or several with commas: 65536, 64KiB, 8,4K,1M (default: a short sweep)")
	fl.BoolVarP(&c.All, "all", "a", false, "all sizes from 2 to 2^23 bytes in powers of two")
	fl.VarP((*count)(&c.Iterations), "iters", "n", "`messages` per size and direction (default: as many as --duration allows)")
	fl.VarP((*seconds)(&c.Duration), "duration", "D", "`time` to measure each size, in seconds or as 500ms (default 200ms)")
	fl.Var((*count)(&c.Rails), "rails", "`NICs` of each end, 1 to 8, each on a link of its own (default 2; with one lane 1)")
	fl.VarP((*count)(&c.QPs), "qp", "q", "number of `lanes`; one passes straight through (default 4 per rail)")
	fl.Var(named{&c.Scheme, schemeNames()}, "scheme", "how the receiver learns of a write with --imm: tally, dqplb or spray (default tally)")
	fl.Var(named{&c.Policy, policyNames()}, "policy", "which lane a fragment goes to: auto, round-robin, least-bytes or two-choices (default auto: two-choices if the rails differ in speed, else round-robin)")
	fl.Var((*fragment)(&c.Fragment), "fragment", "`size` of a fragment, at most 1GiB; 0 chooses it by the length of the message (default 0)")
	fl.BoolVar(&c.Imm, "imm", false, "write with an immediate: the receiver is notified of each message and counts it")
	fl.VarP((*count)(&c.TxDepth), "tx-depth", "t", "`messages` in flight (default 128, fewer if that is more than 16 MiB)")
	fl.VarP((*count)(&c.CQMod), "cq-mod", "Q", "`messages` posted at once, with one completion (default by size, at most 64)")
	fl.VarP((*count)(&c.MTU), "mtu", "m", "path MTU in `bytes`: 256, 512, 1024, 2048 or 4096 (default: of the ports; the memory link cuts nothing)")
	fl.VarP((*connection)(&c.Connection), "connection", "c", "`type` of QP: RC, or UC (write, send) or UD (send) by themselves, raw (default RC)")
	fl.Var((*transport)(&c.Transport), "transport", "`what` makes RC QPs reliable: rc, the NIC, or uc, software over many UC QPs each (default rc; raw UC is -c UC)")
	fl.BoolVarP(&c.Bidirectional, "bidirectional", "b", false, "both ends send at once; rates are sums")
	fl.BoolVar(&c.Check, "check", false, "compare every byte that arrives")
	fl.Var((*rail)(&c.Kill), "kill-rail", "lose this `rail`, 0 to --rails less 1, under load and take it back; implies --check (default size 1MiB)")
	fl.Var((*seconds)(&c.Kill.At), "at", "`time` after the start at which --kill-rail takes the rail down (default 1s)")
	fl.Var((*seconds)(&c.Kill.Back), "back", "`time` after the loss at which --kill-rail takes the rail up (default 1s)")
	fl.BoolVar(&f.lat, "lat", false, "measure latency instead of bandwidth")
	f.nics.define(cmd, s)
	fl.BoolVar(&f.gbits, "report_gbits", false, "rates in Gb/sec instead of MiB/sec")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "a line for every lane, however many there are")
	fl.BoolVar(&f.server, "server", false, "wait for clients and serve them one after the other, until Ctrl-C")
	fl.StringVar(&f.listen, "listen", "", "`address` at which --server waits (default :18515)")
	fl.BoolVar(&f.once, "once", false, "end --server after one client")
	fl.Var((*fragment)(&c.Lend), "lend", "`memory` that --server takes for the buffers of a client, at most 2GiB (default 256MiB)")
	fl.StringArrayVar(&f.addrs, "addr", nil, "local `addresses` of software NICs between processes, one for each rail (default that of the connection)")
	fl.StringVar(&f.pcap, "pcap", "", "write the packets of software NICs between processes to `file`, for tshark and Wireshark")
	f.auth.define(cmd)
	fl.BoolVar(&f.json, "json", false, "print one JSON object; bytes and seconds, not MiB")
}

// sizes is a flag that takes one message size or several with commas.
type sizes []int

func (v *sizes) Set(s string) error {
	var list []int
	for part := range strings.SplitSeq(s, ",") {
		n, err := perf.ParseSize(part)
		if err != nil {
			return err
		}
		list = append(list, n)
	}
	*v = append(*v, list...)
	return nil
}

func (v *sizes) String() string { return "" }
func (v *sizes) Type() string   { return "size" }

// count is a flag that takes a whole number above 0; unset it is 0.
type count int

func (v *count) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return errors.New("want a whole number from 1 to 2147483647")
	}
	*v = count(n)
	return nil
}

func (v *count) String() string { return "" }
func (v *count) Type() string   { return "count" }

// seconds is a flag that takes a number of seconds or a Go duration; unset it is 0.
type seconds time.Duration

func (v *seconds) Set(s string) error {
	if n, err := strconv.ParseFloat(s, 64); err == nil && n > 0 && n < 1e9 {
		*v = seconds(n * float64(time.Second))
		return nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		*v = seconds(d)
		return nil
	}
	return errors.New("want seconds such as 5 or 0.5, or a time such as 500ms or 2m")
}

func (v *seconds) String() string { return "" }
func (v *seconds) Type() string   { return "time" }

// rail is a flag that takes the number of a rail to lose; unset there is none.
type rail perf.Kill

func (v *rail) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return errors.New("want the number of a rail: 0, 1 and so on")
	}
	v.On, v.Rail = true, int(n)
	return nil
}

func (v *rail) String() string { return "" }
func (v *rail) Type() string   { return "rail" }

// connection is a flag that takes the name of a type of QP; unset it is 0.
type connection verbs.QPType

func (v *connection) Set(s string) error {
	for _, t := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		if strings.EqualFold(s, t.String()) {
			*v = connection(t)
			return nil
		}
	}
	return errors.New("want RC, UC or UD")
}

func (v *connection) String() string { return "" }
func (v *connection) Type() string   { return "type" }

// fragment is a flag that takes the size of a fragment, or 0.
type fragment int

func (v *fragment) Set(s string) error {
	if s == "0" {
		*v = 0
		return nil
	}
	n, err := perf.ParseSize(s)
	*v = fragment(n)
	return err
}

func (v *fragment) String() string { return "" }
func (v *fragment) Type() string   { return "size" }

// named is a flag that takes one of a few names.
type named struct {
	value encoding.TextUnmarshaler
	names []string
}

func (v named) Set(s string) error {
	s = strings.ToLower(s)
	if !slices.Contains(v.names, s) {
		last := len(v.names) - 1
		return errors.New("want " + strings.Join(v.names[:last], ", ") + " or " + v.names[last])
	}
	return v.value.UnmarshalText([]byte(s))
}

func (v named) String() string { return "" }
func (v named) Type() string   { return "name" }

func schemeNames() []string {
	return []string{ibverbx.Tally.String(), ibverbx.DQPLB.String(), ibverbx.Spray.String()}
}

func policyNames() []string {
	return []string{ibverbx.AutoPolicy.String(), ibverbx.RoundRobin.String(), ibverbx.LeastBytes.String(), ibverbx.TwoChoices.String()}
}
