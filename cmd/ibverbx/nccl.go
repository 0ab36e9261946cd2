package main

import (
	"fmt"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"ibverbx/nccl"
)

// ncclFlags are the flags of `ibverbx nccl`.
type ncclFlags struct{ env, check bool }

func newNCCL(s streams) *cobra.Command {
	f := &ncclFlags{}
	cmd := &cobra.Command{
		Use:   "nccl [flags] -- PROGRAM [ARGS]",
		Short: "Run PyTorch, or any NCCL program, over all NICs",
		Long: `Run a program whose NCCL (2.20 to 2.30) uses ibverbx as its network: all NICs of the host at once, real or
software ones, with failover. Set nothing else on hosts that see each other. Every rank needs the plugin.

The plugin is searched in IBVERBX_NCCL_LIB, beside ibverbx and in the cache, else built from source with Go and
a C compiler. docs/nccl.md lists its variables.`,
		Example: `  ibverbx nccl --check               test the plugin without NCCL
  ibverbx nccl -- torchrun train.py  run a program with it
  eval "$(ibverbx nccl --env)"       set its variables in a shell`,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, s, args) },
	}
	fl := cmd.Flags()
	fl.SetInterspersed(false) // flags behind PROGRAM are its own
	fl.BoolVar(&f.env, "env", false, "print the environment variables as shell commands and exit")
	fl.BoolVar(&f.check, "check", false, "load the plugin as NCCL does, move data between two processes, and exit")
	return cmd
}

func (f *ncclFlags) run(cmd *cobra.Command, s streams, args []string) error {
	switch {
	case f.env && f.check:
		return wrong(cmd, "--env and --check exclude each other")
	case (f.env || f.check) && len(args) > 0:
		return wrong(cmd, "--env and --check start no program, got %q", args[0])
	case !f.env && !f.check && len(args) == 0:
		return wrong(cmd, "no program: ibverbx nccl -- PROGRAM [ARGS]")
	}
	if err := nccl.Check(s.lookup); err != nil {
		return wrong(cmd, "%w", err)
	}
	path := ""
	if len(args) > 0 {
		var err error
		if path, err = findProgram(args[0]); err != nil {
			return err
		}
	}
	lib, err := nccl.Find(cmd.Context(), s.lookup, s.err)
	if err != nil {
		return stopped(cmd.Context(), err)
	}
	switch {
	case f.check:
		return checkNCCL(cmd, s, lib)
	case f.env:
		for _, v := range lib.Env() {
			name, value, _ := strings.Cut(v, "=")
			fmt.Fprintf(s.out, "export %s=%s\n", name, quoted(value))
		}
		return nil
	}
	return become(path, args, lib.Env())
}

// quoted quotes a value for a shell if necessary.
func quoted(value string) string {
	if strings.Trim(value, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-+:@%") == "" {
		return value
	}
	return "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
}

// checkNCCL runs the check program with each version of NCCL's table.
func checkNCCL(cmd *cobra.Command, s streams, lib nccl.Library) error {
	fmt.Fprintf(s.out, "plugin: %s\n", lib.Plugin())
	for _, v := range []struct{ table, releases string }{
		{"8", "2.20 to 2.23"}, {"9", "2.24 and 2.25"}, {"10", "2.26 and 2.27"}, {"11", "2.28 and 2.29"}, {"12", "2.30"},
	} {
		fmt.Fprintf(s.out, "NCCL %s:\n", v.releases)
		program := exec.CommandContext(cmd.Context(), lib.CheckProgram(), "-v", v.table, lib.Plugin(), "check")
		program.Stdout, program.Stderr = s.out, s.out
		if err := program.Run(); err != nil {
			return stopped(cmd.Context(), fmt.Errorf("the plugin does not work for NCCL %s: %w", v.releases, err))
		}
	}
	return nil
}
