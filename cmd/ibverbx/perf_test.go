package main

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/perf"
)

func TestPerfTable(t *testing.T) {
	out := succeed(t, "perf", "-s", "8,64KiB,1M", "-n", "200")
	for _, want := range []string{
		strings.Repeat("-", 87) + "\n                    RDMA_Write BW Test\n",
		" #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]   memcpy[MiB/sec]  ratio\n",
		" Connection type : RC",
		" Number of qps   : 1",
		" TX depth        : 128\n",
		"\n memcpy on this machine: ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if line := lineWith(out, "memcpy on this machine"); !regexp.MustCompile(`: [0-9.]+ MiB/sec \([0-9.]+ GB/s\) at 1 MiB$`).MatchString(line) {
		t.Errorf("the memcpy line is %q", line)
	}
	for _, size := range []string{"8", "65536", "1048576"} {
		line := lineWith(out, " "+size+"  ")
		if f := strings.Fields(line); len(f) != 7 || f[0] != size || f[1] != "200" {
			t.Errorf("the row of %s is %q, want 7 columns and 200 iterations", size, line)
		}
	}
}

func TestPerfGbits(t *testing.T) {
	out := succeed(t, "perf", "-s", "4K", "-n", "100", "--report_gbits")
	want := " #bytes     #iterations    BW peak[Gb/sec]     BW average[Gb/sec]    MsgRate[Mpps]   memcpy[Gb/sec]   ratio\n"
	if !strings.Contains(out, want) {
		t.Errorf("no %q in\n%s", want, out)
	}
}

func TestPerfLatencyTable(t *testing.T) {
	for op, title := range map[string]string{"write": "RDMA_Write Latency Test", "send": "Send Latency Test"} {
		out := succeed(t, "perf", op, "--lat", "-s", "8", "-n", "100")
		for _, want := range []string{
			"                    " + title + "\n",
			" #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]\n",
			" TX depth        : 1\n",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in\n%s", want, out)
			}
		}
		if strings.Contains(out, "memcpy") {
			t.Errorf("a latency test speaks of memcpy:\n%s", out)
		}
	}
}

// Every column head stands right above its column.
func TestPerfTableAligned(t *testing.T) {
	for _, tt := range []struct {
		head string
		row  perf.Result
	}{
		{bandwidthHead, perf.Result{Size: 8388608, Iterations: 1234567890, BandwidthResult: &perf.BandwidthResult{BytesPerSecond: 9e12, PeakBytesPerSecond: 9e12, MessagesPerSecond: 123e6, CopyBytesPerSecond: 9e12}}},
		{latencyHead, perf.Result{Size: 524288, Iterations: 123456789, LatencyResult: &perf.LatencyResult{Max: 99999}}},
	} {
		var b bytes.Buffer
		table := perfTable{printer: printer{w: &b}, scale: 1.0 / mebibyte}
		table.row(tt.row)
		starts := func(s string) (at []int) {
			for _, m := range regexp.MustCompile(`\S+`).FindAllStringIndex(s, -1) {
				at = append(at, m[0])
			}
			return at
		}
		// Heads of two words, as "BW peak[MiB/sec]", count as one.
		head := starts(regexp.MustCompile(`(BW|%) `).ReplaceAllString(tt.head, "${1}_"))
		if got := starts(b.String()); !slices.Equal(got, head) {
			t.Errorf("columns at %v under heads at %v:\n%s\n%s", got, head, tt.head, b.String())
		}
	}
}

func TestPerfOperations(t *testing.T) {
	for _, args := range []string{
		"read -s 64,8K", "send -s 64,8K", "atomic", "send -c UD -s 64,2K", "write -c UC -s 8K", "send -c UC -s 100",
		"write -q 4 -b -s 64,8K", "send -q 4 -b -s 64,8K", "write -m 512 -s 8K", "write -t 7 -Q 3 -s 8", "write -a -n 2",
		"read --lat -s 64", "send --lat -c UD -s 64", "atomic --lat",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			words := append([]string{"perf"}, strings.Fields(args)...)
			if !slices.Contains(words, "-n") {
				words = append(words, "-n", "100")
			}
			succeed(t, append(words, "--check")...)
		})
	}
}

func TestPerfJSON(t *testing.T) {
	for _, tt := range []struct {
		args []string
		mode string
		keys []string
	}{
		{
			[]string{"perf", "-s", "64", "-n", "100", "-q", "2"},
			"bandwidth",
			[]string{"size", "iterations", "bytes_per_second", "messages_per_second", "copy_bytes_per_second", "ratio_to_copy"},
		},
		{
			[]string{"perf", "--lat", "-s", "64", "-n", "200"},
			"latency",
			[]string{"size", "iterations", "t_min_us", "t_typical_us", "t_avg_us", "t_p99_us", "t_p999_us", "t_max_us"},
		},
	} {
		v := object(t, tt.args...)
		if v["op"] != "write" || v["mode"] != tt.mode || v["provider"] != "softnic" || v["link"] != "memory" || v["interrupted"] != false {
			t.Errorf("%s: the head is %v", tt.mode, v)
		}
		if tt.mode == "bandwidth" && v["qps"] != 2.0 {
			t.Errorf("qps is %v, want 2", v["qps"])
		}
		rows := v["results"].([]any)
		if len(rows) != 1 {
			t.Fatalf("%s: %d results, want 1", tt.mode, len(rows))
		}
		row := rows[0].(map[string]any)
		for _, key := range tt.keys {
			if n, ok := row[key].(float64); !ok || n <= 0 {
				t.Errorf("%s: %s is %v", tt.mode, key, row[key])
			}
		}
		if row["size"] != 64.0 || row["iterations"] != 200.0 {
			t.Errorf("%s: size %v and iterations %v, want 64 and 200", tt.mode, row["size"], row["iterations"])
		}
	}
}

// cancelling is a writer that cancels when a text goes by.
type cancelling struct {
	bytes.Buffer
	text   string
	cancel func()
}

func (c *cancelling) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(c.text)) {
		c.cancel()
	}
	return c.Buffer.Write(b)
}

func TestPerfInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := &cancelling{text: " 64  ", cancel: cancel}
	var stderr bytes.Buffer
	status := run(ctx, []string{"perf", "-s", "8,64,512", "-n", "100"}, streams{out: out, err: &stderr})
	if status != exitInterrupted {
		t.Errorf("status %d, want %d", status, exitInterrupted)
	}
	if lineWith(out.String(), " 64  ") == "" || lineWith(out.String(), " 512  ") != "" || !strings.Contains(out.String(), "memcpy on this machine") {
		t.Errorf("want the rows of 8 and 64 and the lines below, got\n%s", out.String())
	}
	if want := "ibverbx: interrupted: measured 2 of 3 sizes"; !strings.Contains(stderr.String(), want) {
		t.Errorf("stderr is %q, want %q", stderr.String(), want)
	}
}

func TestPerfInterruptedBeforeAnything(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"perf"}, {"perf", "--json"}, {"perf", "--lat"}} {
		status, out, stderr := command(ctx, args...)
		if status != exitInterrupted || !strings.Contains(stderr, "interrupted") {
			t.Errorf("%v: status %d, stderr %q", args, status, stderr)
		}
		if slices.Contains(args, "--json") {
			var v struct {
				Interrupted bool
				Results     []any
			}
			if err := json.Unmarshal([]byte(out), &v); err != nil || !v.Interrupted || v.Results == nil {
				t.Errorf("%v: %v in %s", args, err, out)
			}
		}
	}
}
