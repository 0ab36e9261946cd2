package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/perf/measure"
)

// BenchmarkLanesOverUDP compares two "ibverbx perf" measurements between two processes, over UDP on the loopback
// interface. Measurements alternate, so that other load affects both. One op is one pair. ratio is the median ratio of
// the first rate to the second; ratio-min and ratio-max are the extremes.
func BenchmarkLanesOverUDP(b *testing.B) {
	for _, c := range []struct{ name, flags, with, sizes string }{
		{"lanes=8/with=oneQP", "--rails 2 -q 8", "-q 1", "8 64KiB 1MiB"},
		{"notified/with=plain", "--rails 2 -q 8 --imm", "--rails 2 -q 8", "8"},
		{"uc/with=rc", "--rails 2 -q 8 --transport uc", "--rails 2 -q 8", "64KiB 1MiB"},
	} {
		for size := range strings.FieldsSeq(c.sizes) {
			b.Run(fmt.Sprintf("%s/size=%s", c.name, size), func(b *testing.B) {
				token := newToken(b, "a secret of this benchmark, long enough")
				_, addr := serve(b, "--token-file", token, "--unsealed", "--addr", "127.0.0.1,127.0.0.2")
				args := []string{"perf", addr, "--token-file", token, "--unsealed", "--addr", "127.0.0.3,127.0.0.4", "--json", "-D", "100ms", "-s", size}
				var rates, ratios []float64
				for b.Loop() {
					rate := measured(b, append(args, strings.Fields(c.flags)...)...)
					rates = append(rates, rate)
					ratios = append(ratios, rate/measured(b, append(args, strings.Fields(c.with)...)...))
				}
				slices.Sort(rates)
				slices.Sort(ratios)
				b.ReportMetric(rates[len(rates)/2], "msgs/s")
				b.ReportMetric(ratios[0], "ratio-min")
				b.ReportMetric(ratios[len(ratios)/2], "ratio")
				b.ReportMetric(ratios[len(ratios)-1], "ratio-max")
			})
		}
	}
}

// measured runs a test of one size and returns the message rate per second.
func measured(b *testing.B, args ...string) float64 {
	b.Helper()
	return messageRate(begin(b, args...))
}

// messageRate waits for a client with one size and returns the message rate per second.
func messageRate(p *process) float64 {
	p.t.Helper()
	status := p.end()
	var r measure.Report
	if err := json.Unmarshal(p.stdout.Bytes(), &r); err != nil || status != exitOK || len(r.Results) != 1 {
		p.t.Fatalf("the client ended with status %d, %v: %q, want one row", status, err, p.said)
	}
	return r.Results[0].MessagesPerSecond
}
