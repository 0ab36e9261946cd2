package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"

	"ibverbx/internal/enginetest"
	"ibverbx/peer"
)

// asCommand makes the test binary the command itself, for tests of several processes.
const asCommand = "IBVERBX_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	_ = flag.Set("test.parallel", "8") // parallel tests wait most of the time; a flag of go test overrides it
	goleak.VerifyTestMain(m)
}

// providerSoftNIC is the default of --provider in tests.
const providerSoftNIC = peer.ProviderSoftNIC

// noAuth is the authentication of tests that are not about it, on both sides: deriving a key from a token takes tens of milliseconds.
const noAuth = "--insecure-plaintext-on-loopback"

// command runs a command line in process.
func command(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	status = run(ctx, args, streams{in: strings.NewReader(""), out: &out, err: &err, provider: providerSoftNIC})
	return status, out.String(), err.String()
}

// succeed runs a command line that must succeed without a word on stderr.
func succeed(t *testing.T, args ...string) string {
	t.Helper()
	status, out, err := command(t.Context(), args...)
	if status != exitOK || err != "" {
		t.Fatalf("ibverbx %s: status %d, stderr %q", strings.Join(args, " "), status, err)
	}
	return out
}

// says checks that a text has every part that is wanted.
func says(t *testing.T, text string, want ...string) {
	t.Helper()
	for _, part := range want {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

// refused runs a command line that is wrong: nothing is printed, and stderr says what is wanted.
func refused(t *testing.T, args string, want ...string) {
	t.Helper()
	status, out, stderr := command(t.Context(), strings.Fields(args)...)
	if status != exitUsage || out != "" || !strings.HasPrefix(stderr, "ibverbx: ") {
		t.Errorf("ibverbx %s: status %d, stdout %q, stderr %q; want %d, nothing, and the name first", args, status, out, stderr, exitUsage)
	}
	says(t, stderr, append(want, "Run 'ibverbx")...)
}

// fails runs a command line that must exit with a status, print nothing, and have some text on stderr.
func fails(t *testing.T, status int, want string, args ...string) {
	t.Helper()
	got, out, stderr := command(t.Context(), args...)
	if got != status || out != "" || !strings.Contains(stderr, want) {
		t.Errorf("ibverbx %s: status %d, stdout %q, stderr %q; want %d, nothing, and %q", strings.Join(args, " "), got, out, stderr, status, want)
	}
}

// lineWith returns the first line that has the text.
func lineWith(out, text string) string {
	for line := range strings.Lines(out) {
		if strings.Contains(line, text) {
			return strings.TrimRight(line, "\n")
		}
	}
	return ""
}

// object runs a command line with --json and returns what it prints, one object.
func object(t *testing.T, args ...string) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(succeed(t, append(args, "--json")...)))
	var v map[string]any
	enginetest.WantOK(t, "Decode", d.Decode(&v))
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		t.Errorf("there is more than one object")
	}
	return v
}

func TestUsageErrors(t *testing.T) {
	for _, tt := range []struct {
		args string
		want []string // parts of stderr
	}{
		{"prf", []string{`no command "prf"`, "did you mean perf or put?", "Run 'ibverbx --help'"}},
		{"xyzzy", []string{`no command "xyzzy"`, "cert", "devices", "doctor", "perf", "sim", "token", "or version"}},
		{"perf push", []string{`operation "push"`, "write, read, send or atomic", "Run 'ibverbx perf --help'"}},
		{"perf read write", []string{"one operation", "Run 'ibverbx perf --help'"}},
		{"perf --sice 8", []string{"unknown flag: --sice"}},
		{"perf -s 64KB", []string{"--size", "64KiB"}},
		{"perf -s 0", []string{"--size", "at least 1 byte"}},
		{"perf -s 8,x", []string{"--size", `"x"`}},
		{"perf -s 8 -a", []string{"--all", "--size"}},
		{"perf -n 0", []string{"--iters", "from 1"}},
		{"perf -n many", []string{"--iters many"}},
		{"perf -D 0", []string{"--duration", "500ms"}},
		{"perf -D soon", []string{"--duration", "500ms"}},
		{"perf -n 5 -D 5", []string{"--iters", "--duration", "drop one"}},
		{"perf -c XRC", []string{"--connection", "RC, UC or UD"}},
		{"perf read -c UC", []string{"--connection UC", "UC has no read"}},
		{"perf -c UD", []string{"UD has no write", "measure send"}},
		{"perf send -c UD -s 8K", []string{"--size 8192", "4096"}},
		{"perf -m 1500", []string{"--mtu 1500", "4096"}},
		{"perf --lat -t 2", []string{"--tx-depth 2", "--lat"}},
		{"perf atomic -s 16", []string{"--size 16", "8 bytes"}},
		{"devices soft0", []string{"no arguments", "Run 'ibverbx devices --help'"}},
		{"version now", []string{"no arguments"}},
	} {
		refused(t, tt.args, tt.want...)
	}
}

func TestHelpTeaches(t *testing.T) {
	for args, want := range map[string]string{
		"":             "ibverbx perf",
		"--help":       "Exit statuses: docs/commands.md",
		"devices":      "hca_id: soft0",
		"help":         "List devices, ports, GIDs, limits and GPUs",
		"perf --help":  "half the round trip",
		"devices -h":   "ibv_devinfo",
		"help perf":    "--bidirectional",
		"version -h":   "--json",
		"get --help":   "Run the same command again",
		"serve --help": "read-only unless --write",
		"forward -h":   "ssh -L does",
		"help devices": "--ib-dev",
	} {
		out := succeed(t, strings.Fields(args)...)
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("ibverbx %s does not say %q:\n%s", args, want, out)
		}
	}
}

// TestHelpFits: the help of every command fits 80 columns, begins with the usage, has an example, and says what each flag
// does.
func TestHelpFits(t *testing.T) {
	var visit func(path []string, cmd *cobra.Command)
	visit = func(path []string, cmd *cobra.Command) {
		out := succeed(t, append(slices.Clone(path), "--help")...)
		name := cmd.CommandPath()
		all := out
		if cmd.Flags().Lookup("help-all") != nil {
			all = succeed(t, append(slices.Clone(path), "--help-all")...)
		}
		for line := range strings.SplitSeq(out+all, "\n") {
			if n := utf8.RuneCountInString(line); n > columns {
				t.Errorf("%s --help has a line of %d columns, want at most %d: %q", name, n, columns, line)
			}
		}
		if !strings.HasPrefix(out, "Usage:\n  "+name) {
			t.Errorf("%s --help begins with %.40q, want the usage", name, out)
		}
		if !strings.Contains(out, "\nExamples:\n") {
			t.Errorf("%s --help has no example", name)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && (f.Usage == "" || !strings.Contains(all, "--"+f.Name)) {
				t.Errorf("%s --help does not say what --%s does", name, f.Name)
			}
		})
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				visit(append(slices.Clone(path), c.Name()), c)
			}
		}
	}
	visit(nil, newRoot(streams{in: strings.NewReader(""), out: io.Discard, err: io.Discard}))
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestOutputErrorsAreNoticed(t *testing.T) {
	for _, args := range []string{"perf -s 8 -n 10", "perf -s 8 -n 10 --json", "devices", "devices --json", "version", "version --json"} {
		var stderr bytes.Buffer
		status := run(t.Context(), strings.Fields(args), streams{out: full{}, err: &stderr, provider: providerSoftNIC})
		if status != exitFailure || stderr.Len() == 0 {
			t.Errorf("ibverbx %s: status %d, stderr %q; want %d and a reason", args, status, stderr.String(), exitFailure)
		}
	}
}

func TestVersion(t *testing.T) {
	if out := succeed(t, "version"); !strings.HasPrefix(out, "ibverbx ") || !strings.Contains(out, "built with: go1.") {
		t.Errorf("version prints %q", out)
	}
	if out := succeed(t, "--version"); !strings.HasPrefix(out, "ibverbx ") {
		t.Errorf("--version prints %q", out)
	}
	v := object(t, "version")
	for _, key := range []string{"module", "version", "go", "platform"} {
		if s, _ := v[key].(string); s == "" {
			t.Errorf("no %q in %v", key, v)
		}
	}
}
