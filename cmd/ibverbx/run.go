package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"ibverbx/dropin"
)

// runFlags are the flags of `ibverbx run`.
type runFlags struct {
	env bool
	// options are flags that stand for an environment variable: flag, variable without prefix, usage.
	options []runOption
}

type runOption struct {
	flag, variable, usage string
	value                 string
}

func newRun(s streams) *cobra.Command {
	f := &runFlags{options: []runOption{
		{flag: "addr", variable: "ADDR", usage: "`IPs` of the devices, comma-separated (default: one loopback address per process)"},
		{flag: "devices", variable: "DEVICES", usage: "`number` of devices, 1 to 16 (default 1)"},
		{flag: "mtu", variable: "MTU", usage: "payload `bytes` per packet: 256, 512, 1024, 2048 or 4096 (default: what fits)"},
		{flag: "peers", variable: "PEERS", usage: "`kind` of peers: softnic, or any to include hardware and Soft-RoCE (default softnic)"},
		{flag: "gids", variable: "GIDS", usage: "`kind` of GIDs: ip, or port to share an address between processes (default ip)"},
		{flag: "link", variable: "LINK", usage: "`path` to local processes of this user: auto (shared memory) or udp (default auto)"},
		{flag: "loss", variable: "LOSS", usage: "drop this `share` of packets, such as 0.1%"},
		{flag: "reorder", variable: "REORDER", usage: "reorder this `share` of packets, such as 1%"},
		{flag: "delay", variable: "DELAY", usage: "delay packets by `time`, such as 50us"},
		{flag: "pcap", variable: "PCAP", usage: "capture packets to `file` for Wireshark; %p becomes the process ID"},
		{flag: "stats", variable: "STATS", usage: "`1` prints device counters when a process exits"},
	}}
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARGS]",
		Short: "Run any RDMA program on software NICs",
		Long: `Run an unmodified RDMA program on software NICs, without RDMA hardware or root. A libibverbs.so.1 of this
project is preloaded, and flags apply to child processes as well. Packets are plain RoCE v2 without
encryption. docs/dropin.md lists the programs that were tested.

The library is searched in IBVERBX_LIB, beside ibverbx and in the cache. If it is missing, it is built from
source with Go, a C compiler and the headers of rdma-core.`,
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
	for i := range f.options {
		fl.StringVar(&f.options[i].value, f.options[i].flag, "", f.options[i].usage)
	}
	return cmd
}

func (f *runFlags) run(cmd *cobra.Command, s streams, args []string) error {
	var o dropin.Options
	if err := o.ReadEnv(s.lookup); err != nil {
		return err
	}
	for _, option := range f.options {
		if option.value == "" {
			continue
		}
		var invalid *dropin.OptionError
		if err := o.Set(option.variable, option.value); errors.As(err, &invalid) {
			return wrong(cmd, "--%s %s: use %s", option.flag, option.value, invalid.Use)
		} else if err != nil {
			return wrong(cmd, "--%s: %w", option.flag, err)
		}
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
		if path, err = program(args[0]); err != nil {
			return err
		}
	}
	lib, err := dropin.Find(cmd.Context(), s.lookup, s.err)
	if err != nil {
		return err
	}
	vars, err := lib.Env(os.Environ())
	if err != nil {
		return err
	}
	vars = append(vars, o.Env()...)
	if f.env {
		fmt.Fprintln(s.out, strings.Join(vars, "\n"))
		return nil
	}
	if err := syscall.Exec(path, args, merged(os.Environ(), vars)); err != nil {
		return fmt.Errorf("start %s: %w", path, err)
	}
	return nil
}

// program finds the file of a program that can use the library.
func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) {
		err = nil // a program in the working directory, which the user has named
	}
	if err != nil {
		return "", explain(err, "%s: no such program", name)
	}
	return path, dropin.CheckProgram(path)
}

// merged returns environ with some variables set.
func merged(environ, vars []string) []string {
	set := map[string]bool{}
	for _, v := range vars {
		name, _, _ := strings.Cut(v, "=")
		set[name] = true
	}
	var all []string
	for _, v := range environ {
		if name, _, _ := strings.Cut(v, "="); !set[name] {
			all = append(all, v)
		}
	}
	return append(all, vars...)
}
