package main

import (
	"io/fs"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const lsLong = `List the files and directories that a host serves: all exports, or the contents of the directory NAME.
Exports marked w accept files from ibverbx put.`

const lsExample = `  ibverbx ls node1 --token-file t
  ibverbx ls node1 models/v7 --token-file t
  ibverbx ls node1 --token-file t --json`

// listed is a file as --json prints it.
type listed struct {
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
			ctx := cmd.Context()
			e, p, err := f.connect(ctx, s, args[0])
			if err != nil {
				return stopped(ctx, err)
			}
			list, err := p.List(ctx, strings.TrimSuffix(strings.Join(args[1:], ""), "/"))
			if closed := e.close(); err == nil {
				err = closed
			}
			if err != nil {
				return stopped(ctx, explainFile(args[0], strings.Join(args[1:], ""), "", err))
			}
			out := printer{w: s.out}
			for _, i := range list {
				l := listed{Name: i.Name, Kind: "file", Size: i.Size, Mode: i.Mode.Perm().String(), Modified: i.ModTime, Link: i.Link}
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
				out.printf("%-10s %12d  %s  %s%s\n", l.Mode[1:]+access(l.Access), i.Size, i.ModTime.Format(time.DateTime), printable(i.Name), printable(mark))
			}
			return out.err
		},
	}
	f.define(cmd, s, nil)
	return cmd
}

// access is a letter behind the mode of a name that takes files.
func access(text string) string {
	if strings.Contains(text, "write") {
		return "w"
	}
	return ""
}
