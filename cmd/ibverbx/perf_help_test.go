package main

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// flagsIn lists the flags that a help text describes.
func flagsIn(help string) (names []string) {
	for line := range strings.SplitSeq(help, "\n") {
		words := strings.Fields(line)
		if len(words) > 1 && strings.HasPrefix(words[0], "-") && strings.HasSuffix(words[0], ",") {
			words = words[1:]
		}
		if len(words) > 0 && strings.HasPrefix(line, "  ") && strings.HasPrefix(words[0], "--") && strings.Index(line, "--") < flagColumn {
			names = append(names, strings.TrimPrefix(words[0], "--"))
		}
	}
	return names
}

// TestPerfHelpFitsTwoScreens: --help has at most 100 lines, six examples and twenty flags.
func TestPerfHelpFitsTwoScreens(t *testing.T) {
	for _, args := range [][]string{{"perf", "--help"}, {"perf", "serve", "--help"}} {
		if n := strings.Count(succeed(t, args...), "\n"); n > 100 {
			t.Errorf("ibverbx %s has %d lines, want at most 100", strings.Join(args, " "), n)
		}
	}
	if n := strings.Count(perfExample, "\n") + 1; n != 6 {
		t.Errorf("perf --help has %d examples, want 6", n)
	}
	if n := len(clientFlags); n != 20 {
		t.Errorf("perf --help has %d flags, want 20", n)
	}
}

// TestPerfFlagsAreCommonOrRare: each flag is in one of the two classes. --help prints the common ones, and --help-all
// prints every flag once.
func TestPerfFlagsAreCommonOrRare(t *testing.T) {
	perf := newPerf(streams{in: strings.NewReader(""), out: io.Discard, err: io.Discard})
	for i, cmd := range append([]*cobra.Command{perf}, perf.Commands()...) { // perf and perf serve
		path := strings.Fields(cmd.CommandPath())
		short, all := flagsIn(succeed(t, append(path, "--help")...)), flagsIn(succeed(t, append(path, "--help-all")...))
		common := [][]string{clientFlags, serverFlags}[i]
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			_, rare := f.Annotations[helpRare]
			listed := slices.Contains(common, f.Name) || f.Name == "help" || f.Name == "help-all"
			if !f.Hidden && rare == listed {
				t.Errorf("%s: --%s is rare: %t, common: %t; want one of the two", cmd.CommandPath(), f.Name, rare, listed)
			}
			if slices.Contains(short, f.Name) != (listed && !f.Hidden) {
				t.Errorf("%s --help has --%s: %t, want %t", cmd.CommandPath(), f.Name, !listed, listed)
			}
			if n := len(slices.DeleteFunc(slices.Clone(all), func(name string) bool { return name != f.Name })); !f.Hidden && n != 1 {
				t.Errorf("%s --help-all has --%s %d times, want once", cmd.CommandPath(), f.Name, n)
			}
		})
		for _, name := range common {
			if cmd.LocalFlags().Lookup(name) == nil {
				t.Errorf("%s --help should have --%s, which does not exist", cmd.CommandPath(), name)
			}
		}
	}
}

// TestPerfSides: the error for a flag or argument of the other side names the right command.
func TestPerfSides(t *testing.T) {
	for _, name := range []string{"listen", "once", "lend", "token-dir"} {
		refused(t, "perf --"+name, "--"+name+" belongs to the server: use it with 'ibverbx perf serve'")
	}
	for _, args := range []string{"-s 8", "-a", "-n 5", "-D 1", "-b", "--imm", "--check", "-t 4", "-Q 4", "-c UC", "--kill-rail 1", "--server-name x"} {
		refused(t, "perf serve "+args, "belongs to the client, which decides what to measure: use it with 'ibverbx perf'")
	}
	refused(t, "perf serve --nothing", "unknown flag: --nothing")
}

// TestPerfServerAlias: --server, the older name of perf serve, works in any position.
func TestPerfServerAlias(t *testing.T) {
	for args, want := range map[string]string{
		"perf --server --once":         "perf serve --once",
		"perf --token-file t --server": "perf serve --token-file t",
		"perf serve --once":            "perf serve --once",
		"perf read --server":           "perf serve read",
		"get --server":                 "get --server",
		"perf node1 --token-file t":    "perf node1 --token-file t",
	} {
		if got := strings.Join(oldServer(strings.Fields(args)), " "); got != want {
			t.Errorf("oldServer(%q) = %q, want %q", args, got, want)
		}
	}
	refused(t, "perf --once --server", "perf serve: it needs --token-file")
	refused(t, "perf --server --lat --token-file x", "--lat belongs to the client")
}
