package main

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/perf"
)

// masked returns a table with N for every word behind the parameters that is a number,
// 0x for every QP number, and one blank for any number of them: TestPerfTableAligned looks
// at columns.
func masked(out string) string {
	// Health is as the machine's load makes it.
	out = regexp.MustCompile(`\n        [^\n]*(lost|retransmits|RTT|drops)[^\n]*`).ReplaceAllString(out, "")
	out = regexp.MustCompile(` verdict: .*`).ReplaceAllString(out, " verdict: V")
	head, rest, _ := strings.Cut(out, "\n #bytes")
	blanks := regexp.MustCompile(` +`)
	rest = blanks.ReplaceAllString("\n #bytes"+rest, "  ") // two: one for either neighbour
	rest = regexp.MustCompile(` 0x[0-9a-f]+ `).ReplaceAllString(rest, " 0x ")
	rest = regexp.MustCompile(`([ (])[0-9]+(\.[0-9]+)?([ \n])`).ReplaceAllString(rest, "${1}N${3}")
	return blanks.ReplaceAllString(head+rest, " ")
}

// golden is what a table is; the rules of dashes are cut short.
func golden(t *testing.T, want string, args ...string) {
	t.Helper()
	got := strings.ReplaceAll(masked(succeed(t, args...)), tableRule, "---")
	if got != want {
		t.Errorf("ibverbx %s prints\n%s\nwant\n%s", strings.Join(args, " "), got, want)
	}
}

func TestPerfTableGolden(t *testing.T) {
	golden(t, `---
 RDMA_Write BW Test
 Dual-port : OFF Device : soft0,soft2 -> soft1,soft3
 Number of qps : 3 Transport type : IB
 Connection type : RC Using SRQ : OFF
 Provider : softnic Link : memory
 Transport : rc, by the NIC
 Rails : 2 Lanes : 3
 Scheme : dqplb Policy : least-bytes
 Fragment : 4 KiB
 TX depth : 128
 CQ Moderation : by size
 Mtu : 4096[B]
 Link type : Ethernet
 Max inline data : 0[B]
 Data check : OFF
---
 #bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps] memcpy[MiB/sec] ratio
 N N N N N N N
 N N N N N N N
---
 #rail device -> peer share[%] bytes fragments doorbells CQEs refusals
 N soft0 -> soft1 N N N N N N
 N soft2 -> soft3 N N N N N N
---
 #lane rail QPN role share[%] bytes fragments doorbells CQEs refusals
 N N 0x data N N N N N N
 N N 0x data N N N N N N
 N N 0x data N N N N N N
 N N 0x message N N N N N N
---
 verdict: V
 share is of the bytes of all results; fragments are physical requests, records and notifications included
 memcpy on this machine: N MiB/sec (N GB/s) at N KiB
 ratio is BW average over memcpy of the same size; MiB = 2^20 bytes, GB = 10^9 bytes, Mpps = 10^6 messages/s
`, "perf", "-s", "8,64K", "-n", "100", "--rails", "2", "-q", "3", "--scheme", "dqplb", "--policy", "least-bytes", "--fragment", "4K")
}

func TestPerfLatencyTableGolden(t *testing.T) {
	golden(t, `---
 RDMA_Write_With_Imm Latency Test
 Dual-port : OFF Device : soft0 -> soft1
 Number of qps : 1 Transport type : IB
 Connection type : RC Using SRQ : OFF
 Provider : softnic Link : memory
 Transport : rc, by the NIC
 Rails : 1 Lanes : 1, straight through
 TX depth : 1
 Mtu : 4096[B]
 Link type : Ethernet
 Max inline data : 0[B]
 Data check : ON
---
 #bytes #iterations t_min[usec] t_max[usec] t_typical[usec] t_avg[usec] t_stdev[usec] 99% percentile[usec] 99.9% percentile[usec]
 N N N N N N N N N
---
 #rail device -> peer share[%] bytes fragments doorbells CQEs refusals
 N soft0 -> soft1 N N N N N N
---
 #lane rail QPN role share[%] bytes fragments doorbells CQEs refusals
 N N 0x data N N N N N N
---
 verdict: V
 share is of the bytes of all results; fragments are physical requests, records and notifications included
 t is half of the round trip of a ping-pong; usec = 10^-6 s
`, "perf", "--lat", "--imm", "-q", "1", "-s", "8", "-n", "100", "--check")
}

func TestPerfPlainTable(t *testing.T) {
	out := succeed(t, "perf", "send", "-c", "UD", "-q", "2", "-s", "64", "-n", "100")
	for _, want := range []string{" Number of qps   : 2", " Connection type : UD", "\n 0      soft0 -> soft1            100.00    12800 ", "\n 1      0     0x"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "Scheme") || strings.Contains(out, "Lanes") {
		t.Errorf("UD QPs are no lanes of a VirtualQP, but the table speaks of them:\n%s", out)
	}
}

func TestPerfGbits(t *testing.T) {
	out := succeed(t, "perf", "-s", "4K", "-n", "100", "--report_gbits")
	want := " #bytes     #iterations    BW peak[Gb/sec]     BW average[Gb/sec]    MsgRate[Mpps]   memcpy[Gb/sec]   ratio\n"
	if !strings.Contains(out, want) {
		t.Errorf("no %q in\n%s", want, out)
	}
}

// Every column head stands right above its column.
func TestPerfTableAligned(t *testing.T) {
	much := perf.Carried{Bytes: 123456789012345678, Fragments: 12345678901234, Doorbells: 12345678901234, CQEs: 12345678901234, Refusals: 7}
	report := perf.Report{
		PerRail: []perf.Rail{{Rail: 7, Device: "mlx5_10", Peer: "mlx5_11", Carried: much}},
		PerLane: []perf.Lane{{Lane: 4095, Rail: 7, QPN: 0xffffff, Role: "message", Carried: much}},
	}
	var carried bytes.Buffer
	table := perfTable{printer: printer{w: &carried}}
	table.carried(&report)
	lines := strings.Split(carried.String(), "\n")
	for _, tt := range [][2]string{
		{bandwidthHead, rowOf(perf.Result{Size: 8388608, Iterations: 1234567890, BandwidthResult: &perf.BandwidthResult{BytesPerSecond: 9e12, PeakBytesPerSecond: 9e12, MessagesPerSecond: 123e6, CopyBytesPerSecond: 9e12}})},
		{latencyHead, rowOf(perf.Result{Size: 524288, Iterations: 123456789, LatencyResult: &perf.LatencyResult{Max: 99999}})},
		{lines[0], lines[1]},
		{lines[3], lines[4]},
	} {
		// Heads and cells of several words count as one.
		starts := func(s string) (at []int) {
			s = regexp.MustCompile(`(BW|99%|99.9%) `).ReplaceAllString(s, "${1}_")
			s = strings.ReplaceAll(s, " -> ", "_->_")
			for _, m := range regexp.MustCompile(`\S+`).FindAllStringIndex(s, -1) {
				at = append(at, m[0])
			}
			return at
		}
		if got, want := starts(tt[1]), starts(tt[0]); !slices.Equal(got, want) {
			t.Errorf("columns at %v under heads at %v:\n%s\n%s", got, want, tt[0], tt[1])
		}
	}
}

// rowOf is a result as the table prints it.
func rowOf(r perf.Result) string {
	var b bytes.Buffer
	table := perfTable{printer: printer{w: &b}, scale: 1.0 / mebibyte}
	table.row(r)
	return b.String()
}

// laneLines returns the lanes that have a line, and the line that sums up the others.
func laneLines(out string) (lanes []string, summary string) {
	_, rest, _ := strings.Cut(out, laneHead+"\n")
	rest, _, _ = strings.Cut(rest, tableRule)
	for line := range strings.Lines(rest) {
		if strings.HasPrefix(line, " lanes ") {
			summary = strings.TrimSpace(line)
			continue
		}
		lanes = append(lanes, strings.Fields(line)[0])
	}
	return lanes, summary
}

func TestPerfLanesFolded(t *testing.T) {
	for _, tt := range []struct {
		lanes   int // and one more for messages
		verbose bool
		want    int
		summary string
	}{
		{2, false, 3, ""},
		{15, false, 16, ""},
		{16, false, 16, "lanes 8 to 8 carried 6.25 %, 6.25 to 6.25 % each; --verbose prints a line for every lane"},
		{64, false, 16, "lanes 8 to 56 carried 76.56 %, 1.56 to 1.56 % each; --verbose prints a line for every lane"},
		{64, true, 65, ""},
	} {
		args := []string{"perf", "-q", fmt.Sprint(tt.lanes), "-s", "6400000", "--fragment", "1000", "-n", "3"}
		if tt.verbose {
			args = append(args, "-v")
		}
		lanes, summary := laneLines(succeed(t, args...))
		if len(lanes) != tt.want || summary != tt.summary {
			t.Errorf("%v: %d lines of lanes and %q, want %d and %q", args, len(lanes), summary, tt.want, tt.summary)
		}
		if first, last := lanes[0], lanes[len(lanes)-1]; first != "0" || last != fmt.Sprint(tt.lanes) {
			t.Errorf("%v: lanes %s to %s, want 0 to %d", args, first, last, tt.lanes)
		}
	}
}

// Shares are of the bytes: a SEND is all on the message lane, and notifications have none.
func TestPerfShares(t *testing.T) {
	for args, wants := range map[string][]string{
		"send -q 4": {
			`\n 0 +soft0 -> soft1 +100\.00 +100000 +100 `,
			`\n 1 +soft2 -> soft3 +0\.00 +0 +0 +0 +0 +0\n`,
			`\n 3 +1 +0x[0-9a-f]+ +data +0\.00 +0 +0 +0 +0 +0\n`,
			`\n 4 +0 +0x[0-9a-f]+ +message +100\.00 +100000 +100 `,
		},
		"write -q 2 --imm --scheme spray --fragment 500": {
			`\n 0 +soft0 -> soft1 +50\.00 +50000 +`,
			`\n 1 +1 +0x[0-9a-f]+ +data +50\.00 +50000 +100 `,
			`\n 3 +1 +0x[0-9a-f]+ +notify +0\.00 +0 +100 `,
		},
	} {
		out := succeed(t, append([]string{"perf", "-s", "1000", "-n", "100"}, strings.Fields(args)...)...)
		for _, want := range wants {
			if !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("perf %s prints no %q in\n%s", args, want, out)
			}
		}
	}
}
