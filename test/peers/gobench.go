package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// benchmark runs one benchmark of a package, at a commit of the project or in the working tree if commit is empty, and
// returns the figure with a unit.
func (b *bench) benchmark(commit, pkg, name, unit string, args ...string) side {
	return func(ctx context.Context) (float64, error) {
		binary, err := b.testBinary(ctx, commit, pkg)
		if err != nil {
			return 0, err
		}
		args := append([]string{"-test.run=^$", "-test.bench=" + name, "-test.benchtime=" + b.spell.String()}, args...)
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = append(os.Environ(), "IBVERBX_TEST_LONG=1")
		out, err := output(ctx, cmd)
		if err != nil {
			return 0, err
		}
		for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
			fields := strings.Fields(s.Text())
			for i := 3; i < len(fields) && strings.HasPrefix(fields[0], "Benchmark"); i += 2 {
				if fields[i] == unit {
					return strconv.ParseFloat(fields[i-1], 64)
				}
			}
		}
		return 0, fmt.Errorf("benchmark %s of %s printed no %s", name, pkg, unit)
	}
}

// testBinary builds the tests of a package once.
func (b *bench) testBinary(ctx context.Context, commit, pkg string) (string, error) {
	binary := filepath.Join(b.dir, "bench-"+commit+strings.ReplaceAll(pkg, "/", "_")+".test")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	tree := "."
	if commit != "" {
		var err error
		if tree, err = b.once(commit, func(dir string) error {
			if err := exec.CommandContext(ctx, "git", "cat-file", "-e", commit+"^{commit}").Run(); err != nil {
				return fmt.Errorf("commit %s is not in this clone: git fetch --unshallow", commit)
			}
			if _, err := output(ctx, exec.CommandContext(ctx, "git", "clone", "-q", "--shared", "--no-checkout", ".", dir)); err != nil {
				return err
			}
			_, err := output(ctx, exec.CommandContext(ctx, "git", "-C", dir, "checkout", "-q", commit))
			return err
		}); err != nil {
			return "", err
		}
	}
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-o", binary, pkg)
	build.Dir = tree
	_, err := output(ctx, build)
	return binary, err
}

// perSecond turns nanoseconds per operation into millions of operations per second.
func perSecond(s side) side {
	return func(ctx context.Context) (float64, error) {
		ns, err := s(ctx)
		if err != nil || ns == 0 {
			return 0, err
		}
		return 1e3 / ns, nil
	}
}
