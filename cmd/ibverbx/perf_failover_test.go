package main

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
)

// lost are the flags of a short transfer that loses a rail for a moment.
const lost = "-D 300ms --at 50ms --back 50ms"

// Every operation in every scheme loses a rail and takes it back. (Package perf loses either
// one.)
func TestPerfKillRail(t *testing.T) {
	for i, op := range []string{"write", "write --imm", "read", "send", "write --imm -b"} {
		for k, scheme := range schemeNames {
			rail := (i + k) % 2
			args := fmt.Sprintf("perf %s --scheme %s --kill-rail %d -s 20000 %s", op, scheme, rail, lost)
			t.Run(args, func(t *testing.T) {
				t.Parallel()
				out := succeed(t, strings.Fields(args)...)
				says(t, out,
					fmt.Sprintf("both       ports of rail %d down: soft%d and soft%d\n", rail, 2*rail, 2*rail+1),
					fmt.Sprintf("both       ports of rail %d up: soft%d and soft%d\n", rail, 2*rail, 2*rail+1),
					fmt.Sprintf("initiator  rail %d down\n", rail),
					fmt.Sprintf("target     rail %d up\n", rail),
					"initiator  recovered: all lanes are in service\n",
					"target     recovered: all lanes are in service\n",
					"every byte of ",
				)
			})
		}
	}
}

// The order of what happens at the two ends is not given; how it is told is.
func TestPerfKillRailTable(t *testing.T) {
	out := succeed(t, strings.Fields("perf --kill-rail 1 -q 2 -s 64K "+lost)...)
	lines := regexp.MustCompile(`\|[▁▂▃▄▅▆▇█ ]+\|`).ReplaceAllString(out, " |blocks|")
	lines = regexp.MustCompile(` +`).ReplaceAllString(lines, " ")
	lines = regexp.MustCompile(`\b[0-9]+\.[0-9]+\b`).ReplaceAllString(lines, "N")
	lines = regexp.MustCompile(`\b[0-9]+ (ms|messages)`).ReplaceAllString(lines, "N $1")
	lines = strings.ReplaceAll(lines, tableRule, "---")
	says(t, lines,
		" rail 0 soft0 -> soft1 |blocks|\n rail 1 soft2 -> soft3 |blocks|\n a column is N ms, a full block N MiB/sec\n---\n",
		" phase from[s] to[s] BW average[MiB/sec] rail 0[%] rail 1[%]\n before N N N N N\n during N N N N N\n after N N N N N\n---\n time[s] end event\n",
		" N both ports of rail 1 down: soft2 and soft3\n",
		" N initiator lane 1 down (rail 1): ",
		" N target lane 1 up (rail 1)\n",
		" lanes out of service: 1; requests that other lanes took over: ", "\n every byte of N messages was compared",
		" memcpy at 64 KiB: ", "\n data check: N messages, ",
	)
}

// wantFailover is what --json adds, with N for every number and E and S for what the lists
// of events and spans hold.
const wantFailover = `
  "failover": {
    "kill_rail": N,
    "killed_at": N,
    "back_at": N,
    "recovered_at": N,
    "lanes_down": N,
    "replayed": N,
    "before_bytes_per_second": N,
    "during_bytes_per_second": N,
    "after_bytes_per_second": N,
    "events": [E],
    "timeline": [S]
  }
}
`

const (
	wantEvent = `{ "at": N, "end": "initiator", "event": "lane up", "rail": N, "lane": N }`
	wantPort  = `{ "at": N, "end": "both", "event": "port down", "rail": N }`
	wantSpan  = `{ "from": N, "to": N, "bytes_per_second": N, "per_rail": [ N, N ] }`
)

func TestPerfKillRailJSONGolden(t *testing.T) {
	out := succeed(t, strings.Fields("perf --kill-rail 1 -q 2 -s 64K --json "+lost)...)
	out = regexp.MustCompile(`([ :\[])[0-9][0-9.e+-]*`).ReplaceAllString(out, "${1}N")
	_, got, _ := strings.Cut(out, ",\n  \"failover\"")
	got = "\n  \"failover\"" + got
	list := func(name, letter string) string {
		re := regexp.MustCompile(`(?s)"` + name + `": \[\n(.*?)\n    \]`)
		text := re.FindString(got)
		got = re.ReplaceAllString(got, `"`+name+`": [`+letter+`]`)
		return regexp.MustCompile(`\s+`).ReplaceAllString(text, " ")
	}
	events, spans := list("events", "E"), list("timeline", "S")
	if got != wantFailover {
		t.Errorf("--json adds\n%s\nwant\n%s", got, wantFailover)
	}
	for want, in := range map[string]string{wantEvent: events, wantPort: events, wantSpan: spans} {
		if !strings.Contains(in, want) {
			t.Errorf("no %s in\n%s", want, in)
		}
	}
}

func TestPerfKillRailJSON(t *testing.T) {
	v := object(t, strings.Fields("perf --kill-rail 1 -s 64K --fragment 16K "+lost)...)
	f := v["failover"].(map[string]any)
	for key, least := range map[string]float64{
		"kill_rail": 1, "killed_at": 0.05, "back_at": 0.1, "recovered_at": 0.1, "lanes_down": 4, "replayed": 1,
		"before_bytes_per_second": 1, "during_bytes_per_second": 1, "after_bytes_per_second": 1,
	} {
		if got, ok := f[key].(float64); !ok || got < least {
			t.Errorf("%s is %v, want at least %v", key, f[key], least)
		}
	}
	if v["checked"] != true || len(v["results"].([]any)) != 1 {
		t.Errorf("checked is %v and there are %d results, want true and 1", v["checked"], len(v["results"].([]any)))
	}
	if _, has := object(t, "perf", "-s", "8", "-n", "100")["failover"]; has {
		t.Error("there is a failover in the object of a test that lost nothing")
	}
}

func TestPerfKillFlagErrors(t *testing.T) {
	for args, wants := range map[string][]string{
		"--kill-rail x":               {"--kill-rail x", "whole number from 0 to 7"},
		"--kill-rail -1":              {"--kill-rail", "whole number from 0 to 7"},
		"--kill-rail 2":               {"--kill-rail 2", "use 0 to 1"},
		"--kill-rail 0 -q 1":          {"--kill-rail 0", "--lanes 2"},
		"--kill-rail 0 --rails 1":     {"--kill-rail 0", "--rails 2"},
		"--kill-rail 0 -c UC":         {"--kill-rail 0", "--connection RC"},
		"send --kill-rail 0 -c UD":    {"--kill-rail 0", "--connection RC"},
		"atomic --kill-rail 0":        {"--kill-rail 0", "in doubt"},
		"--kill-rail 0 --lat":         {"--kill-rail 0", "--lat"},
		"--kill-rail 0 -n 100":        {"--kill-rail 0", "--duration"},
		"--kill-rail 0 --at 2s -D 1":  {"--at 2s", "ends after 1s"},
		"--kill-rail 0 --back 2 -D 2": {"--back 2s", "after the end"},
		"--kill-rail 0 --at 0":        {"--at", "500ms"},
		"--kill-rail 0 -a":            {"--kill-rail 0", "one --size"},
		"--at 1s":                     {"--at 1s", "add --kill-rail"},
		"--back 1s":                   {"--back 1s", "add --kill-rail"},
	} {
		refused(t, "perf "+args, append(wants, "Run 'ibverbx perf --help'")...)
	}
}

// A timeline of any length becomes one that can be read, and is the mean of what it was.
func TestFoldTimeline(t *testing.T) {
	for _, tt := range []struct{ spans, want int }{{1, 1}, {50, 50}, {51, 26}, {600, 50}} {
		var spans []measure.Span
		for i := range tt.spans {
			spans = append(spans, measure.Span{From: float64(i), To: float64(i + 1), PerRail: []float64{8, 4}})
		}
		var b strings.Builder
		table := perfTable{printer: printer{w: &b}, unit: report.Unit{Name: "B/s", Scale: 1}}
		table.timeline(&measure.Report{PerRail: make([]measure.Rail, 2), Failover: &measure.Failover{Timeline: spans}})
		full, half := "|"+strings.Repeat("█", tt.want)+"|\n", "|"+strings.Repeat("▄", tt.want)+"|\n"
		scale := fmt.Sprintf("a column is %.0f ms, a full block 8.00 B/s\n", 1000*float64(tt.spans)/float64(tt.want))
		if got := b.String(); !strings.Contains(got, full) || !strings.Contains(got, half) || !strings.Contains(got, scale) {
			t.Errorf("%d spans are drawn as\n%swant %d columns", tt.spans, got, tt.want)
		}
	}
}

// Events of lanes are told together if they happened together, at one end.
func TestFoldEvents(t *testing.T) {
	lane := func(at float64, end, event string, n int) measure.FailoverEvent {
		return measure.FailoverEvent{At: at, End: end, Event: event, Rail: 1, Lane: &n}
	}
	events := []measure.FailoverEvent{
		lane(1, "initiator", "lane down", 1), lane(1, "target", "lane down", 1), lane(1.0005, "initiator", "lane down", 3),
		{At: 1.0005, End: "initiator", Event: "rail down", Rail: 1, Cause: "why"},
		lane(1.0006, "target", "lane down", 3), lane(2, "initiator", "lane up", 3),
		{At: 2, End: "initiator", Event: "failed", Rail: 1, Cause: "why"},
	}
	for n := range 9 {
		events = append(events, lane(3, "target", "lane up", 2*n))
	}
	var b bytes.Buffer
	table := perfTable{printer: printer{w: &b}, unit: report.Units(false)}
	table.failover(&measure.Report{PerRail: make([]measure.Rail, 2), Failover: &measure.Failover{Events: events}})
	want := ` time[s]    end        event
 1.000      initiator  lanes 1, 3 down (rail 1)
 1.000      target     lanes 1, 3 down (rail 1)
 1.000      initiator  rail 1 down
 2.000      initiator  lane 3 up (rail 1)
 2.000      initiator  failed: why
 3.000      target     9 lanes, 0 to 16, up (rail 1)
`
	if got := b.String(); !strings.Contains(got, want) {
		t.Errorf("the events are printed as\n%s\nwant\n%s", got, want)
	}
}

// TestEventWithoutRail: a failure that blames no rail is printed with its cause.
func TestEventWithoutRail(t *testing.T) {
	e := report.Event{FailoverEvent: measure.FailoverEvent{End: "target", Event: "failed", Rail: -1, Cause: "the peer is gone"}}
	if got, want := report.EventText(&measure.Report{}, &e), "failed: the peer is gone"; got != want {
		t.Errorf("EventText = %q, want %q", got, want)
	}
}
