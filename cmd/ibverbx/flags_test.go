package main

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// eachFlag calls visit with every flag of every command.
func eachFlag(visit func(cmd *cobra.Command, f *pflag.Flag)) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { visit(cmd, f) })
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(newRoot(streams{in: strings.NewReader(""), out: io.Discard, err: io.Discard}))
}

// TestFlagNames: no visible flag has an underscore, -q is --lanes in perf and --quiet elsewhere, and a flag has the same short form on
// all commands but perf, which follows perftest.
func TestFlagNames(t *testing.T) {
	short := map[string]string{}
	lanes := 0
	eachFlag(func(cmd *cobra.Command, f *pflag.Flag) {
		path := cmd.CommandPath()
		perf := strings.HasPrefix(path, "ibverbx perf")
		if strings.Contains(f.Name, "_") && (!f.Hidden || !perf) {
			t.Errorf("%s has --%s, want - for _", path, f.Name)
		}
		if f.Name == "lanes" {
			lanes++
		}
		if want := map[bool]string{true: "lanes", false: "quiet"}[perf]; f.Shorthand == "q" && f.Name != want {
			t.Errorf("%s: -q is --%s, want --%s", path, f.Name, want)
		}
		if perf || f.Shorthand == "" {
			return
		}
		if other, ok := short[f.Name]; ok && other != f.Shorthand {
			t.Errorf("%s: --%s is -%s, and -%s elsewhere", path, f.Name, f.Shorthand, other)
		}
		short[f.Name] = f.Shorthand
	})
	if lanes != 7 {
		t.Errorf("%d commands have --lanes, want serve, get, put, ls, forward, perf and perf serve", lanes)
	}
}

// TestLinkAndImpair: --link and --impair have the same values and errors on all commands that have them.
func TestLinkAndImpair(t *testing.T) {
	library(t)
	has := map[string][]string{}
	eachFlag(func(cmd *cobra.Command, f *pflag.Flag) {
		has[f.Name] = append(has[f.Name], strings.TrimPrefix(cmd.CommandPath(), "ibverbx "))
	})
	if got, want := fmt.Sprint(has["link"], has["impair"]), "[forward get ls perf perf serve put run serve] [forward get ls perf put run serve]"; got != want {
		t.Errorf("--link and --impair belong to %s, want %s", got, want)
	}
	for _, cmd := range has["link"] {
		refused(t, cmd+" --link tcp", "--link tcp: use auto, shm or udp\n")
	}
	for _, cmd := range has["impair"] {
		refused(t, cmd+" --impair loss=2", "--impair loss=2: loss=2: use a part of the packets, such as 1%\n")
		refused(t, cmd+" --impair lose=1%", `--impair lose=1%: "lose=1%": use rail, loss, duplicate, reorder, corrupt, delay, jitter or rate`)
	}
}

// TestHelpLines: --help is short: perf has at most 100 lines, serve, forward, get and put 60, all others 40.
func TestHelpLines(t *testing.T) {
	most := map[string]int{"ibverbx perf": 100, "ibverbx perf serve": 100, "ibverbx serve": 60, "ibverbx forward": 60, "ibverbx get": 60, "ibverbx put": 60}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		if n := strings.Count(succeed(t, append(strings.Fields(path)[1:], "--help")...), "\n"); n > cmp.Or(most[path], 40) {
			t.Errorf("%s --help has %d lines, want at most %d", path, n, cmp.Or(most[path], 40))
		}
		for _, c := range cmd.Commands() {
			walk(c)
		}
	}
	walk(newRoot(streams{in: strings.NewReader(""), out: io.Discard, err: io.Discard}))
}

// TestPerfLaneNames: --lanes, -q and --qp are one flag, which errors and the help call --lanes. So are --report-gbits and --report_gbits.
func TestPerfLaneNames(t *testing.T) {
	for _, name := range []string{"--lanes", "-q", "--qp"} {
		v := object(t, "perf", "-s", "8", "-n", "10", "--rails", "1", name, "3")
		if lanes := v["lanes"]; lanes != 3.0 {
			t.Errorf("perf %s 3 has %v lanes, want 3", name, lanes)
		}
		refused(t, "perf "+name+" 5000", "--lanes 5000")
		refused(t, "perf serve "+name+" x", "--lanes x: use 1 to 4094")
	}
	for _, name := range []string{"--report-gbits", "--report_gbits"} {
		says(t, succeed(t, "perf", "-s", "8", "-n", "10", name), "BW average[Gb/sec]")
	}
	for _, args := range []string{"perf --help-all", "perf serve --help-all"} {
		if out := succeed(t, strings.Fields(args)...); strings.Contains(out, "--qp ") || strings.Contains(out, "report_gbits") || !strings.Contains(out, "-q, --lanes ") {
			t.Errorf("%s shows an old name, or not --lanes:\n%s", args, out)
		}
	}
}
