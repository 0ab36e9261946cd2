package main

import (
	"cmp"
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"ibverbx/files"
)

const getLong = `Get a file or a directory that ibverbx serve serves on another host. NAME is what ibverbx ls lists.
A file goes to DEST, or into DEST if that is a directory. Of a directory everything in it goes to DEST.
Without DEST it goes to the current directory, under the last element of NAME.

Every chunk of 1 MiB has a digest, which is checked when the chunk was written. A file grows beside its
place as .NAME.ibx-partial and gets its name when it is complete. If anything goes wrong, run the same
command again: what is there is checked and not sent again. That works after Ctrl-C, a crash, a full disk
and a lost host.

Exit status: 0 all is there and verified; 1 failed; 2 wrong command line; 3 not found, or not allowed;
4 the file changed meanwhile, or a digest is wrong; 5 the host cannot be reached, or was lost;
130 or 143 after Ctrl-C or SIGTERM. After 1, 5, 130 and 143 the partial file stays.`

const getExample = `  ibverbx get node1 models/v7/model.safetensors --token-file t
  ibverbx get node1 models/v7 /data --token-file t
                                            all files of a directory
  ibverbx get node1:9000 models/v7 /data --token-file t -j 16
  ibverbx get node1 models/v7 /data --token-file t --json`

const putLong = `Give a file or a directory to another host, where ibverbx serve --write names a directory for it. NAME is
the name there and begins with that of the directory. Without NAME, or if it is the directory itself, the
file keeps the last element of PATH. The other host fetches the file, with the promises of ibverbx get.

Exit status: as of ibverbx get.`

const putExample = `  ibverbx serve --write /incoming --token-file t    on node1
  ibverbx put node1 results.tar --token-file t      becomes incoming/results.tar
  ibverbx put node1 ./run7 incoming/runs/7 --token-file t`

// transferFlags are the flags of get and put.
type transferFlags struct {
	fileFlags
	cfg  files.TransferConfig
	sync string
}

func newGet(s streams) *cobra.Command {
	f := &transferFlags{}
	cmd := &cobra.Command{
		Use:     "get HOST[:PORT] NAME [DEST]",
		Short:   "Get a file or a directory from another host",
		Long:    getLong,
		Example: getExample,
		Args:    wantArgs(2, 3, "a host, a name and perhaps a place"),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := f.transfer(cmd.Context(), s, args[0], func(_ context.Context, p *files.Peer) (*files.Transfer, error) {
				return p.GetFile(strings.TrimSuffix(args[1], "/"), strings.Join(args[2:], ""), f.cfg), nil
			})
			return explainFile(args[0], args[1], cmp.Or(strings.Join(args[2:], ""), path.Base(args[1])), err)
		},
	}
	f.define(cmd, s)
	cmd.Flags().StringVar(&f.sync, "sync", "file", "`what` is on the disk at the end: never, file (the bytes) or dir (the names too)")
	cmd.Flags().IntVarP(&f.cfg.Parallel, "jobs", "j", 8, "`number` of files of a directory at a time")
	return cmd
}

func newPut(s streams) *cobra.Command {
	f := &transferFlags{sync: "file"}
	cmd := &cobra.Command{
		Use:     "put HOST[:PORT] PATH [NAME]",
		Short:   "Give a file or a directory to another host",
		Long:    putLong,
		Example: putExample,
		Args:    wantArgs(2, 3, "a host, a path and perhaps a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.transfer(cmd.Context(), s, args[0], func(ctx context.Context, p *files.Peer) (*files.Transfer, error) {
				name, err := putName(ctx, p, args[1], strings.TrimSuffix(strings.Join(args[2:], ""), "/"))
				if err != nil {
					return nil, err
				}
				return p.PutFile(args[1], name, f.cfg), nil
			})
		},
	}
	f.define(cmd, s)
	return cmd
}

func (f *transferFlags) define(cmd *cobra.Command, s streams) {
	f.fileFlags.define(cmd, s)
	cmd.Flags().BoolVar(&f.cfg.Fresh, "fresh", false, "begin again: use nothing that is there")
	f.metrics.define(cmd.Flags())
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
			err = newFileShow(s, &f.fileFlags, p).run(ctx, t)
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
