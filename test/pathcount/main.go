// Command pathcount counts the code that one WRITE_WITH_IMM runs through at both ends, from PostRecv and
// PostSend to the two completions: functions and source files by package. It builds command request with
// coverage counters and sends requests between two VirtualQPs in one process, over memory and over UDP.
//
//	go run ./test/pathcount
//	go run ./test/pathcount -base ea2c338 -list
//
// The VirtualQPs have two rails, the policy RoundRobin and otherwise the default Config. Over UDP each end has
// its own links, as in two processes. A function counts if it is called at least once in two requests on
// average, after a warm-up. Less frequent work is counted separately as occasional. A function literal
// belongs to the function that contains it. Results over memory are exact. Over UDP the scheduler decides which goroutine
// reads a packet, so repeated runs may differ by a few functions.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "pathcount:", err)
		os.Exit(1)
	}
}

// options are the settings of a run.
type options struct {
	base, head string
	links      []string
	requests   int
	size       int
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("pathcount", flag.ContinueOnError)
	var o options
	flags.StringVar(&o.base, "base", "", "the `commit` to compare with")
	flags.StringVar(&o.head, "head", "", "the `commit` to measure; empty means the working tree")
	links := flags.String("links", "memory,udp", "the links to measure")
	flags.IntVar(&o.requests, "requests", 1000, "the number of requests measured")
	flags.IntVar(&o.size, "size", 4096, "the number of bytes per request")
	list := flags.Bool("list", false, "print the functions; with -base, those that only one commit runs through")
	asJSON := flags.Bool("json", false, "print JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if o.requests < 1 || o.size < 1 {
		return errors.New("-requests and -size must be at least 1")
	}
	o.links = strings.Split(*links, ",")
	results, err := o.measure()
	if err != nil {
		return err
	}
	if *asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(results)
	}
	return report(out, results, *list)
}

// measure counts the paths of the base, unless it is empty, and of the head.
func (o *options) measure() (results []result, err error) {
	dir, err := os.MkdirTemp("", "pathcount")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root, err := command("", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	commits := []string{o.head}
	if o.base != "" {
		commits = []string{o.base, o.head}
	}
	for i, commit := range commits {
		tree, name := root, "working tree"
		if commit != "" {
			tree, name = filepath.Join(dir, fmt.Sprint("tree", i)), commit
			if err := checkOut(root, tree, commit); err != nil {
				return nil, err
			}
		}
		binary := filepath.Join(dir, fmt.Sprint("request", i))
		if _, err := command(tree, "go", "build", "-cover", "-covermode=atomic", "-coverpkg="+module+"/...", "-o", binary, "./"+requestDir); err != nil {
			return nil, err
		}
		for _, link := range o.links {
			p, err := o.count(tree, binary, link)
			if err != nil {
				return nil, err
			}
			results = append(results, result{Commit: name, Link: link, path: p})
		}
	}
	return results, nil
}

// checkOut writes the files of a commit below dir, with the command request of this build, which the commit may not have.
func checkOut(root, dir, commit string) error {
	hash, err := command(root, "git", "rev-parse", "--verify", commit+"^{commit}")
	if err != nil {
		return err
	}
	if _, err := command(root, "git", "clone", "-q", "--no-checkout", ".", dir); err != nil {
		return err
	}
	if _, err := command(dir, "git", "checkout", "-q", hash); err != nil {
		return err
	}
	source := filepath.Join(dir, filepath.FromSlash(requestDir))
	if err := os.MkdirAll(source, 0o700); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(source, "main.go"), []byte(request), 0o600)
}

// count runs the requests over one link and returns the path of one.
func (o *options) count(tree, binary, link string) (path, error) {
	dir := binary + "." + link
	counters, exit := filepath.Join(dir, "counters"), filepath.Join(dir, "exit") // exit gets the counters of setup and warm-up
	for _, d := range []string{counters, exit} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return path{}, err
		}
	}
	cmd := exec.Command(binary, link, fmt.Sprint(o.requests), fmt.Sprint(o.size), counters)
	cmd.Env = append(os.Environ(), "GOCOVERDIR="+exit)
	if out, err := cmd.CombinedOutput(); err != nil {
		return path{}, fmt.Errorf("%w\n%s", err, out)
	}
	profile := filepath.Join(dir, "profile")
	if _, err := command(tree, "go", "tool", "covdata", "textfmt", "-i="+counters, "-o="+profile); err != nil {
		return path{}, err
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return path{}, err
	}
	return pathOf(tree, string(text), o.requests)
}

// command runs a program in a directory and returns its output.
func command(dir string, args ...string) (string, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
