package main

import (
	"strings"
	"testing"
	"time"

	"ibverbx/internal/perf/measure"
)

// TestPerfProgressText: the line shows the rate, the time left, and lost and rebuilt lanes. A stall replaces the rate.
// Every line fits in 80 columns.
func TestPerfProgressText(t *testing.T) {
	const size = 1 << 20
	start := time.Now()
	var g perfProgress
	for _, tt := range []struct {
		after time.Duration
		p     measure.Progress
		want  string
	}{
		{0, measure.Progress{}, " 1/2  1 MiB    [          ]   0%"},
		{2 * time.Second, measure.Progress{Done: 0.2, At: 2 * time.Second, Messages: 2000}, " 1/2  1 MiB    [#         ]  10%  1000.0 MiB/s  18s left"},
		{2200 * time.Millisecond, measure.Progress{Done: 0.22, At: 2200 * time.Millisecond, Messages: 3000}, " 1/2  1 MiB    [#         ]  11%  1000.0 MiB/s  18s left"},
		{4 * time.Second, measure.Progress{Done: 0.4, At: 4 * time.Second, Messages: 3000, Lost: 4, Rebuilt: 1}, " 1/2  1 MiB    [##        ]  20%  500.0 MiB/s  lanes: 4 lost, 1 back  16s left"},
		{9 * time.Second, measure.Progress{Done: 0.4, At: 9 * time.Second, Messages: 3000, Stalled: 5500 * time.Millisecond, Lost: 4, Rebuilt: 1}, " 1/2  1 MiB    [##        ]  20%  stalled for 5s  lanes: 4 lost, 1 back"},
		{20 * time.Second, measure.Progress{Row: 1}, " 2/2  1 MiB    [#####     ]  50%  20s left"},
		{40 * time.Second, measure.Progress{Row: 1, Done: 1, At: 20 * time.Second, Messages: 20}, " 2/2  1 MiB    [##########] 100%  1.0 MiB/s"},
		{40 * time.Second, measure.Progress{Row: 1, Passive: true}, " 2/2  1 MiB    the other side measures"},
	} {
		p := tt.p
		p.Rows, p.Size = 2, size
		if got := g.text(p, start.Add(tt.after)); got != tt.want {
			t.Errorf("after %v: got\n%q, want\n%q", tt.after, got, tt.want)
		}
	}
	g = perfProgress{began: start}
	long := g.text(measure.Progress{Row: 8, Rows: 19, Size: 1 << 30, Done: 0.1, At: time.Hour, Messages: 3_000_000, Lost: 1234, Rebuilt: 1234}, start.Add(100*time.Hour))
	if len(long) >= columns || !strings.Contains(long, "lanes: 1234 lost") {
		t.Errorf("got %d columns, want less than %d: %q", len(long), columns, long)
	}
}
