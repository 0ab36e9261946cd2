// Command pathcount counts the code that one WRITE_WITH_IMM executes on both sides, from PostRecv
// and PostSend to the two completions: functions and source files by package. It builds command
// request with coverage counters and sends requests between two VirtualQPs in one process, over
// memory and over UDP.
//
//	go run ./test/pathcount
//	go run ./test/pathcount -base ea2c338 -list
//
// The VirtualQPs have two rails, the policy RoundRobin and otherwise the default Config. Over UDP each end has
// its own links, as in two processes. A function counts if one of its blocks runs at least once in two requests
// on average, after a warm-up. A function literal belongs to the function that contains it. Results over memory are
// exact. Over UDP the scheduler decides which goroutine reads a packet, so repeated runs may differ by a few functions.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
)

const (
	requests   = 1000
	requestDir = "test/pathcount/request"
)

//go:embed request/main.go
var request string

func main() {
	base := flag.String("base", "", "the `commit` to compare with")
	list := flag.Bool("list", false, "print the functions; with -base, those that only one commit runs through")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *base, *list); err != nil {
		fmt.Fprintln(os.Stderr, "pathcount:", err)
		os.Exit(1)
	}
}

// tree is a source tree and its build of command request.
type tree struct{ name, dir, binary string }

// run measures the working tree, and the base unless it is empty.
func run(ctx context.Context, out io.Writer, base string, list bool) (err error) {
	dir, err := os.MkdirTemp("", "pathcount")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root, err := command(ctx, "", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	trees := []tree{{"working tree", root, filepath.Join(dir, "request")}}
	if base != "" {
		old := tree{base, filepath.Join(dir, "base"), filepath.Join(dir, "request.base")}
		if err := checkOut(ctx, root, old.dir, base); err != nil {
			return err
		}
		trees = []tree{old, trees[0]}
	}
	for _, t := range trees {
		if _, err := command(ctx, t.dir, "go", "build", "-cover", "-covermode=atomic", "-coverpkg=ibverbx/...", "-o", t.binary, "./"+requestDir); err != nil {
			return err
		}
	}
	for _, link := range []string{"memory", "udp"} {
		paths := make([][]function, len(trees))
		for i, t := range trees {
			if paths[i], err = t.count(ctx, link); err != nil {
				return err
			}
		}
		if err := report(out, link, trees, paths, list); err != nil {
			return err
		}
	}
	return nil
}

// checkOut writes the files of a commit below dir, with the command request of this build, which the commit may not have.
func checkOut(ctx context.Context, root, dir, commit string) error {
	if _, err := command(ctx, root, "git", "clone", "-q", "--shared", "--no-checkout", ".", dir); err != nil {
		return err
	}
	hash, err := command(ctx, root, "git", "rev-parse", "--verify", commit+"^{commit}")
	if err != nil {
		return err
	}
	if _, err := command(ctx, dir, "git", "checkout", "-q", hash); err != nil {
		return err
	}
	source := filepath.Join(dir, requestDir)
	if err := os.MkdirAll(source, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(source, "main.go"), []byte(request), 0o600)
}

// function is a function on a path. Its name omits the receiver's type.
type function struct{ file, name string }

func (f function) String() string { return path.Base(path.Dir(f.file)) + "." + f.name }

// count runs requests over a link and returns the functions that one request executes.
func (t *tree) count(ctx context.Context, link string) (all []function, err error) {
	counters, exit := t.binary+"."+link, t.binary+"."+link+".exit" // exit receives the counters of setup and warm-up
	if err := errors.Join(os.Mkdir(counters, 0o700), os.Mkdir(exit, 0o700)); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(counters), os.RemoveAll(exit)) }()
	if _, err := command(ctx, t.dir, "env", "GOCOVERDIR="+exit, t.binary, link, fmt.Sprint(requests), counters); err != nil {
		return nil, err
	}
	profile := filepath.Join(counters, "profile")
	if _, err := command(ctx, t.dir, "go", "tool", "covdata", "textfmt", "-i="+counters, "-o="+profile); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return nil, err
	}
	if text, err = frequent(string(text)); err != nil {
		return nil, err
	}
	if err := os.WriteFile(profile, text, 0o600); err != nil {
		return nil, err
	}
	table, err := command(ctx, t.dir, "go", "tool", "cover", "-func="+profile)
	for line := range strings.Lines(table) {
		if f := strings.Fields(line); len(f) == 3 && f[0] != "total:" && f[2] != "0.0%" {
			file, _, _ := strings.Cut(f[0], ":")
			all = append(all, function{file, f[1]})
		}
	}
	return all, err
}

// frequent returns a coverage profile without command request and without blocks executed in fewer
// than half of the requests.
func frequent(profile string) (kept []byte, err error) {
	for line := range strings.Lines(profile) {
		var count uint64
		if !strings.HasPrefix(line, "mode:") {
			if _, err := fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &count); err != nil {
				return nil, fmt.Errorf("coverage profile: %q: %w", line, err)
			}
			if 2*count < requests || strings.HasPrefix(line, "ibverbx/test/") {
				continue
			}
		}
		kept = append(kept, line...)
	}
	return kept, nil
}

// report prints functions and files by package, with two columns for each tree, and the functions if list is set.
func report(out io.Writer, link string, trees []tree, paths [][]function, list bool) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	packages := []string{"total"}
	fmt.Fprintf(w, "WRITE_WITH_IMM over %s", link)
	for i, t := range trees {
		fmt.Fprintf(w, "\t%s\t", t.name)
		for _, f := range paths[i] {
			packages = append(packages, path.Dir(f.file))
		}
	}
	fmt.Fprintln(w)
	slices.Sort(packages)
	for _, pkg := range slices.Compact(packages) {
		fmt.Fprint(w, pkg)
		for _, p := range paths {
			functions, files := 0, map[string]bool{}
			for _, f := range p {
				if pkg == "total" || path.Dir(f.file) == pkg {
					functions++
					files[f.file] = true
				}
			}
			fmt.Fprintf(w, "\t%d functions\t%d files", functions, len(files))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	for i := range trees {
		for _, f := range paths[i] {
			other := slices.ContainsFunc(paths[len(paths)-1-i], func(o function) bool { return o.String() == f.String() })
			if list && (len(trees) == 1 || !other) {
				fmt.Fprintf(w, "%s\t%s\t%s\n", trees[i].name, f, f.file)
			}
		}
	}
	return w.Flush()
}

// command runs a program in a directory and returns its output.
func command(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
