package main

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ibverbx/files"
	"ibverbx/transfer"
)

const getLong = `Copy files and directories from a host that runs ibverbx serve. NAME is a name that ibverbx ls prints, or a
quoted pattern with *, ? or [...]. One file is stored as DEST, or in DEST if DEST is a directory; - writes it
to standard output. The contents of one directory are stored in DEST. Without DEST, the last element of NAME
in the current directory is used. With several NAMEs, each keeps its last element below DEST, which must be a
directory or end in a slash.

Run the same command again to update a copy, or to continue after any failure. Files with the same size and
modification time are skipped.

Exit status: 0 complete; 1 failed, or some files failed; 2 wrong usage; 3 not found or not permitted; 4 file
changed, or wrong digest; 5 host lost or unreachable; 130 or 143 after Ctrl-C or SIGTERM.`

const getExample = `  ibverbx get node1 models/v7 /data --token-file t          a whole directory
  ibverbx get node1 src ./src --token-file t --delete --exclude '*.o'`

const putLong = `Copy files and directories to a host that runs ibverbx serve --write. NAME is the name there and starts with
the name of a writable directory. Without NAME, or if NAME is such a directory, the last element of PATH is
kept. With several PATHs, each keeps its last element below NAME, which must be a directory or end in a slash.
If PATH is -, standard input is stored as NAME.

Transfers resume, skip equal files and are verified as with ibverbx get. The exit status is that of
ibverbx get.`

const putExample = `  ibverbx serve --write /incoming --token-file t    on node1
  ibverbx put node1 results.tar --token-file t      as incoming/results.tar
  ibverbx put node1 ./run7 incoming/runs/7 --token-file t`

// transferFlags are the flags of get and put.
type transferFlags struct {
	fileFlags
	cfg  files.TransferConfig
	sync string
	// names are the lines of --files-from, nil without it.
	names []string
	// result is the sum of all transfers.
	result fileReport
}

// resultOf returns the result line of a transfer of name.
func (f *transferFlags) resultOf(name string) func(failure string) any {
	return func(failure string) any {
		r := f.result
		r.Type, r.Name, r.carried, r.Error = lineResult, cmp.Or(r.Name, name), f.carried, failure
		r.Phase = cmp.Or(r.Phase, transfer.Done.String()) // without a file to transfer
		if failure != "" {
			r.Phase = "failed"
		}
		for i := range r.Rails {
			if i < len(r.perRail) { // with the bytes written by the peer, which the counter of the NIC lacks
				r.Rails[i].Bytes = uint64(r.perRail[i].Bytes)
			}
		}
		return r
	}
}

func newGet(s streams) *cobra.Command {
	f := &transferFlags{}
	cmd := &cobra.Command{
		Use:     "get HOST[:PORT] NAME... [DEST]",
		Short:   "Copy files and directories from another host",
		Long:    getLong,
		Example: getExample,
		Args:    wantFiles("HOST NAME... [DEST]", toPipe, func(args []string) []string { return args[min(len(args), max(2, len(args)-1)):] }),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(false); err != nil {
				return err
			}
			if toPipe(args) {
				return f.getPipe(cmd.Context(), s, args[0], args[1])
			}
			s := s.logged(f.json)
			err := f.transfer(cmd.Context(), s, args[0], func(ctx context.Context, p *files.Peer) ([]copying, error) {
				return f.getAll(ctx, p, args[0], args[1:])
			})
			return f.conclude(s, err, f.resultOf(args[1]))
		},
	}
	f.define(cmd, s, func(fl *pflag.FlagSet) {
		f.defineBoth(fl, s)
		fl.IntVarP(&f.cfg.Parallel, "jobs", "j", 8, "`number` of large files at a time")
	})
	return cmd
}

func newPut(s streams) *cobra.Command {
	f := &transferFlags{}
	cmd := &cobra.Command{
		Use:     "put HOST[:PORT] PATH... [NAME]",
		Short:   "Copy files and directories to another host",
		Long:    putLong,
		Example: putExample,
		Args:    wantFiles("HOST PATH... [NAME]", fromPipe, func(args []string) []string { return args[1:max(2, len(args)-1)] }),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(true); err != nil {
				return err
			}
			s := s.logged(f.json)
			if fromPipe(args) {
				return f.conclude(s, f.putPipe(cmd.Context(), s, args), f.resultOf(args[2]))
			}
			err := f.transfer(cmd.Context(), s, args[0], func(ctx context.Context, p *files.Peer) ([]copying, error) {
				return f.putAll(ctx, p, args[0], args[1:])
			})
			return f.conclude(s, err, f.resultOf(cmp.Or(strings.Join(args[2:], " "), args[1])))
		},
	}
	f.define(cmd, s, func(fl *pflag.FlagSet) { f.defineBoth(fl, s) })
	return cmd
}

// transfer connects to a host, transfers files, and shows the progress.
func (f *transferFlags) transfer(ctx context.Context, s streams, host string, plan func(context.Context, *files.Peer) ([]copying, error)) error {
	return f.metrics.during(ctx, s, func() error {
		return f.withPeer(ctx, s, host, func(p *files.Peer) error {
			all, err := plan(ctx, p)
			if err != nil {
				return stopped(ctx, err)
			}
			return f.copyAll(ctx, s, p, all)
		})
	})
}

// copyAll runs transfers one after the other. After a failed one it continues, unless the host is lost.
func (f *transferFlags) copyAll(ctx context.Context, s streams, p *files.Peer, all []copying) error {
	var errs []error
	ended, lost := false, false
	for _, c := range all {
		show := newFileShow(s, &f.fileFlags, p)
		err := show.run(ctx, c.begin())
		f.result = f.result.plus(show.result)
		if err == nil || errors.Is(err, files.ErrIncomplete) {
			ended = true
		} else if ctx.Err() == nil {
			f.result.Failed++
		}
		if err != nil {
			errs = append(errs, c.explain(err))
			if lost = fileStatus(err) == exitPeer; lost || ctx.Err() != nil {
				break
			}
		}
	}
	return f.concludeAll(ctx, s, errors.Join(errs...), ended, lost)
}

// concludeAll returns the error of all transfers and prints their sum. ended is set if one of them was completed, and lost if the host was lost.
func (f *transferFlags) concludeAll(ctx context.Context, s streams, err error, ended, lost bool) error {
	switch {
	case lost:
		err = &severalErrors{err, exitPeer}
	case ended && err != nil && ctx.Err() == nil:
		err = &severalErrors{err, exitFailure}
	}
	if !ended || f.json || f.quiet {
		return err
	}
	return errors.Join(err, f.summary(s))
}
