package main

import (
	"regexp"
	"strings"
	"testing"
)

// wantJSON is the expected output of --json, with N for every number and CARRIED for wantCarried.
const wantJSON = `{
  "run": {
    "time": "T",
    "host": "H",
    "platform": "P",
    "kernel": "K",
    "cpus": N,
    "version": "V",
    "go": "G",
    "command": ["perf","-s","64K","-n","100","--rails","2","-q","2","--imm","--scheme","spray","--check","--json"],
    "options": {
      "op": "write",
      "imm": true,
      "mode": "bandwidth",
      "sizes": [N],
      "iterations": N,
      "duration_ns": N,
      "tx_depth": N,
      "cq_mod": N,
      "bidirectional": false,
      "check": true,
      "rails": N,
      "lanes": N,
      "fragment": N,
      "transport": "rc",
      "memory": [
        "host",
        "host"
      ]
    }
  },
  "op": "writeimm",
  "mode": "bandwidth",
  "provider": "softnic",
  "link": "memory",
  "device": "soft0,soft2",
  "peer": "soft1,soft3",
  "connection": "RC",
  "transport": "rc",
  "qps": N,
  "lanes": N,
  "rails": N,
  "scheme": "spray",
  "tx_depth": N,
  "mtu": N,
  "bidirectional": false,
  "sealed": false,
  "checked": true,
  "interrupted": false,
  "results": [
    {
      "size": N,
      "iterations": N,
      "bytes_per_second": N,
      "peak_bytes_per_second": N,
      "messages_per_second": N,
      "copy_bytes_per_second": N,
      "ratio_to_copy": N,
      "timeline": [S]
    }
  ],
  "per_rail": [
    {
      "rail": N,
      "device": "soft0",
      "peer": "soft1",
CARRIED
    },
    {
      "rail": N,
      "device": "soft2",
      "peer": "soft3",
CARRIED
    }
  ],
  "per_lane": [
    {
      "lane": N,
      "rail": N,
      "qpn": N,
      "role": "data",
CARRIED
    },
    {
      "lane": N,
      "rail": N,
      "qpn": N,
      "role": "data",
CARRIED
    },
    {
      "lane": N,
      "rail": N,
      "qpn": N,
      "role": "message",
CARRIED
    },
    {
      "lane": N,
      "rail": N,
      "qpn": N,
      "role": "notify",
CARRIED
    }
  ],
  "verdict": "healthy: nothing was lost or dropped"
}
`

// wantCarried holds the fields common to rails and lanes.
const wantCarried = `      "fragments": N,
      "bytes": N,
      "doorbells": N,
      "cqes": N,
      "refusals": N,
      "share": N,
      "health": {
        "sent": N,
        "lost": N,
        "retransmits": N,
        "timeouts": N,
        "naks": N,
        "rnrs": N,
        "bad_icrc": N,
        "drops": N,
        "rtt_p50_us": N,
        "rtt_p99_us": N
      }`

func TestPerfJSONGolden(t *testing.T) {
	out := succeed(t, "perf", "-s", "64K", "-n", "100", "--rails", "2", "-q", "2", "--imm", "--scheme", "spray", "--check", "--json")
	out = regexp.MustCompile(`(": )[0-9][0-9.e+-]*`).ReplaceAllString(out, "${1}N")
	for name, letter := range map[string]string{"time": "T", "host": "H", "platform": "P", "kernel": "K", "version": "V", "go": "G"} {
		out = regexp.MustCompile(`("`+name+`": )"[^"]*"`).ReplaceAllString(out, `${1}"`+letter+`"`)
	}
	out = regexp.MustCompile(`(?s)("timeline": )\[.*?\n      \]`).ReplaceAllString(out, "${1}[S]")
	out = regexp.MustCompile(`("sizes": )\[\s*65536\s*\]`).ReplaceAllString(out, "${1}[N]")
	out = regexp.MustCompile(`(?s)"command": \[.*?\]`).ReplaceAllStringFunc(out, func(s string) string {
		return `"command": ` + regexp.MustCompile(`\s+`).ReplaceAllString(strings.TrimPrefix(s, `"command": `), "")
	})
	if want := strings.ReplaceAll(wantJSON, "CARRIED", wantCarried); out != want {
		t.Errorf("--json prints\n%s\nwant\n%s", out, want)
	}
}

func TestPerfJSON(t *testing.T) {
	bandwidth := []string{"bytes_per_second", "peak_bytes_per_second", "messages_per_second", "copy_bytes_per_second", "ratio_to_copy"}
	latency := []string{"t_min_us", "t_max_us", "t_typical_us", "t_avg_us", "t_p99_us", "t_p999_us"}
	for _, tt := range []struct {
		args []string
		head map[string]any
		keys []string // result keys with values above 0
	}{
		{
			[]string{"perf", "-s", "64", "-n", "200"},
			map[string]any{"op": "write", "mode": "bandwidth", "qps": 8.0, "lanes": 8.0, "rails": 2.0, "scheme": "tally", "connection": "RC"},
			bandwidth,
		},
		{
			[]string{"perf", "-s", "64", "-n", "200", "-q", "1"},
			map[string]any{"op": "write", "mode": "bandwidth", "qps": 1.0, "lanes": 1.0, "rails": 1.0, "scheme": "tally", "device": "soft0", "peer": "soft1"},
			bandwidth,
		},
		{
			[]string{"perf", "-s", "64", "-n", "100", "-q", "2", "-c", "UC"},
			map[string]any{"op": "write", "mode": "bandwidth", "qps": 2.0, "lanes": 0.0, "rails": 1.0, "scheme": "none", "connection": "UC"},
			bandwidth,
		},
		{
			[]string{"perf", "--lat", "-s", "64", "-n", "200", "--scheme", "dqplb", "--imm"},
			map[string]any{"op": "writeimm", "mode": "latency", "qps": 8.0, "lanes": 8.0, "rails": 2.0, "scheme": "dqplb", "tx_depth": 1.0},
			latency,
		},
	} {
		v := object(t, tt.args...)
		for key, want := range tt.head {
			if v[key] != want {
				t.Errorf("%v: %s is %v, want %v", tt.args, key, v[key], want)
			}
		}
		rows := v["results"].([]any)
		if len(rows) != 1 {
			t.Fatalf("%v: %d results, want 1", tt.args, len(rows))
		}
		row := rows[0].(map[string]any)
		for _, key := range tt.keys {
			if n, ok := row[key].(float64); !ok || n <= 0 {
				t.Errorf("%v: %s is %v, want a number above 0", tt.args, key, row[key])
			}
		}
		if row["size"] != 64.0 || row["iterations"] != 200.0 {
			t.Errorf("%v: size %v and iterations %v, want 64 and 200", tt.args, row["size"], row["iterations"])
		}
	}
}

// TestPerfJSONCarried: per_lane and per_rail account for all messages: 30 of 160,000 bytes, in fragments of 10,000, in
// each direction, on eight lanes and two rails.
func TestPerfJSONCarried(t *testing.T) {
	v := object(t, "perf", "-s", "160000", "-n", "30", "--fragment", "10000", "-b", "--check")
	const (
		messages  = 2 * 30
		bytes     = messages * 160000
		fragments = messages * 16
	)
	for _, tt := range []struct {
		list  string
		parts int
	}{{"per_lane", 8}, {"per_rail", 2}} {
		list := v[tt.list].([]any)
		for i, one := range list[:tt.parts] {
			o := one.(map[string]any)
			if o["bytes"] != float64(bytes/tt.parts) || o["fragments"] != float64(fragments/tt.parts) {
				t.Errorf("%s[%d] has %v bytes and %v fragments, want %d and %d", tt.list, i, o["bytes"], o["fragments"], bytes/tt.parts, fragments/tt.parts)
			}
			if d, c := o["doorbells"].(float64), o["cqes"].(float64); d < 1 || d > fragments || c < 1 || c > fragments || o["refusals"] != 0.0 {
				t.Errorf("%s[%d] has %v doorbells, %v CQEs, %v refusals; want 1 to %d, the same, and none", tt.list, i, d, c, o["refusals"], fragments)
			}
		}
	}
	message := v["per_lane"].([]any)[8].(map[string]any)
	if message["role"] != "message" || message["fragments"] != 0.0 {
		t.Errorf("the last lane is %v, want a message lane that carried nothing", message)
	}
}
