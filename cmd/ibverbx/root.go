package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ibverbx/internal/perf/measure"
	"ibverbx/internal/printable"
	"ibverbx/peer"
)

// Exit statuses of all commands. docs/commands.md documents them.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2   // the command line or the environment is invalid
	exitInterrupted = 130 // SIGINT stopped unfinished work, as a shell reports it
	exitTerminated  = 143 // SIGTERM stopped unfinished work, as a shell reports it
)

// Errors of work that a signal stopped early.
var (
	errInterrupted = errors.New("interrupted") // by SIGINT
	errTerminated  = errors.New("terminated")  // by SIGTERM
)

// stopped returns errInterrupted or errTerminated if a signal has ended ctx, otherwise err.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if strings.HasPrefix(context.Cause(ctx).Error(), syscall.SIGTERM.String()) {
		return errTerminated
	}
	return errInterrupted
}

// streams are the files of a run, so that tests can run commands in process.
type streams struct {
	in       io.Reader
	args     []string // the command line, for reports
	out, err io.Writer
	// provider is the default of --provider. Empty means auto; tests name one.
	provider peer.Provider
	// environ lists the variables, as os.Environ, which it is if env is nil too.
	environ []string
	// env is os.LookupEnv if it is nil.
	env func(name string) (value string, set bool)
}

// usageError rejects the command line.
type usageError struct {
	command string // whose help explains it
	err     error
}

// wrong refuses the command line of a command.
func wrong(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{command: cmd.CommandPath(), err: fmt.Errorf(format, args...)}
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// refuse is the error of a flag's value, or of another part of the command line.
func refuse(flag, problem, fix string) error {
	return &measure.ConfigError{Where: flag, Problem: problem, Fix: fix}
}

// dash names standard input or output in other tools. Only get and put read or write files there.
const dash = "-"

// refuseDash is the error of a dash as a file name.
func refuseDash(where string) error {
	return refuse(where, "standard input and output are not supported", "use ./- for a file of this name")
}

// refuseDashes refuses a dash as the value of a flag that names a file or a directory.
func refuseDashes(cmd *cobra.Command, _ []string) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if kind, _ := pflag.UnquoteUsage(f); (kind == "file" || kind == "directory") && f.Value.String() == dash {
			err = refuseDash("--" + f.Name + " " + dash)
		}
	})
	return err
}

// run runs a command line and returns its exit status. Only run prints errors.
func run(ctx context.Context, args []string, s streams) int {
	s.args = args
	root := newRoot(s)
	root.SetArgs(oldServer(args))
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(s.err, "ibverbx: %s\n", printable.Lines(err.Error()))
	printCause(cmd, s, err)
	var usage *usageError
	switch {
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.Is(err, errTerminated):
		return exitTerminated
	case errors.As(err, &usage):
		fmt.Fprintf(s.err, "Run '%s --help' for flags and examples.\n", usage.command)
		return exitUsage
	case invalid(err):
		fmt.Fprintf(s.err, "Run '%s --help' for flags and examples.\n", cmd.CommandPath())
		return exitUsage
	}
	return fileStatus(err)
}

// Groups of commands in the help.
const (
	groupFiles   = "files"
	groupMeasure = "measure"
	groupInspect = "inspect"
)

// group puts commands into a group.
func group(id string, commands ...*cobra.Command) []*cobra.Command {
	for _, c := range commands {
		c.GroupID = id
	}
	return commands
}

// newRoot builds the command tree.
func newRoot(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "ibverbx",
		Short: "Move files by RDMA, and measure RDMA NICs, with hardware or without",
		Long:  "Move files and TCP connections by RDMA, with or without RDMA hardware.",
		Example: `  ibverbx perf                                bandwidth of RDMA_WRITE
  ibverbx serve /models --token-file t        on node1: serve files
  ibverbx get node1 models/v7 --token-file t  elsewhere: copy them`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       buildVersion().Version,
	}
	root.PersistentPreRunE = func(cmd *cobra.Command, args []string) error {
		if err := s.refuseVariables(cmd); err != nil {
			return err
		}
		return refuseDashes(cmd, args)
	}
	root.SuggestionsMinimumDistance = 2
	root.SetVersionTemplate("ibverbx {{.Version}}\n")
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.SetFlagErrorFunc(flagError)
	setHelp(root)
	root.AddGroup(
		&cobra.Group{ID: groupFiles, Title: "Move files and connections between hosts:"}, &cobra.Group{ID: groupMeasure, Title: "Measure and run:"},
		&cobra.Group{ID: groupInspect, Title: "Inspect and prepare this machine:"},
	)
	root.AddCommand(group(groupFiles, newServe(s), newGet(s), newPut(s), newLs(s), newForward(s))...)
	root.AddCommand(group(groupMeasure, newDemo(s), newPerf(s), newCompare(s), newRun(s), newNCCL(s), newSim(s))...)
	root.AddCommand(group(groupInspect, newDevices(s), newDoctor(s), newVersion(s), newTokenCommand(s), newCert(s))...)
	root.SetCompletionCommandGroupID(groupInspect)
	root.SetHelpCommandGroupID(groupInspect)
	root.InitDefaultHelpCmd()
	if help, _, err := root.Find([]string{"help"}); err == nil {
		help.Args = knownCommand
	}
	return root
}

// noCommand rejects unknown commands and lists the known ones.
func noCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	hint := "use " + oneOf(names)
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, " or ") + "?"
	}
	return wrong(cmd, "there is no command %q; %s", args[0], hint)
}

// knownCommand rejects the name of an unknown command as the argument of help.
func knownCommand(cmd *cobra.Command, args []string) error {
	if found, _, err := cmd.Root().Find(args); err == nil && found != cmd.Root() {
		return nil
	}
	return noCommand(cmd.Root(), args)
}

// noArgs rejects arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	return wantArgs(0, 0, "no arguments")(cmd, args)
}

// wantArgs refuses a command line with too few or too many arguments. files are the indices of local files.
func wantArgs(least, most int, what string, files ...int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		for _, i := range files {
			if i < len(args) && args[i] == dash {
				return refuseDash(dash)
			}
		}
		if err := notEmpty(cmd, args); err != nil {
			return err
		}
		switch {
		case len(args) < least && len(args) == 0:
			return wrong(cmd, "%s: missing arguments; want %s", cmd.Name(), what)
		case len(args) < least:
			return wrong(cmd, "%s %s: missing arguments; want %s", cmd.Name(), strings.Join(args, " "), what)
		case len(args) > most:
			return wrong(cmd, "%s %s: too many arguments; want %s", cmd.Name(), strings.Join(args, " "), what)
		}
		return nil
	}
}

// notEmpty refuses an empty argument. Usually a shell variable is unset.
func notEmpty(cmd *cobra.Command, args []string) error {
	if i := slices.Index(args, ""); i >= 0 {
		return wrong(cmd, "%s: argument %d is empty: is a variable unset?", cmd.Name(), i+1)
	}
	return nil
}
