package main

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
)

// masked returns a table with N for every word that is a number, 0x for every QP number, and one blank for any
// number of them: TestPerfTableAligned looks at columns.
func masked(out string) string {
	// Health is as the machine's load makes it.
	out = regexp.MustCompile(`\n         [^\n]*(lost|retransmits|RTT|drops)[^\n]*`).ReplaceAllString(out, "")
	out = regexp.MustCompile(` verdict: .*`).ReplaceAllString(out, " verdict: V")
	head, rest, _ := strings.Cut(out, "\n #bytes")
	blanks := regexp.MustCompile(` +`)
	rest = blanks.ReplaceAllString("\n #bytes"+rest, "  ") // two: one for either neighbour
	rest = regexp.MustCompile(` 0x[0-9a-f]+ `).ReplaceAllString(rest, " 0x ")
	rest = regexp.MustCompile(`([ (])[0-9]+(\.[0-9]+)?([ \n])`).ReplaceAllString(rest, "${1}N${3}")
	return blanks.ReplaceAllString(head+rest, " ")
}

// golden is what a table is; the rules of dashes are cut short. It must fit a terminal.
func golden(t *testing.T, want string, args ...string) {
	t.Helper()
	wantTable(t, succeed(t, args...), want, args...)
}

// wantTable compares what a command has printed.
func wantTable(t *testing.T, out, want string, args ...string) {
	t.Helper()
	if got := strings.ReplaceAll(masked(out), tableRule, "---"); got != want {
		t.Errorf("ibverbx %s prints\n%s\nwant\n%s", strings.Join(args, " "), got, want)
	}
	for line := range strings.Lines(out) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
			t.Errorf("ibverbx %s prints a line of %d columns, want at most %d: %q", strings.Join(args, " "), n, columns, line)
		}
	}
}

func TestPerfTableGolden(t *testing.T) {
	golden(t, `RDMA_Write BW Test: 2 rails, 4 lanes of RC, softnic over memory
MTU 4096, TX depth 128, scheme dqplb, policy round-robin
 #bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps] ratio
 N N N N N N
 N N N N N N
 rail N N % N MiB soft0 -> soft1
 rail N N % N MiB soft2 -> soft3
 memcpy at N KiB: N MiB/sec (N GB/s); ratio is BW average to memcpy
 verdict: V
`, "perf", "-s", "8,64K", "-n", "128", "--rails", "2", "-q", "4", "--scheme", "dqplb", "--policy", "round-robin", "--fragment", "4K")
}

func TestPerfVerboseTableGolden(t *testing.T) {
	golden(t, `---
 RDMA_Write BW Test
 Dual-port : OFF Device : soft0,soft2 -> soft1,soft3
 Number of qps : 3 Transport type : IB
 Connection type : RC Using SRQ : OFF
 Provider : softnic Link : memory
 Memory : host
 Transport : rc, by the NIC
 Rails : 2 Lanes : 3
 Scheme : dqplb Policy : two-choices
 Fragment : 4 KiB
 TX depth : 128
 CQ Moderation : by size
 Mtu : 4096[B]
 Link type : Ethernet
 Max inline data : 0[B]
 Data check : ON
---
 #bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps] ratio
 N N N N N N
 N N N N N N
 rail N N % N MiB soft0 -> soft1
 rail N N % N MiB soft2 -> soft3
 #lane rail QPN role share[%] MiB fragments doorbells CQEs
 N N 0x data N N N N N
 N N 0x data N N N N N
 N N 0x data N N N N N
 N N 0x message N N N N N
 memcpy at N KiB: N MiB/sec (N GB/s); ratio is BW average to memcpy
 verdict: V
 data check: N messages, N MiB, N errors
`, "perf", "-v", "--check", "-s", "8,64K", "-n", "100", "--rails", "2", "-q", "3", "--scheme", "dqplb", "--policy", "two-choices", "--fragment", "4K")
}

func TestPerfLatencyTableGolden(t *testing.T) {
	golden(t, `RDMA_Write_With_Imm Latency Test: 1 QP of RC, softnic over memory
MTU 4096, TX depth 1, times in usec
 #bytes #iterations t_min t_max t_typical t_avg t_stdev 99% 99.9%
 N N N N N N N N N
 rail N N % N MiB soft0 -> soft1
 t is half of the round trip of a ping-pong
 verdict: V
 data check: N messages, N MiB, N errors
`, "perf", "--lat", "--imm", "-q", "1", "-s", "8", "-n", "100", "--check")
}

// TestPerfDataCheck: the check has a verdict with the numbers of messages and bytes.
func TestPerfDataCheck(t *testing.T) {
	out := succeed(t, "perf", "-s", "512K,1M", "-n", "64", "--check")
	if want := "\n data check: 128 messages, 96 MiB, 0 errors\n"; !strings.Contains(out, want) {
		t.Errorf("no %q in\n%s", want, out)
	}
}

func TestPerfPlainTable(t *testing.T) {
	says(t, succeed(t, "perf", "-c", "UC", "-s", "64", "-n", "100"), "RDMA_Write BW Test: 1 QP of UC,")
	out := succeed(t, "perf", "send", "-c", "UD", "-q", "2", "-s", "64", "-n", "100", "-v")
	says(t, out, " Number of qps   : 2", " Connection type : UD", "\n rail 0  100.00 %         0.01 MiB  soft0 -> soft1\n", "\n 1     0    0x")
	if strings.Contains(out, "Scheme") || strings.Contains(out, "Lanes") {
		t.Errorf("UD QPs are no lanes of a VirtualQP, but the table speaks of them:\n%s", out)
	}
}

func TestPerfGbits(t *testing.T) {
	out := succeed(t, "perf", "-s", "4K", "-n", "100", "--report-gbits")
	want := " #bytes    #iterations BW peak[Gb/sec]  BW average[Gb/sec]  MsgRate[Mpps] ratio\n"
	if !strings.Contains(out, want) {
		t.Errorf("no %q in\n%s", want, out)
	}
}

// Every column head stands right above its column.
func TestPerfTableAligned(t *testing.T) {
	much := measure.Carried{Bytes: 123456789012, Fragments: 12345678, Doorbells: 12345678, CQEs: 12345678, Share: 1}
	lane := measure.Lane{
		Lane: 4095, Rail: 7, QPN: 0xffffff, Role: "message", Carried: much,
		Paths: []measure.Path{{QPN: 0xffffff, State: "UP", Sent: 12345678, Retransmitted: 12345678, Lost: 12345678, RTT: 99999, QueueDelay: 99999}},
	}
	var carried bytes.Buffer
	table := perfTable{printer: printer{w: &carried}, all: true}
	table.carried(&measure.Report{PerLane: []measure.Lane{lane}})
	lines := strings.Split(carried.String(), "\n")
	for _, tt := range [][2]string{
		rowOf(measure.Result{Size: 8388608, Iterations: 1234567890, BandwidthResult: &measure.BandwidthResult{BytesPerSecond: 9e12, PeakBytesPerSecond: 9e12, MessagesPerSecond: 123e6, CopyBytesPerSecond: 9e12}}),
		rowOf(measure.Result{Size: 8388608, Iterations: 1234567890, LatencyResult: &measure.LatencyResult{Max: 99999}}),
		{lines[0], lines[1]},
		{lines[2], lines[3]},
	} {
		// Heads and cells of several words count as one.
		starts := func(s string) (at []int) {
			s = regexp.MustCompile(`(BW) `).ReplaceAllString(s, "${1}_")
			for _, m := range regexp.MustCompile(`\S+`).FindAllStringIndex(s, -1) {
				at = append(at, m[0])
			}
			return at
		}
		if n := max(len(tt[0]), len(strings.TrimSpace(tt[1]))+1); n > columns {
			t.Errorf("%d columns, want at most %d:\n%s\n%s", n, columns, tt[0], tt[1])
		}
		if got, want := starts(tt[1]), starts(tt[0]); !slices.Equal(got, want) {
			t.Errorf("columns at %v under heads at %v:\n%s\n%s", got, want, tt[0], tt[1])
		}
	}
}

// rowOf is the head of the table, and a result as the table prints it.
func rowOf(r measure.Result) [2]string {
	var b bytes.Buffer
	table := perfTable{printer: printer{w: &b}, unit: report.Units(false), head: measure.Report{Mode: measure.Bandwidth}}
	if r.LatencyResult != nil {
		table.head.Mode = measure.Latency
	}
	table.row(r)
	return [2]string{report.Results(&table.head, table.unit).TextHead(), b.String()}
}

// laneHead is the head of the lanes.
var laneHead = report.Lanes(nil).TextHead()

// laneLines returns the lanes that have a line, and the line that sums up the others.
func laneLines(out string) (lanes []string, summary string) {
	_, rest, _ := strings.Cut(out, laneHead+"\n")
	for line := range strings.Lines(rest) {
		switch {
		case strings.HasPrefix(line, " lanes "):
			summary = strings.TrimSpace(line)
		case regexp.MustCompile(`^ [0-9]+ +[0-9] `).MatchString(line):
			lanes = append(lanes, strings.Fields(line)[0])
		}
	}
	return lanes, summary
}

// uneven returns a report with so many lanes, of which the first carried nothing, and one more for messages.
func uneven(lanes int) *measure.Report {
	r := &measure.Report{}
	for i := range lanes + 1 {
		r.PerLane = append(r.PerLane, measure.Lane{Lane: i, Role: "data", Carried: measure.Carried{Share: 0.01, Fragments: 1000}})
	}
	r.PerLane[0].Share, r.PerLane[lanes].Role = 0, "message"
	return r
}

// TestPerfLanesFolded: lanes have lines if they differ or with --verbose, and without it not too many.
func TestPerfLanesFolded(t *testing.T) {
	for _, tt := range []struct {
		lanes   int // and one more for messages
		verbose bool
		want    int
		summary string
	}{
		{2, false, 3, ""},
		{15, false, 16, ""},
		{16, false, 16, "lanes 8 to 8 carried 1.00 %, 1.00 to 1.00 % each; see all with --verbose"},
		{64, false, 16, "lanes 8 to 56 carried 49.00 %, 1.00 to 1.00 % each; see all with --verbose"},
		{64, true, 65, ""},
	} {
		var out bytes.Buffer
		table := perfTable{printer: printer{w: &out}, all: tt.verbose}
		table.carried(uneven(tt.lanes))
		lanes, summary := laneLines(out.String())
		if len(lanes) != tt.want || summary != tt.summary {
			t.Errorf("%d lanes: %d lines of lanes and %q, want %d and %q", tt.lanes, len(lanes), summary, tt.want, tt.summary)
			continue
		}
		if first, last := lanes[0], lanes[len(lanes)-1]; first != "0" || last != fmt.Sprint(tt.lanes) {
			t.Errorf("lanes %s to %s, want 0 to %d", first, last, tt.lanes)
		}
	}
	if out := succeed(t, "perf", "-q", "4", "-s", "64K", "-n", "1024", "--policy", "round-robin"); strings.Contains(out, laneHead) {
		t.Errorf("lanes that carried the same have lines, want none:\n%s", out)
	}
}

// Shares are of the bytes: a SEND is all on the message lane, and notifications have none.
func TestPerfShares(t *testing.T) {
	for args, wants := range map[string][]string{
		"send -q 4": {
			`\n rail 0 +100\.00 % +0\.95 MiB `,
			`\n rail 1 +0\.00 % +0\.00 MiB `,
			`\n 3 +1 +0x[0-9a-f]+ +data +0\.00 +0\.00 +0 +0 +0\n`,
			`\n 4 +0 +0x[0-9a-f]+ +message +100\.00 +0\.95 +100 `,
		},
		"write -q 2 --imm --scheme spray --fragment 5000": {
			`\n rail 0 +50\.00 % +0\.48 MiB `,
			`\n 1 +1 +0x[0-9a-f]+ +data +50\.00 +0\.48 +100 `,
			`\n 3 +1 +0x[0-9a-f]+ +notify +0\.00 +0\.00 +100 `,
		},
	} {
		out := succeed(t, append([]string{"perf", "-s", "10000", "-n", "100", "-v"}, strings.Fields(args)...)...)
		for _, want := range wants {
			if !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("perf %s prints no %q in\n%s", args, want, out)
			}
		}
	}
}

// TestPrinterWraps: text is cut between words, and only long words are wider than a terminal.
func TestPrinterWraps(t *testing.T) {
	var out bytes.Buffer
	p := printer{w: &out}
	p.wrap(" ", strings.Repeat("seven77 ", 12)+strings.Repeat("x", 100)+" end")
	want := " " + strings.TrimSpace(strings.Repeat("seven77 ", 10)) + "\n seven77 seven77\n " + strings.Repeat("x", 100) + "\n end\n"
	if out.String() != want {
		t.Errorf("wrap prints\n%s\nwant\n%s", out.String(), want)
	}
}

// TestPaint: there are no escapes without a terminal.
func TestPaint(t *testing.T) {
	plain, colour := printer{}, printer{colour: true}
	if got := plain.paint(green, "fine"); got != "fine" {
		t.Errorf("paint without colours = %q, want the text", got)
	}
	if got := colour.paint(green, "fine"); got != "\x1b[32mfine\x1b[0m" {
		t.Errorf("paint = %q, want green text", got)
	}
	if s := (streams{out: &bytes.Buffer{}}); s.colours() {
		t.Error("a buffer has colours, want none")
	}
	for env, want := range map[string]bool{"": true, "NO_COLOR=1": false, "NO_COLOR=": true, "TERM=dumb": false, "TERM=xterm": true} {
		name, value, _ := strings.Cut(env, "=")
		lookup := func(n string) (string, bool) {
			if n != name {
				return "", false
			}
			return value, true
		}
		if got := wantsColours(lookup); got != want {
			t.Errorf("%s: colours %v, want %v", env, got, want)
		}
	}
}
