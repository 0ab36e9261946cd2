package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// bench holds the programs that the sides run, built once, and the duration of a measurement.
type bench struct {
	dir   string // temporary files
	spell time.Duration
	tool  string // the ibverbx tool
	self  string // this program, for workers
	token string // a file with a secret
	hosts []*hosts
}

// joined returns two hosts joined by a link.
func (b *bench) joined(mtu int) *hosts {
	for _, h := range b.hosts {
		if h.mtu == mtu {
			return h
		}
	}
	h := &hosts{mtu: mtu}
	b.hosts = append(b.hosts, h)
	return h
}

// tearDown removes the network namespaces.
func (b *bench) tearDown() {
	for _, h := range b.hosts {
		h.tearDown()
	}
}

// setUp builds the programs.
func (b *bench) setUp(ctx context.Context) (err error) {
	if b.self, err = os.Executable(); err != nil {
		return err
	}
	b.tool, b.token = filepath.Join(b.dir, "ibverbx"), filepath.Join(b.dir, "token")
	if _, err := output(ctx, exec.CommandContext(ctx, "go", "build", "-o", b.tool, "./cmd/ibverbx")); err != nil {
		return err
	}
	return os.WriteFile(b.token, []byte(secret+"\n"), 0o600)
}

// once returns a directory below the temporary one, filled on first use. A directory whose filling failed is not used.
func (b *bench) once(name string, fill func(dir string) error) (string, error) {
	dir := filepath.Join(b.dir, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	part := dir + ".part"
	err := errors.Join(os.RemoveAll(part), os.Mkdir(part, 0o755))
	if err == nil {
		err = fill(part)
	}
	if err == nil {
		err = os.Rename(part, dir)
	}
	return dir, err
}

// serve returns a server of a directory.
func (b *bench) serve(ctx context.Context, dir string) *exec.Cmd {
	return exec.CommandContext(ctx, b.tool, "serve", dir, "--token-file", b.token, "--listen", "127.0.0.1:0")
}

// secret authenticates the processes of a measurement to each other.
const secret = "a secret among the processes of one measurement"

// output runs a program and returns its standard output.
func output(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	var errs bytes.Buffer
	cmd.Stderr = &errs
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	out, err := cmd.Output()
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(errs.Bytes()))
	}
	return out, err
}

// serving starts a program, waits until it prints a line with prefix, and calls f with the rest of
// that line. Then it terminates the program.
func serving(cmd *exec.Cmd, prefix string, f func(addr string) (float64, error)) (v float64, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	cmd.Stdout, cmd.Stderr = write, write
	err = cmd.Start()
	_ = write.Close()
	if err != nil {
		_ = read.Close()
		return 0, err
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = read.Close()
	}()
	var said strings.Builder
	for s := bufio.NewScanner(read); s.Scan(); {
		if _, addr, ok := strings.Cut(s.Text(), prefix); ok {
			go func() { _, _ = io.Copy(io.Discard, read) }() // prevents the server from blocking on a full pipe
			return f(strings.TrimSpace(addr))
		}
		fmt.Fprintln(&said, s.Text())
	}
	return 0, fmt.Errorf("%s ended: %s", strings.Join(cmd.Args, " "), strings.TrimSpace(said.String()))
}

// result is the part of a perf report that rows use.
type result struct {
	Bytes    float64 `json:"bytes_per_second"`
	Messages float64 `json:"messages_per_second"`
	Typical  float64 `json:"t_typical_us"`
}

func gbps(r result) float64     { return r.Bytes / 1e9 }
func millions(r result) float64 { return r.Messages / 1e6 }
func typical(r result) float64  { return r.Typical }

// perf measures with "ibverbx perf" in one process.
func (b *bench) perf(figure func(result) float64, args string) side {
	return func(ctx context.Context) (float64, error) {
		return b.report(ctx, figure, exec.CommandContext(ctx, b.tool, append([]string{"perf"}, strings.Fields(args)...)...))
	}
}

// report runs a client of perf and returns a figure of its only size.
func (b *bench) report(ctx context.Context, figure func(result) float64, cmd *exec.Cmd) (float64, error) {
	cmd.Args = append(cmd.Args, "--json", "-D", b.spell.String())
	out, err := output(ctx, cmd)
	if err != nil {
		return 0, err
	}
	var report struct{ Results []result }
	if err := json.Unmarshal(out, &report); err != nil || len(report.Results) != 1 {
		return 0, fmt.Errorf("%s: got %q, want JSON with one result", strings.Join(cmd.Args, " "), out)
	}
	return figure(report.Results[0]), nil
}

// perf2 measures with "ibverbx perf" between two processes. Both get the common flags; the client
// also gets the client flags.
func (b *bench) perf2(figure func(result) float64, common, client string) side {
	return b.perfIn(figure, nil, common, client)
}

// perfIn is perf2 with the client in another host.
func (b *bench) perfIn(figure func(result) float64, h *hosts, common, client string) side {
	return func(ctx context.Context) (float64, error) {
		if err := h.setUp(ctx); err != nil {
			return 0, err
		}
		flags := append(strings.Fields(common), "--token-file", b.token)
		server := append([]string{b.tool, "perf", "serve", "--listen", h.listen()}, flags...)
		return serving(h.command(ctx, 0, server...), "listening on ", func(addr string) (float64, error) {
			args := append([]string{b.tool, "perf"}, strings.Fields(client)...)
			return b.report(ctx, figure, h.command(ctx, 1, append(append(args, addr), flags...)...))
		})
	}
}

// pair measures a kind of worker between two processes, in GB/s.
func (b *bench) pair(kind string, size int) side { return b.pairIn(nil, kind, size) }

func (b *bench) pairIn(h *hosts, kind string, size int) side {
	return func(ctx context.Context) (float64, error) {
		if err := h.setUp(ctx); err != nil {
			return 0, err
		}
		return serving(h.command(ctx, 0, b.self, "worker", kind, "serve", h.listen(), strconv.Itoa(size)), "listening on ", func(addr string) (float64, error) {
			return number(ctx, h.command(ctx, 1, b.self, "worker", kind, addr, strconv.Itoa(size), b.spell.String()))
		})
	}
}

// alone measures a kind of worker in one process.
func (b *bench) alone(kind string, size int) side {
	return func(ctx context.Context) (float64, error) {
		return number(ctx, exec.CommandContext(ctx, b.self, "worker", kind, "", strconv.Itoa(size), b.spell.String()))
	}
}

// number runs a program that prints one number.
func number(ctx context.Context, cmd *exec.Cmd) (float64, error) {
	out, err := output(ctx, cmd)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
}

// memcpy measures libc's memcpy, in GB/s.
func (b *bench) memcpy(size int) side {
	return func(ctx context.Context) (float64, error) {
		program := filepath.Join(b.dir, "memcpy")
		if _, err := os.Stat(program); err != nil {
			if err := installed("gcc", "gcc"); err != nil {
				return 0, err
			}
			if _, err := output(ctx, exec.CommandContext(ctx, "gcc", "-O2", "-o", program, "test/peers/testdata/memcpy.c")); err != nil {
				return 0, err
			}
		}
		v, err := number(ctx, exec.CommandContext(ctx, program, strconv.Itoa(size), fmt.Sprint(b.spell.Seconds())))
		return v / 1e9, err
	}
}

// installed returns an error that names the Debian package of a missing program.
func installed(program, pkg string) error {
	if _, err := exec.LookPath(program); err != nil {
		return &missing{program, pkg}
	}
	return nil
}

// ucx measures with ucx_perftest between two processes, or within one over the transport self.
// iterations should take about half a second.
func (b *bench) ucx(figure func(result) float64, transports, test string, size, iterations int) side {
	return func(ctx context.Context) (float64, error) {
		if err := installed("ucx_perftest", "ucx-utils"); err != nil {
			return 0, err
		}
		count := max(1, int(float64(iterations)*b.spell.Seconds()/0.5))
		args := []string{"-f", "-v", "-t", test, "-s", strconv.Itoa(size), "-n", strconv.Itoa(count), "-w", strconv.Itoa(max(1, count/20))}
		if transports == "self" {
			return ucxResult(ctx, figure, transports, append([]string{"-l"}, args...)...)
		}
		port, err := freePort()
		if err != nil {
			return 0, err
		}
		server := exec.CommandContext(ctx, "stdbuf", "-oL", "ucx_perftest", "-p", port)
		server.Env = append(os.Environ(), "UCX_TLS="+transports)
		return serving(server, "Waiting for connection", func(string) (float64, error) {
			return ucxResult(ctx, figure, transports, append([]string{"127.0.0.1", "-p", port}, args...)...)
		})
	}
}

// ucxResult runs a client of ucx_perftest. The fields of its last line are: iterations, percentile,
// average and overall time in microseconds, average and overall MiB/s, average and overall messages
// per second.
func ucxResult(ctx context.Context, figure func(result) float64, transports string, args ...string) (float64, error) {
	cmd := exec.CommandContext(ctx, "ucx_perftest", args...)
	cmd.Env = append(os.Environ(), "UCX_TLS="+transports)
	out, err := output(ctx, cmd)
	if err != nil {
		return 0, err
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	fields, err := csv.NewReader(strings.NewReader(lines[len(lines)-1])).Read()
	if err != nil || len(fields) < 8 {
		return 0, errors.New("ucx_perftest printed " + strconv.Quote(lines[len(lines)-1]) + ", want eight numbers")
	}
	var v [8]float64
	for i := range v {
		if v[i], err = strconv.ParseFloat(strings.TrimSpace(fields[i]), 64); err != nil {
			return 0, err
		}
	}
	return figure(result{Typical: v[1], Bytes: v[5] * (1 << 20), Messages: v[7]}), nil
}
