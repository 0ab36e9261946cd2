package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"ibverbx/dropin"
	"ibverbx/peer"
	"ibverbx/settings"
	"ibverbx/softnic"
)

// runFlags are the flags of `ibverbx run`.
type runFlags struct {
	env, verbose bool
	// impair holds at most one element.
	impair []peer.Impair
	// options are flags that stand for an environment variable: flag, variable without prefix, usage.
	options []runOption
}

type runOption struct {
	flag, variable, usage string
	// use replaces the legal values in an error, if it is not empty. The help does not show such a flag: it is an older name.
	use   string
	value string
}

func newRun(s streams) *cobra.Command {
	f := &runFlags{options: []runOption{
		{flag: "addr", variable: "ADDR", usage: "`IPs` of the devices, comma-separated (default: one loopback address per process)"},
		{flag: "count", variable: "COUNT", usage: "`number` of devices, 1 to 16 (default 1)"},
		{flag: "devices", variable: "COUNT", usage: "older name of --count", use: "--count for the number of devices, 1 to 16"},
		{flag: "mtu", variable: "MTU", usage: "payload `bytes` per packet: 256, 512, 1024, 2048 or 4096 (default: what fits)"},
		{flag: "peers", variable: "PEERS", usage: "`kind` of peers: softnic, or any to include hardware and Soft-RoCE (default softnic)"},
		{flag: "gids", variable: "GIDS", usage: "`kind` of GIDs: ip, or port to share an address between processes (default ip)"},
		{flag: "link", variable: "LINK", usage: "`link` to local processes of this user: auto, shm or udp (default auto: shared memory if possible)"},
		{flag: "loss", variable: "LOSS", usage: "drop this `share` of packets: --impair loss=SHARE"},
		{flag: "reorder", variable: "REORDER", usage: "reorder this `share` of packets", use: "0% to 100%"},
		{flag: "delay", variable: "DELAY", usage: "delay packets by `time`", use: "0 to 1m, such as 50us"},
		{flag: "pcap", variable: "PCAP", usage: "capture packets to `file` for Wireshark; %p becomes the process ID"},
		{flag: "metrics", variable: "METRICS", usage: "serve metrics at `address` (:9400) or the next port"},
		{flag: "stats", variable: "STATS", usage: "`1` prints device counters when a process exits"},
	}}
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARGS]",
		Short: "Run any RDMA program on software NICs",
		Long: `Run an unmodified RDMA program on software NICs, without RDMA hardware or root: a libibverbs.so.1 of this
project is preloaded. Flags apply to child processes as well. NCCL, and so PyTorch, needs no other setting.
Packets are plain RoCE v2 without encryption. docs/dropin.md lists the programs that were tested.

The library is searched in IBVERBX_LIB, beside ibverbx and in the cache, else built from source with Go, a C
compiler and the headers of rdma-core.`,
		Example: `  ibverbx run -- ibv_devinfo
  ibverbx run -- ib_write_bw                terminal 1
  ibverbx run -- ib_write_bw 127.0.0.1      terminal 2
  ibverbx run --loss 0.1% -- ./my-test      with packet loss
  ibverbx run --env                         variables for a Dockerfile`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, s, args) },
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false) // flags behind PROGRAM are its own
	fl.BoolVar(&f.env, "env", false, "print the environment variables and exit")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "print variables set, and why, and rdma_cm addresses")
	for i := range f.options {
		o := &f.options[i]
		fl.StringVar(&o.value, o.flag, "", o.usage)
		fl.Lookup(o.flag).Hidden = o.use != ""
	}
	fl.Func("impair", "`faults` of packets: loss=1%,delay=1ms, also duplicate, reorder, corrupt, jitter, rate=100MiB", f.setImpair)
	return cmd
}

// setImpair takes --impair, once and for all devices.
func (f *runFlags) setImpair(value string) error {
	one, err := settings.ParseImpair(value)
	f.impair = append(f.impair, one)
	switch {
	case err != nil:
		return err
	case len(f.impair) > 1:
		return errors.New("use one --impair with all faults")
	case f.impair[0].Rail >= 0:
		return errors.New("use faults without rail=, which apply to all devices")
	}
	return nil
}

// read sets the options from the environment, then from the flags, which override it.
func (f *runFlags) read(cmd *cobra.Command, s streams, o *dropin.Options) error {
	if err := o.ReadEnv(s.lookup); err != nil {
		return wrong(cmd, "%w", err)
	}
	if value, _ := s.lookup("IBVERBX_IMPAIR"); value != "" && len(f.impair) == 0 {
		var env runFlags
		if err := env.setImpair(value); err != nil {
			return wrong(cmd, "IBVERBX_IMPAIR=%s: %w", value, err)
		}
		overlay(&o.Impairment, peer.ImpairmentOf(0, env.impair))
	}
	for _, option := range f.options {
		if option.value == "" {
			continue
		}
		if err := o.Set(option.variable, option.value); err != nil {
			return f.refused(cmd, err)
		}
	}
	if len(f.impair) > 0 {
		overlay(&o.Impairment, peer.ImpairmentOf(0, f.impair))
	}
	if err := o.Validate(); err != nil {
		return f.refused(cmd, err)
	}
	return nil
}

// refused explains an error of an option by its flag, or by its variable if no flag set it.
func (f *runFlags) refused(cmd *cobra.Command, err error) error {
	var invalid *dropin.OptionError
	if !errors.As(err, &invalid) {
		return wrong(cmd, "%w", err)
	}
	for _, option := range f.options {
		if option.value != "" && invalid.Variable == "IBVERBX_"+option.variable {
			return wrong(cmd, "--%s %s: use %s", option.flag, option.value, cmp.Or(option.use, invalid.Use))
		}
	}
	return wrong(cmd, "%w", err)
}

// overlay sets the faults of to that from has.
func overlay(to *softnic.Impairment, from softnic.Impairment) {
	to.Loss, to.Duplicate = cmp.Or(from.Loss, to.Loss), cmp.Or(from.Duplicate, to.Duplicate)
	to.Reorder, to.Corrupt = cmp.Or(from.Reorder, to.Reorder), cmp.Or(from.Corrupt, to.Corrupt)
	to.Delay, to.Jitter = cmp.Or(from.Delay, to.Delay), cmp.Or(from.Jitter, to.Jitter)
	to.Rate = cmp.Or(from.Rate, to.Rate)
}

func (f *runFlags) run(cmd *cobra.Command, s streams, args []string) error {
	var o dropin.Options
	if err := f.read(cmd, s, &o); err != nil {
		return err
	}
	switch {
	case f.env && len(args) > 0:
		return wrong(cmd, "--env starts no program, got %q", args[0])
	case !f.env && len(args) == 0:
		return wrong(cmd, "no program: ibverbx run -- PROGRAM [ARGS]")
	}
	var path string
	if !f.env {
		var err error
		if path, err = findProgram(args[0]); err == nil {
			err = dropin.CheckProgram(path)
		}
		if err != nil {
			return err
		}
	}
	lib, err := dropin.Find(cmd.Context(), s.lookup, s.err)
	if err != nil {
		return stopped(cmd.Context(), err)
	}
	vars, err := lib.Env(os.Environ())
	if err != nil {
		return err
	}
	o.Verbose = o.Verbose || f.verbose
	vars = append(vars, o.Env()...)
	if f.verbose {
		for _, v := range vars {
			name, _, _ := strings.Cut(v, "=")
			fmt.Fprintf(s.err, "ibverbx: %s (%s)\n", v, cmp.Or(dropin.Reason(name), "an option of ibverbx run"))
		}
	}
	if f.env {
		fmt.Fprintln(s.out, strings.Join(vars, "\n"))
		return nil
	}
	return become(path, args, vars, dropin.Variables()...)
}

// findProgram returns the path of a program.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil && !errors.Is(err, exec.ErrDot) { // the user may name a program in the working directory
		return "", explain(err, "%s: no such program", name)
	}
	return path, nil
}

// become replaces this process with a program, with some variables set and those in unset removed otherwise. It only returns an error.
func become(path string, args, vars []string, unset ...string) error {
	return fmt.Errorf("start %s: %w", path, syscall.Exec(path, args, environment(os.Environ(), vars, unset)))
}

// environment returns environ with some variables set, and without those in unset unless they are set. IBVERBX_LIB stays, for commands that
// the program starts.
func environment(environ, vars, unset []string) []string {
	drop := map[string]bool{}
	for _, name := range unset {
		drop[name] = name != dropin.LibraryVariable
	}
	for _, v := range vars {
		name, _, _ := strings.Cut(v, "=")
		drop[name] = true
	}
	environ = slices.DeleteFunc(environ, func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return drop[name]
	})
	return append(environ, vars...)
}
