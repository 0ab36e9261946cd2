package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"ibverbx/files"
)

// copying is a transfer of one source.
type copying struct {
	begin   func() *files.Transfer
	explain func(error) error
}

// toPipe reports whether get writes to standard output, and fromPipe whether put reads standard input.
func toPipe(args []string) bool   { return len(args) == 3 && args[2] == dash }
func fromPipe(args []string) bool { return len(args) == 3 && args[1] == dash }

// wantFiles checks that a host and at least one source are named, and that no local path is a dash, unless piped accepts it.
func wantFiles(what string, piped func(args []string) bool, local func(args []string) []string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := wantArgs(2, len(args), what)(cmd, args); err != nil {
			return err
		}
		for _, name := range local(args) {
			if name == dash && !piped(args) {
				return refuse(dash, "only one file can be a pipe: get HOST NAME -, or put HOST - NAME", "use ./- for a file of this name")
			}
		}
		return nil
	}
}

// getAll returns the transfers of get for its names and its destination.
func (f *transferFlags) getAll(ctx context.Context, p *files.Peer, host string, args []string) ([]copying, error) {
	names, dest := args, ""
	if len(args) > 1 {
		names, dest = args[:len(args)-1], args[len(args)-1]
	}
	sources, err := expand(ctx, p, host, names)
	if err != nil {
		return nil, err
	}
	names = sources.names
	if len(names) > 1 && dest == "" { // one pattern
		dest = "./"
	}
	info, err := os.Stat(dest)
	switch isDir := err == nil && info.IsDir(); {
	case dest == "" || isDir:
	case err != nil && !strings.HasSuffix(dest, "/") && !isLocal(dest) && servesName(ctx, p, dest):
		return nil, ambiguous(host, names, dest)
	case len(names) > 1 && (err == nil || !strings.HasSuffix(dest, "/")):
		return nil, refuse(dest, "several files need a directory as the last argument", "name an existing one, or end it with a slash")
	}
	if len(names) > 1 && !f.cfg.DryRun {
		if err := os.MkdirAll(dest, 0o777); err != nil {
			return nil, err
		}
	}
	if len(names) == 1 {
		return f.getOne(p, host, names[0], dest), nil
	}
	seen := map[string]string{}
	for _, name := range names {
		if err := once(name, seen); err != nil {
			return nil, err
		}
	}
	all, others := f.together(sources, func(dir string, cfg files.TransferConfig) copying {
		return copying{
			begin:   func() *files.Transfer { return p.Get(dir, dest, cfg) },
			explain: func(err error) error { return explainFile(host, dir, dest, err) },
		}
	})
	for _, name := range others {
		all = append(all, f.getOne(p, host, name, path.Join(dest, path.Base(name)))...)
	}
	return all, nil
}

// getOne returns the transfers of one name: several if --files-from is split.
func (f *transferFlags) getOne(p *files.Peer, host, name, to string) (all []copying) {
	name = strings.TrimSuffix(name, "/")
	for _, cfg := range f.parts() {
		all = append(all, copying{
			begin:   func() *files.Transfer { return p.Get(name, to, cfg) },
			explain: func(err error) error { return explainFile(host, name, orBase(to, name), err) },
		})
	}
	return all
}

// orBase returns a destination, by default the last element of a name.
func orBase(dest, name string) string {
	if dest == "" {
		return path.Base(name)
	}
	return dest
}

// once refuses two sources with the same last element.
func once(source string, seen map[string]string) error {
	base := path.Base(filepath.ToSlash(source))
	if other, ok := seen[base]; ok {
		return refuse(source, fmt.Sprintf("%s has the same name", other), "copy them to different directories")
	}
	seen[base] = source
	return nil
}

// isLocal reports whether a destination cannot be the name of a served file.
func isLocal(dest string) bool {
	return filepath.IsAbs(dest) || strings.HasPrefix(dest, "./") || strings.HasPrefix(dest, "../")
}

// servesName reports whether a host serves a name.
func servesName(ctx context.Context, p *files.Peer, name string) bool {
	_, err := p.Stat(ctx, path.Clean(name))
	return err == nil
}

// ambiguous refuses a destination that is also the name of a served file.
func ambiguous(host string, names []string, dest string) error {
	all := strings.Join(names, " ")
	return refuse(dest, fmt.Sprintf("%s serves this name too, and it does not exist here", host),
		fmt.Sprintf("to copy it as well, add a directory: get %s %s %s DEST/; to store %s under this name: get %s %s ./%s", host, all, dest, all, host, all, dest))
}

// putAll returns the transfers of put for its paths and its name.
func (f *transferFlags) putAll(ctx context.Context, p *files.Peer, host string, args []string) ([]copying, error) {
	sources, dest := args, ""
	if len(args) > 1 {
		sources, dest = args[:len(args)-1], args[len(args)-1]
	}
	name := strings.TrimSuffix(dest, "/")
	if len(sources) > 1 && name == dest {
		if info, err := p.Stat(ctx, name); err != nil && !errors.Is(err, files.ErrNotFound) && !errors.Is(err, files.ErrDenied) {
			return nil, err
		} else if err != nil || !info.Mode.IsDir() {
			return nil, refuse(dest, "several files need a directory of the host as the last argument", "name an existing one, or end it with a slash")
		}
	}
	if len(sources) == 1 {
		to, err := putName(ctx, p, sources[0], name)
		return f.putOne(p, host, sources[0], to), err
	}
	grouped := sourceNames{together: map[string]bool{}}
	seen, alone := map[string]string{}, map[string][]copying{}
	for _, file := range sources {
		abs, err := filepath.Abs(file)
		if err == nil {
			err = once(abs, seen)
		}
		if err != nil {
			return nil, err
		}
		source, isPlain := resolveDir(file)
		grouped.names = append(grouped.names, source)
		grouped.together[source] = isPlain && len(f.cfg.Filter) == 0 // patterns do not apply to the names of sources
		alone[source] = f.putOne(p, host, file, path.Join(name, filepath.Base(abs)))
	}
	all, others := f.together(grouped, func(dir string, cfg files.TransferConfig) copying {
		return copying{
			begin:   func() *files.Transfer { return p.Put(dir, path.Clean(name), cfg) },
			explain: func(err error) error { return explainPut(host, dir, name, err) },
		}
	})
	for _, source := range others {
		all = append(all, alone[source]...)
	}
	return all, nil
}

// resolveDir resolves the symbolic links in the directory of a path, as the system does: x/.. may be elsewhere if x is a link, and even if it is the
// current directory. plain is set for a file or directory, without a link.
func resolveDir(file string) (resolved string, plain bool) {
	dir, base := filepath.Split(file)
	if !filepath.IsAbs(dir) {
		wd, err := os.Getwd()
		if err != nil {
			return file, false
		}
		dir = wd + string(filepath.Separator) + dir
	}
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil || base == "" || base == "." || base == ".." {
		return file, false
	}
	resolved = filepath.Join(dir, base)
	info, err := os.Lstat(resolved)
	if err != nil || info.Mode().Type()&^fs.ModeDir != 0 {
		return file, false
	}
	return resolved, true
}

// putOne returns the transfers of one local path: several if --files-from is split.
func (f *transferFlags) putOne(p *files.Peer, host, file, to string) (all []copying) {
	for _, cfg := range f.parts() {
		all = append(all, copying{
			begin:   func() *files.Transfer { return p.Put(file, to, cfg) },
			explain: func(err error) error { return explainPut(host, file, to, err) },
		})
	}
	return all
}

// putName returns the name for a file: the given one, or one below a directory of the host.
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
