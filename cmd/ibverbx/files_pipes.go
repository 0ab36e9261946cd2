package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ibverbx/files"
	"ibverbx/internal/filter"
)

// wantSingle refuses flags that cannot apply to one file read from a pipe or written to one.
func (f *transferFlags) wantSingle(name string) error {
	switch {
	case f.json && name == "get":
		return refuse("--json", "standard output holds the file", "leave the flag out, or name a destination")
	case f.cfg.Delete, f.cfg.DryRun, f.names != nil, len(f.cfg.Filter) > 0:
		return refuse(dash, "--delete, --dry-run and filters need a directory", "leave them out")
	}
	return nil
}

// getPipe copies a remote file to standard output.
func (f *transferFlags) getPipe(ctx context.Context, s streams, host, name string) error {
	if err := f.wantSingle("get"); err != nil {
		return err
	}
	return f.metrics.during(ctx, s, func() error {
		return f.withPeer(ctx, s, host, func(p *files.Peer) error { return f.toStdout(ctx, s, p, host, name) })
	})
}

// putPipe stores standard input as a remote file.
func (f *transferFlags) putPipe(ctx context.Context, s streams, args []string) error {
	if err := f.wantSingle("put"); err != nil {
		return err
	}
	if name := args[2]; strings.HasSuffix(name, "/") {
		return refuse(name, "standard input has no name", "name the file")
	}
	file, remove, err := spool(ctx, s.in)
	if err != nil {
		return stopped(ctx, err)
	}
	defer remove()
	return f.transfer(ctx, s, args[0], func(ctx context.Context, p *files.Peer) ([]copying, error) {
		if info, err := p.Stat(ctx, path.Clean(args[2])); err == nil && info.Mode.IsDir() {
			return nil, refuse(args[2], "this is a directory, and standard input has no name", "name the file")
		}
		return []copying{{
			begin:   func() *files.Transfer { return p.Put(file, args[2], f.cfg) },
			explain: func(err error) error { return explainPut(args[0], file, args[2], err) },
		}}, nil
	})
}

// toStdout copies a remote file to standard output.
func (f *transferFlags) toStdout(ctx context.Context, s streams, p *files.Peer, host, name string) error {
	name = path.Clean(name)
	began := time.Now()
	var n int64
	err := interruptible(ctx, func() (err error) {
		n, err = f.stream(ctx, s.out, p, name)
		return err
	})
	if err != nil {
		return stopped(ctx, explainFile(host, name, "", err))
	}
	if !f.quiet {
		took := time.Since(began).Seconds()
		fmt.Fprintf(s.err, "%s in %.1f s (%s/s)\n", formatBytes(n), took, formatBytes(int64(float64(n)/max(took, 1e-9))))
	}
	return nil
}

// stream copies a peer's file to a writer, at most at the rate of --bwlimit, and returns its size.
func (f *transferFlags) stream(ctx context.Context, to io.Writer, p *files.Peer, name string) (n int64, err error) {
	file, err := p.FS(ctx, path.Dir(name)).Open(path.Base(name))
	if err != nil {
		return 0, err
	}
	defer func() {
		if closed := file.Close(); err == nil {
			err = closed
		}
	}()
	if info, err := file.Stat(); err != nil || info.IsDir() {
		return 0, errors.Join(err, refuse(name, "a directory cannot be written to standard output", "name a file"))
	}
	if f.cfg.BytesPerSecond == 0 {
		return io.Copy(to, file)
	}
	part := min(1<<20, f.cfg.BytesPerSecond)
	pause := time.Duration(float64(part) / float64(f.cfg.BytesPerSecond) * float64(time.Second))
	for next := time.Now(); ; next = next.Add(pause) {
		select {
		case <-time.After(time.Until(next)):
		case <-ctx.Done():
			return n, context.Cause(ctx)
		}
		k, err := io.CopyN(to, file, part)
		if n += k; errors.Is(err, io.EOF) {
			return n, nil
		} else if err != nil {
			return n, err
		}
	}
}

// spool stores standard input in a temporary file: its size and digest must be known before others can fetch it. remove removes the file.
func spool(ctx context.Context, in io.Reader) (name string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "ibverbx-put-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	name = filepath.Join(dir, "stdin")
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		remove()
		return "", nil, err
	}
	err = interruptible(ctx, func() error {
		_, err := io.Copy(file, in)
		return errors.Join(err, file.Close())
	})
	if err != nil {
		remove()
		return "", nil, err
	}
	return name, remove, nil
}

// interruptible runs a function that may block in a read or a write of a terminal or a pipe. If ctx is done first, the function is left
// running, and the error is the cause.
func interruptible(ctx context.Context, run func() error) error {
	done := make(chan error, 1)
	go func() { done <- run() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// namesFrom reads the names for --files-from, one per line. Empty lines and comments are skipped, as rsync does.
func (f *transferFlags) namesFrom(in func() io.Reader) func(string) error {
	return func(name string) error {
		from := in()
		if name != dash {
			file, err := os.Open(name)
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }() // it was only read
			from = file
		}
		f.names = []string{}
		lines := bufio.NewScanner(from)
		for lines.Scan() {
			line := strings.TrimSuffix(lines.Text(), "\r")
			if line == "" || line[0] == '#' || line[0] == ';' {
				continue
			}
			clean := path.Clean(strings.TrimLeft(line, "/"))
			if clean == ".." || strings.HasPrefix(clean, "../") {
				return fmt.Errorf("%q leads out of the source directory", line)
			}
			if clean == "." {
				return fmt.Errorf("%q is the source directory itself", line)
			}
			f.names = append(f.names, clean)
		}
		return lines.Err()
	}
}

// parts returns the configurations for the names of --files-from: one, or several for a list that is too long for one filter.
func (f *transferFlags) parts() (all []files.TransferConfig) {
	if f.names == nil {
		return []files.TransferConfig{f.cfg}
	}
	slices.Sort(f.names)
	f.names = slices.Compact(f.names)
	own := 0
	for _, rule := range f.cfg.Filter {
		own += len(rule) + 1
	}
	size := filter.MaxLen + 1
	for _, name := range f.names {
		if size+len(name)+3 > filter.MaxLen {
			cfg := f.cfg
			cfg.Filter = slices.Clone(f.cfg.Filter)
			all, size = append(all, cfg), own
		}
		last := &all[len(all)-1]
		last.Filter = append(last.Filter, "= "+name)
		size += len(name) + 3
	}
	return all
}

// isPattern reports whether a name has a character of a pattern.
func isPattern(name string) bool { return strings.ContainsAny(name, "*?[") }

// sourceNames are the sources of get or put.
type sourceNames struct {
	names []string
	// together has the names that can be copied with others in the same directory.
	together map[string]bool
}

// expand replaces patterns by the served names that match, in their order. A served name with such characters stays.
func expand(ctx context.Context, p *files.Peer, host string, names []string) (all sourceNames, err error) {
	all.together = map[string]bool{}
	for _, name := range names {
		if !isPattern(name) || servesName(ctx, p, name) {
			all.names = append(all.names, name)
			continue
		}
		found, err := glob(ctx, p, path.Clean(name))
		switch {
		case errors.Is(err, path.ErrBadPattern):
			return all, refuse(name, "the pattern is malformed", `close the bracket, or write \[ for a bracket`)
		case err != nil:
			return all, err
		case len(found) == 0:
			return all, explain(files.ErrNotFound, "%s serves no name that matches %q; see what it serves: ibverbx ls %s", host, name, host)
		}
		for _, name := range found {
			if !all.together[name] && !slices.Contains(names, name) {
				all.together[name] = true
				all.names = append(all.names, name)
			}
		}
	}
	return all, nil
}

// glob returns the served names that match a pattern. Names with a dot in front match only a pattern that has it too.
func glob(ctx context.Context, p *files.Peer, pattern string) (all []string, err error) {
	parts := strings.Split(pattern, "/")
	first := slices.IndexFunc(parts, isPattern)
	all = []string{strings.Join(parts[:first], "/")}
	for i, part := range parts[first:] {
		if _, err := path.Match(part, ""); err != nil {
			return nil, err
		}
		last := first+i == len(parts)-1
		var next []string
		for _, dir := range all {
			found, err := matches(ctx, p, dir, part, last)
			if err != nil {
				return nil, err
			}
			next = append(next, found...)
		}
		all = next
	}
	return all, nil
}

// matches returns the names in a served directory that match a part of a pattern, only directories unless it is the last part.
func matches(ctx context.Context, p *files.Peer, dir, part string, last bool) (all []string, err error) {
	if dir != "" {
		info, err := p.Stat(ctx, dir)
		if errors.Is(err, files.ErrNotFound) || err == nil && !info.Mode.IsDir() {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
	list, err := p.List(ctx, dir)
	if err != nil {
		return nil, err
	}
	for _, i := range list {
		base := path.Base(i.Name)
		if ok, _ := path.Match(part, base); !ok || base[0] == '.' && part[0] != '.' || !last && !i.Mode.IsDir() {
			continue
		}
		all = append(all, i.Name)
	}
	return all, nil
}

// together returns a transfer of a directory, or several, for the sources in it that can be copied together: files are then copied as quickly
// as a tree. Others need a transfer each. So do all with --delete, and with patterns from the top of each source.
func (f *transferFlags) together(from sourceNames, begin func(dir string, cfg files.TransferConfig) copying) (all []copying, others []string) {
	anchored := slices.ContainsFunc(f.cfg.Filter, func(rule string) bool { return strings.HasPrefix(rule[2:], "/") })
	if anchored || f.cfg.Delete || f.names != nil {
		return nil, from.names
	}
	groups := map[string]*transferFlags{}
	for _, name := range from.names {
		dir, base := path.Split(name)
		if !from.together[name] || dir == "" || !fs.ValidPath(base) || strings.Contains(base, "\n") {
			others = append(others, name)
			continue
		}
		dir = path.Clean(dir)
		if groups[dir] == nil {
			groups[dir] = &transferFlags{cfg: f.cfg}
			groups[dir].cfg.KeepTop = true
		}
		groups[dir].names = append(groups[dir].names, base)
	}
	for _, dir := range slices.Sorted(maps.Keys(groups)) {
		for _, cfg := range groups[dir].parts() {
			all = append(all, begin(dir, cfg))
		}
	}
	return all, others
}
