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
		{flag: "addr", variable: "ADDR", usage: "`IPs` of the devices, with commas (default a loopback address per process)"},
		{flag: "devices", variable: "DEVICES", usage: "`number` of devices, 1 to 16 (default 1)"},
		{flag: "mtu", variable: "MTU", usage: "`bytes` of payload in a packet: 256, 512, 1024, 2048 or 4096 (default what fits)"},
		{flag: "peers", variable: "PEERS", usage: "`kind` of the peers: softnic, or any if some are hardware or Soft-RoCE (default softnic)"},
		{flag: "gids", variable: "GIDS", usage: "`kind` of GIDs: ip, or port if they carry the UDP port, for several processes on one address (default ip)"},
		{flag: "link", variable: "LINK", usage: "`way` to programs of the user on the host: auto for shared memory if it is possible, or udp (default auto)"},
		{flag: "loss", variable: "LOSS", usage: "`share` of the packets that get lost, such as 0.1%"},
		{flag: "reorder", variable: "REORDER", usage: "`share` of the packets that later ones overtake, such as 1%"},
		{flag: "delay", variable: "DELAY", usage: "`time` that every packet takes, such as 50us"},
		{flag: "pcap", variable: "PCAP", usage: "`file` for the packets of a process, for Wireshark; %p in it is the process number"},
		{flag: "stats", variable: "STATS", usage: "`1` makes every process print the counters of its devices when it exits"},
	}}
	cmd := &cobra.Command{
		Use:   "run [flags] -- PROGRAM [ARGS]",
		Short: "Run any RDMA program on software NICs",
		Long: `run starts an RDMA program, unmodified, on software NICs. It needs neither RDMA hardware nor root.
The program finds the NICs through a libibverbs.so.1 of this project, which is preloaded. Packets are plain RoCE v2:
they are not encrypted. docs/dropin.md says which programs run.

The library is looked for in IBVERBX_LIB, beside ibverbx and in the cache. If it is missing, it is built from source,
which needs Go, a C compiler and rdma-core's headers. Flags also apply to the programs that PROGRAM starts.`,
		Example: `  ibverbx run -- ibv_devinfo
  ibverbx run -- ib_write_bw                in one terminal, and in another:
  ibverbx run -- ib_write_bw 127.0.0.1
  ibverbx run --loss 0.1% -- ./my-test      with lost packets
  ibverbx run --env                         the variables, for a Dockerfile`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, s, args) },
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false) // flags behind PROGRAM are its own
	fl.BoolVar(&f.env, "env", false, "print the environment variables and start nothing")
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
