package main

import (
	"context"
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ibverbx/files"
	"ibverbx/internal/printable"
)

const lsLong = `List the files and directories that a host serves: all exports, or the contents of the directory NAME.
Exports marked w accept files from ibverbx put.`

const lsExample = `  ibverbx ls node1 --token-file t
  ibverbx ls node1 models/v7 --token-file t
  ibverbx ls node1 --token-file t --json`

// listed is a file as --json prints it.
type listed struct {
	Type     string    `json:"type"` // entry
	Name     string    `json:"name"`
	Kind     string    `json:"kind"` // file, dir or link
	Size     int64     `json:"size,omitempty"`
	Mode     string    `json:"mode"`
	Modified time.Time `json:"modified"`
	Link     string    `json:"link,omitempty"`
	Access   string    `json:"access,omitempty"`
}

func newLs(s streams) *cobra.Command {
	f := &fileFlags{}
	cmd := &cobra.Command{
		Use:     "ls HOST[:PORT] [NAME]",
		Short:   "List the files that another host serves",
		Long:    lsLong,
		Example: lsExample,
		Args:    wantArgs(1, 2, "HOST [NAME]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := s.logged(f.json)
			n, err := f.list(cmd.Context(), s, args[0], strings.Join(args[1:], ""))
			return f.conclude(s, err, func(failure string) any {
				return resultLine{Type: lineResult, Entries: &n, carried: f.carried, Error: failure}
			})
		},
	}
	f.define(cmd, s, nil)
	return cmd
}

// list prints the entries of a directory, or all exports if name is empty, and returns their number.
func (f *fileFlags) list(ctx context.Context, s streams, host, name string) (int, error) {
	var list []files.Info
	err := f.withPeer(ctx, s, host, func(p *files.Peer) (err error) {
		if list, err = p.List(ctx, strings.TrimSuffix(name, "/")); err != nil {
			err = stopped(ctx, explainFile(host, name, "", err))
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	out := printer{w: s.out}
	for _, i := range list {
		l := listed{Type: lineEntry, Name: i.Name, Kind: "file", Size: i.Size, Mode: i.Mode.Perm().String(), Modified: i.ModTime, Link: i.Link}
		if i.Access != 0 {
			l.Access = i.Access.String()
		}
		mark := ""
		switch {
		case i.Mode.IsDir():
			l.Kind, mark = "dir", "/"
		case i.Mode.Type() == fs.ModeSymlink:
			l.Kind, mark = "link", " -> "+i.Link
		}
		if f.json {
			out.json(l)
			continue
		}
		out.printf("%-10s %12d  %s  %s%s\n", l.Mode[1:]+access(l.Access), i.Size, i.ModTime.Format(time.DateTime), printable.Text(i.Name), printable.Text(mark))
	}
	return len(list), out.err
}

// access is a letter behind the mode of a name that takes files.
func access(text string) string {
	if strings.Contains(text, "write") {
		return "w"
	}
	return ""
}
