// Command alternate compares the benchmarks of two commits on a busy machine: it builds both test binaries,
// runs them alternately many times, and prints the median ratio of adjacent runs. Disturbances affect both
// equally often.
//
//	go run ./test/alternate -base 'HEAD~1' -bench 'BenchmarkMessage/.*/lanes=16' -rounds 30
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "alternate:", err)
		os.Exit(1)
	}
}

// figures holds the nanoseconds of each benchmark in one run.
type figures map[string]float64

func run() (err error) {
	base := flag.String("base", "HEAD~1", "the commit to compare with")
	head := flag.String("head", "HEAD", "the commit to measure")
	pkg := flag.String("package", ".", "the package whose benchmarks are run")
	bench := flag.String("bench", ".", "pattern of the benchmarks (go test -bench)")
	benchtime := flag.String("benchtime", "10ms", "duration of each in a round (go test -benchtime)")
	rounds := flag.Int("rounds", 30, "number of alternations")
	flag.Parse()
	if *rounds < 1 {
		return errors.New("-rounds must be at least 1")
	}
	dir, err := os.MkdirTemp("", "alternate")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var binaries [2]string
	for i, commit := range []string{*base, *head} {
		if binaries[i], err = build(ctx, filepath.Join(dir, strconv.Itoa(i)), commit, *pkg); err != nil {
			return err
		}
	}
	args := []string{"-test.run=^$", "-test.bench=" + *bench, "-test.benchtime=" + *benchtime}
	ratios := map[string][]float64{}
	for round := range *rounds {
		var pair [2]figures
		for turn := range 2 {
			i := turn ^ round&1 // each is first in every second round
			if pair[i], err = measure(ctx, binaries[i], args); err != nil {
				return err
			}
		}
		for name, ns := range pair[1] {
			if before, ok := pair[0][name]; ok && before > 0 {
				ratios[name] = append(ratios[name], ns/before)
			}
		}
		fmt.Fprintf(os.Stderr, "\rround %d of %d", round+1, *rounds)
	}
	fmt.Fprintln(os.Stderr)
	return report(os.Stdout, ratios, *rounds)
}

// build checks a commit out below dir and builds its test binary.
func build(ctx context.Context, dir, commit, pkg string) (string, error) {
	hash, err := command(ctx, ".", "git", "rev-parse", "--verify", commit+"^{commit}")
	if err != nil {
		return "", err
	}
	if _, err := command(ctx, ".", "git", "clone", "-q", "--shared", "--no-checkout", ".", dir); err != nil {
		return "", err
	}
	if _, err := command(ctx, dir, "git", "checkout", "-q", hash); err != nil {
		return "", err
	}
	binary := dir + ".test"
	_, err = command(ctx, dir, "go", "test", "-c", "-o", binary, pkg)
	return binary, err
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

// measure runs the benchmarks once.
func measure(ctx context.Context, binary string, args []string) (figures, error) {
	out, err := exec.CommandContext(ctx, binary, args...).Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", filepath.Base(binary), err, out)
	}
	got := figures{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") || fields[3] != "ns/op" {
			continue
		}
		if ns, err := strconv.ParseFloat(fields[2], 64); err == nil {
			got[fields[0]] = ns
		}
	}
	return got, nil
}

// report prints the median ratio of each benchmark, with the quartiles, and of all.
func report(to *os.File, ratios map[string][]float64, rounds int) error {
	if len(ratios) == 0 {
		return errors.New("no benchmark ran in both commits: check -bench and -package")
	}
	var names []string
	var medians []float64
	for name := range ratios {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintf(to, "%-80s %8s %8s %8s\n", "new / old, "+strconv.Itoa(rounds)+" rounds", "median", "25%", "75%")
	for _, name := range names {
		r := ratios[name]
		slices.Sort(r)
		medians = append(medians, r[len(r)/2])
		fmt.Fprintf(to, "%-80s %8.3f %8.3f %8.3f\n", name, r[len(r)/2], r[len(r)/4], r[3*len(r)/4])
	}
	slices.Sort(medians)
	fmt.Fprintf(to, "%-80s %8.3f %8.3f %8.3f\n", "median of the medians, least and greatest", medians[len(medians)/2], medians[0], medians[len(medians)-1])
	return nil
}
