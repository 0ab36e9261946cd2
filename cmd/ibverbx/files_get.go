package main

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ibverbx/files"
)

const getLong = `Copy a file or a directory from a host that runs ibverbx serve. NAME is a name that ibverbx ls prints. A
file is stored as DEST, or in DEST if DEST is a directory. The contents of a directory are stored in DEST.
Without DEST, the last element of NAME in the current directory is used.

Transfers resume. Run the same command again after Ctrl-C, a crash, a full disk or a lost host: data that
has arrived is verified and kept. Incomplete files are named .NAME.ibx-partial. Every 1 MiB chunk is
verified by its digest.

Exit status: 0 complete and verified; 1 failed; 2 wrong usage; 3 not found or not permitted; 4 the file
changed during the transfer, or its digest is wrong; 5 the host is unreachable or was lost; 130 or 143
after Ctrl-C or SIGTERM.`

const getExample = `  ibverbx get node1 models/v7/model.safetensors --token-file t
  ibverbx get node1 models/v7 /data --token-file t          a whole directory
  ibverbx get node1:9000 models/v7 /data --token-file t -j 16
  ibverbx get node1 models/v7 /data --token-file t --json`

const putLong = `Copy a file or a directory to a host that runs ibverbx serve --write. NAME is its name there and starts
with the name of a writable directory. Without NAME, or if NAME is such a directory, the last element of
PATH is kept. Transfers resume and are verified as with ibverbx get.

The exit status is that of ibverbx get.`

const putExample = `  ibverbx serve --write /incoming --token-file t    on node1
  ibverbx put node1 results.tar --token-file t      as incoming/results.tar
  ibverbx put node1 ./run7 incoming/runs/7 --token-file t`

// transferFlags are the flags of get and put.
type transferFlags struct {
	fileFlags
	cfg  files.TransferConfig
	sync string
	// result is the last line of --json, zero if the transfer did not start.
	result fileReport
}

// resultOf returns the result line of a transfer of name.
func (f *transferFlags) resultOf(name string) func(failure string) any {
	return func(failure string) any {
		r := f.result
		r.Type, r.Name, r.Error = lineResult, cmp.Or(r.Name, name), failure
		if failure != "" {
			r.Phase = "failed"
		}
		return r
	}
}

func newGet(s streams) *cobra.Command {
	f := &transferFlags{}
	cmd := &cobra.Command{
		Use:     "get HOST[:PORT] NAME [DEST]",
		Short:   "Copy a file or a directory from another host",
		Long:    getLong,
		Example: getExample,
		Args:    wantArgs(2, 3, "HOST NAME [DEST]", 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := s.logged(f.json)
			err := f.transfer(cmd.Context(), s, args[0], func(_ context.Context, p *files.Peer) (*files.Transfer, error) {
				return p.GetFile(strings.TrimSuffix(args[1], "/"), strings.Join(args[2:], ""), f.cfg), nil
			})
			err = explainFile(args[0], args[1], cmp.Or(strings.Join(args[2:], ""), path.Base(args[1])), err)
			return f.conclude(s, err, f.resultOf(args[1]))
		},
	}
	f.define(cmd, s, func(fl *pflag.FlagSet) {
		fl.IntVarP(&f.cfg.Parallel, "jobs", "j", 8, "`number` of files to transfer concurrently")
		fl.StringVar(&f.sync, "sync", "file", "`when` to fsync: never, file (data of each file) or dir (names as well)")
		f.defineFresh(fl)
	})
	return cmd
}

func newPut(s streams) *cobra.Command {
	f := &transferFlags{sync: "file"}
	cmd := &cobra.Command{
		Use:     "put HOST[:PORT] PATH [NAME]",
		Short:   "Copy a file or a directory to another host",
		Long:    putLong,
		Example: putExample,
		Args:    wantArgs(2, 3, "HOST PATH [NAME]", 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := s.logged(f.json)
			err := f.transfer(cmd.Context(), s, args[0], func(ctx context.Context, p *files.Peer) (*files.Transfer, error) {
				name, err := putName(ctx, p, args[1], strings.TrimSuffix(strings.Join(args[2:], ""), "/"))
				if err != nil {
					return nil, err
				}
				return p.PutFile(args[1], name, f.cfg), nil
			})
			return f.conclude(s, err, f.resultOf(cmp.Or(strings.Join(args[2:], ""), args[1])))
		},
	}
	f.define(cmd, s, f.defineFresh)
	return cmd
}

func (f *transferFlags) defineFresh(fl *pflag.FlagSet) {
	fl.BoolVar(&f.cfg.Fresh, "fresh", false, "start over and ignore partial data")
}

// syncs are the values of --sync.
var syncs = map[string]files.Sync{"never": files.SyncNever, "file": files.SyncFile, "dir": files.SyncDir}

// transfer connects to a host, transfers files, and shows how far that is.
func (f *transferFlags) transfer(ctx context.Context, s streams, host string, begin func(context.Context, *files.Peer) (*files.Transfer, error)) error {
	ok := false
	if f.cfg.Sync, ok = syncs[f.sync]; !ok {
		return refuse("--sync "+f.sync, "there is no such value", "use never, file or dir")
	}
	if f.cfg.Parallel < 0 {
		return refuse("--jobs", "the number is below 1", "use 1 or more")
	}
	return f.metrics.during(ctx, s, func() error {
		e, p, err := f.connect(ctx, s, host)
		if err != nil {
			return stopped(ctx, err)
		}
		t, err := begin(ctx, p)
		if err != nil {
			err = stopped(ctx, err)
		} else {
			show := newFileShow(s, &f.fileFlags, p)
			err = show.run(ctx, t)
			f.result = show.result
		}
		if closed := e.close(); err == nil {
			err = closed
		}
		return err
	})
}

// putName returns the name of a file that is put: the one that was given, or below a directory of the peer.
func putName(ctx context.Context, p *files.Peer, file, name string) (string, error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return "", err
	}
	exports, err := p.List(ctx, "")
	if err != nil {
		return "", err
	}
	var dirs []string
	for _, x := range exports {
		if x.Access&files.Write != 0 && (name == "" || name == x.Name) {
			dirs = append(dirs, x.Name)
		}
	}
	switch {
	case len(dirs) == 1:
		return path.Join(dirs[0], filepath.Base(abs)), nil
	case name != "":
		return name, nil
	case len(dirs) == 0:
		return "", explain(files.ErrDenied, "the host accepts no files; it needs: ibverbx serve --write DIR")
	}
	return "", fmt.Errorf("%s: name its directory on the host: %s", file, strings.Join(dirs, ", "))
}
