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
func (f *perfFlags) defineClient(cmd *cobra.Command) {
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
	})
	grouped(fl, groupFaults, func() {
		fl.Func("kill-rail", "lose this `rail` under load and restore it; implies --check (default size 1MiB)", rail(&c.Kill))
		fl.Func("at", "`time` from the start until --kill-rail takes the rail down (default 1s)", seconds(&c.Kill.At))
		fl.Func("back", "`time` from the loss until --kill-rail restores the rail (default 1s)", seconds(&c.Kill.Back))
	})
	grouped(fl, groupNICs, func() { f.defineMemory(fl) })
	grouped(fl, groupRemote, func() {
		f.auth.defineBoth(fl)
		f.auth.defineClient(fl)
	})
	f.defineSettings(cmd, nil)
	grouped(fl, groupResults, func() {
		f.out.define(fl)
		f.out.defineFiles(fl)
		f.metrics.define(fl)
	})
	f.finish(cmd, clientFlags)
}

// defineServer adds the flags of perf serve, in help order.
func (f *perfFlags) defineServer(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.SortFlags = false
	grouped(fl, groupRemote, func() {
		fl.StringVar(&f.listen, "listen", "", "`address` to listen on (default :18515)")
		fl.BoolVar(&f.once, "once", false, "exit after one client")
		fl.Func("lend", "`memory` limit for the buffers of a client's test, at most 2GiB (default 256MiB)", sizeOrZero(&f.cfg.Lend))
		f.auth.defineBoth(fl)
		f.auth.defineServer(fl)
	})
	grouped(fl, groupNICs, func() { f.defineMemory(fl) })
	grouped(fl, groupLanes, func() { f.defineLanes(fl) })
	f.defineSettings(cmd, []string{"transport", "impair"}) // the client decides
	grouped(fl, groupResults, func() {
		f.out.define(fl)
		f.metrics.define(fl)
	})
	f.finish(cmd, serverFlags)
}

// defineLanes adds the flags of this side's VirtualQP.
func (f *perfFlags) defineLanes(fl *pflag.FlagSet) {
	c := &f.cfg
	fl.Func("scheme", "`name` of the notification scheme for --imm: tally, dqplb or spray (default tally)", named(&c.Scheme, schemeNames))
	fl.Func("policy", "`name` of the policy that chooses a lane for a fragment: "+oneOf(policyNames)+
		" (default auto: round-robin, or two-choices once the rails differ in speed)", named(&c.Policy, policyNames))
	fl.Func("fragment", "fragment `size`, at most 1GiB; 0 chooses it by message size (default 0)", sizeOrZero(&c.Fragment))
	fl.FuncP("mtu", "m", "path MTU in `bytes`: 256, 512, 1024, 2048 or 4096 (default: the ports' MTU; the memory link never segments)", count(&c.MTU))
}

// defineMemory adds the flag for buffers.
func (f *perfFlags) defineMemory(fl *pflag.FlagSet) {
	usage := "`location` of the buffers: host, or a GPU such as cuda:0; without HOST also host,cuda:0 for initiator and target (default host)"
	if f.server {
		usage = "`location` of the buffers: host, or a GPU such as cuda:0 (default host)"
	}
	fl.Func("memory", usage, f.memory.set)
}

// perftestNames are long names of perftest for flags with the same meaning.
var perftestNames = map[string]string{"pkey_index": "pkey-index", "qp": "lanes", "qp-timeout": "ack-timeout", "report_gbits": "report-gbits"}

// defineSettings adds a flag for every setting except some, with perftest's letters.
func (f *perfFlags) defineSettings(cmd *cobra.Command, except []string) {
	f.letters = true
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(cmp.Or(perftestNames[name], name))
	})
	f.define(cmd, groupNICs, func(row *settings.Setting) bool { return !slices.Contains(except, row.Name) })
}

// finish adds perftest's flags and completions, and moves all flags but the common ones to --help-all.
func (f *perfFlags) finish(cmd *cobra.Command, common []string) {
	f.perftest.define(cmd.Flags(), &f.fabricFlags)
	_ = cmd.RegisterFlagCompletionFunc("memory", completeMemory)
	for name, values := range map[string][]string{
		"scheme": schemeNames, "policy": policyNames, "mtu": {"256", "512", "1024", "2048", "4096"}, "connection": connectionNames,
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
			n, err := settings.ParseSize(part)
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
		*to, err = settings.ParseSize(s)
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

// connection takes the name of a type of QP.
func connection(to *verbs.QPType) func(string) error {
	return one(connectionNames, func(i int) { *to = []verbs.QPType{verbs.RC, verbs.UC, verbs.UD}[i] })
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

// Names of values, in the order of their types.
var (
	schemeNames     = []string{ibverbx.Tally.String(), ibverbx.DQPLB.String(), ibverbx.Spray.String()}
	policyNames     = []string{ibverbx.AutoPolicy.String(), ibverbx.RoundRobin.String(), ibverbx.TwoChoices.String()}
	connectionNames = []string{verbs.RC.String(), verbs.UC.String(), verbs.UD.String()}
)
