package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestJSONObjects: perf, demo, doctor, devices and compare print exactly one object with --json.
func TestJSONObjects(t *testing.T) {
	a, b := reportFile(t, "a.json", 1, 1.01, 1.02, 1.03), reportFile(t, "b.json", 1.5)
	for _, tt := range []struct {
		args  string
		field string        // one that the object has
		limit time.Duration // until the command is interrupted, 0 for never
		want  []int         // exit statuses
	}{
		{"perf -s 8 -n 10", "results", 0, []int{exitOK}},
		{"perf send --lat -s 8 -n 10", "results", 0, []int{exitOK}},
		{"perf -s 64K -D 1m", "results", 300 * time.Millisecond, []int{exitInterrupted}},
		{"demo", "samples", 300 * time.Millisecond, []int{exitInterrupted}},
		{"demo --web", "samples", 300 * time.Millisecond, []int{exitOK}},
		{"doctor", "findings", 0, []int{exitOK, exitFailure}},
		{"devices", "devices", 0, []int{exitOK}},
		{"devices -v -d soft0", "devices", 0, []int{exitOK}},
		{"compare " + a + " " + b, "comparisons", 0, []int{exitOK}},
		{"compare " + a + " " + b + " " + a + "," + b, "sides", 0, []int{exitOK}},
	} {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if tt.limit > 0 {
				defer time.AfterFunc(tt.limit, cancel).Stop()
			}
			status, out, stderr := command(ctx, append(strings.Fields(tt.args), "--json")...)
			if !slices.Contains(tt.want, status) {
				t.Errorf("status %d, want one of %d; stderr %q", status, tt.want, stderr)
			}
			list := objects(t, out)
			if len(list) != 1 {
				t.Fatalf("%d objects, want 1:\n%s", len(list), out)
			}
			if _, ok := list[0][tt.field]; !ok {
				t.Errorf("the object has no %q:\n%s", tt.field, out)
			}
		})
	}
}

// objects parses out, which must hold only JSON objects.
func objects(t *testing.T, out string) (list []map[string]any) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var v map[string]any
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatalf("Decode of %q: got %v, want objects only", out, err)
		}
		list = append(list, v)
	}
}

// TestCompareJSON: compare --json has the numbers of the tables.
func TestCompareJSON(t *testing.T) {
	a := reportFile(t, "a.json", 1, 1.01, 1.02, 1.03, 1.04, 1.05)
	b := reportFile(t, "b.json", 1.5, 1.51, 1.52, 1.53, 1.54, 1.55)
	var r compareReport
	d := json.NewDecoder(strings.NewReader(succeed(t, "compare", a, b, "--json")))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		t.Fatalf("Decode: got %v, want no error", err)
	}
	if len(r.Sides) != 2 || r.Sides[0].Name != a || r.Sides[1].Reports != 12 || r.Sides[1].Host != "node1" || r.Sides[1].Time.IsZero() {
		t.Errorf("the sides are %+v", r.Sides)
	}
	if len(r.Comparisons) != 1 || r.Comparisons[0].Base != a || r.Comparisons[0].Other != b || len(r.Comparisons[0].Differences) != 5 {
		t.Fatalf("the comparisons are %+v", r.Comparisons)
	}
	got := r.Comparisons[0].Differences[0]
	if got.Op != "send" || got.Mode != "latency" || got.Metric != "t_typical_us" || got.Size != 8 || got.Old.N != 6 || got.Old.Center < 2 ||
		got.New.Center < 3 || got.Old.Spread == nil || got.Change < 0.48 || got.P > 0.01 || !got.Significant || !got.Enough {
		t.Errorf("the first difference is %+v", got)
	}
}

// typed checks lines of --json: one object each, with a type, and only the last one is a result. It returns the types and the error of
// the result.
func typed(t *testing.T, out string) (types []string, failure string) {
	t.Helper()
	for line := range strings.Lines(out) {
		var v struct{ Type, Error string }
		if err := json.Unmarshal([]byte(line), &v); err != nil || v.Type == "" {
			t.Fatalf("the line %q has the type %q (%v), want an object with a type", line, v.Type, err)
		}
		types, failure = append(types, v.Type), v.Error
	}
	if i := slices.Index(types, lineResult); i < 0 || i != len(types)-1 {
		t.Fatalf("the types are %q, want one result, at the end:\n%s", types, out)
	}
	return types, failure
}

// TestJSONLines: serve, get, put, ls and forward print typed lines with --json and end with a result, even if they fail.
func TestJSONLines(t *testing.T) {
	token, other := newToken(t, "a secret of this test, long enough"), newToken(t, "another secret, also long enough")
	dir, in := t.TempDir(), t.TempDir()
	content(t, filepath.Join(dir, "f"), 3<<20)
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, dir+"=d", "--write", in+"=in")
	_, closed := serveFiles(t, "127.0.0.1:0", "--token-file", token, dir+"=d")
	words := strings.NewReplacer("ADDR", addr, "LOCKED", closed, "DIR", dir, "TO", t.TempDir(), "CLOSED", closedPort(t), "OTHER", other)
	for _, tt := range []struct {
		args   string
		status int
		want   string // the type of the first line
		error  string // part of the result's error
	}{
		{"get ADDR d/f TO", exitOK, "", ""},
		{"put ADDR DIR/f in/g", exitOK, "", ""},
		{"ls ADDR", exitOK, lineEntry, ""},
		{"ls ADDR d", exitOK, lineEntry, ""},
		{"get ADDR d/none TO", exitNotFound, "", `does not serve "d/none"`},
		{"get LOCKED d/f TO --token-file OTHER", exitFailure, lineResult, "rejected the token"},
		{"get CLOSED d/f TO", exitPeer, lineResult, "nothing listens"},
		{"get ADDR d/f TO --token-file DIR/none", exitFailure, lineResult, "no such file"},
		{"put ADDR DIR/f d/g", exitNotFound, "", "does not let you write"},
		{"put ADDR DIR/none in/g", exitFailure, "", "no such file"},
		{"put CLOSED DIR/f", exitPeer, lineResult, "nothing listens"},
		{"ls ADDR d/none", exitNotFound, lineResult, `does not serve "d/none"`},
		{"ls CLOSED", exitPeer, lineResult, "nothing listens"},
		{"serve DIR --listen ADDR", exitFailure, lineResult, "the port is in use"},
		{"forward -L 0:127.0.0.1:1 ADDR", exitNotFound, lineResult, "does not forward to it"},
		{"forward -L 0:127.0.0.1:1 CLOSED", exitPeer, lineResult, "nothing listens"},
		{"forward -L ADDR:127.0.0.1:1 ADDR", exitFailure, lineResult, "the port is in use"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			args := append(strings.Fields(words.Replace(tt.args)), "--json")
			if !slices.Contains(args, "--token-file") {
				args = append(args, noAuth)
			}
			status, out, stderr := command(t.Context(), args...)
			types, failure := typed(t, out)
			if status != tt.status || tt.want != "" && types[0] != tt.want || (tt.error == "") != (failure == "") || !strings.Contains(failure, tt.error) {
				t.Errorf("status %d, types %q, error %q, want %d, %q first and %q", status, types, failure, tt.status, tt.want, tt.error)
			}
			if failure != "" && stderr != "ibverbx: "+failure+"\n" {
				t.Errorf("stderr has %q, want the error of the result: %q", stderr, failure)
			}
		})
	}
	for _, args := range []string{"get ADDR", "get ADDR d/f TO --lanes 1000", "put ADDR DIR/f --jobs 2", "ls", "serve DIR/none", "forward ADDR"} {
		refused(t, words.Replace(args)+" --json "+noAuth)
	}
}

// TestJSONLinesOfServers: a signal ends serve and forward, whose last line is then a result without an error.
func TestJSONLinesOfServers(t *testing.T) {
	dir := t.TempDir()
	echo := echoServer(t)
	server, addr := serveFiles(t, "127.0.0.1:0", "--json", noAuth, dir+"=d", "--forward", echo)
	client, at := forwarding(t, 1, "-L", "0:"+echo, addr, noAuth)
	if _, _, err := net.SplitHostPort(at[0]); err != nil {
		t.Errorf("forward listens on %q: %v", at[0], err)
	}
	for _, tt := range []struct {
		p    *process
		want []string
	}{
		{client, []string{lineListening, lineResult}},
		{server, []string{lineServing, lineForwarding, lineListening, lineResult}},
	} {
		if status := tt.p.interrupt(); status != exitOK {
			t.Errorf("status %d, want %d: %q", status, exitOK, tt.p.said)
		}
		if types, failure := typed(t, tt.p.stdout.String()); !slices.Equal(types, tt.want) || failure != "" {
			t.Errorf("types %q, error %q, want %q and no error", types, failure, tt.want)
		}
	}
}

// TestJSONLog: with --json, messages and the log of -v are JSON objects on standard error. Only the message of a failure
// is text.
func TestJSONLog(t *testing.T) {
	dir, in, echo := t.TempDir(), t.TempDir(), echoServer(t)
	content(t, filepath.Join(dir, "f"), 100)
	common := []string{"--json", "-v", noAuth, "--provider", "softnic"}
	server, addr := serveFiles(t, "127.0.0.1:0", append(common, dir+"=d", "--write", in+"=in", "--forward", echo, "--metrics", "127.0.0.1:0")...)
	all := map[string]*process{"serve": server}
	for _, args := range []string{"get ADDR d/f DIR --metrics 127.0.0.1:0", "put ADDR DIR/f in/f", "ls ADDR", "ls ADDR none"} {
		args := strings.NewReplacer("ADDR", addr, "DIR", dir).Replace(args)
		all[args] = begin(t, append(strings.Fields(args), common...)...)
		all[args].end()
	}
	all["forward"], _ = forwarding(t, 1, append(common, "-L", "0:"+echo, addr)...)
	for _, name := range []string{"forward", "serve"} {
		all[name].interrupt()
	}
	for name, p := range all {
		if strings.HasSuffix(name, " none") {
			last := len(p.said) - 1
			if !strings.HasPrefix(p.said[last-1], "ibverbx: ") {
				t.Errorf("%s: the last lines are %q, want the failure and its cause", name, p.said)
			}
			p.said = append(p.said[:last-1], p.said[last])
		}
		for _, line := range p.said {
			var v struct{ Type, Msg string }
			if err := json.Unmarshal([]byte(line), &v); err != nil || v.Type != lineLog || v.Msg == "" {
				t.Errorf("%s: the line %q on stderr, want an object of type %q", name, line, lineLog)
			}
		}
		if !strings.Contains(strings.Join(p.said, "\n"), `"msg":"peer ready"`) {
			t.Errorf("%s: stderr is %q, want the log of -v", name, p.said)
		}
	}
}

// TestJSONPhase: the phase of a result is done only if the transfer succeeded.
func TestJSONPhase(t *testing.T) {
	dir, to := t.TempDir(), t.TempDir()
	content(t, filepath.Join(dir, "f"), 100)
	_, addr := serveFiles(t, "127.0.0.1:0", noAuth, dir+"=d")
	for args, want := range map[string]string{
		"get " + addr + " d/f " + to: "done", "get " + addr + " d/none " + to: "failed", "get " + closedPort(t) + " d/f " + to: "failed",
		"put " + addr + " " + dir + "/f d/g": "failed", "put " + closedPort(t) + " " + dir + "/f": "failed",
	} {
		_, out, _ := command(t.Context(), append(strings.Fields(args), "--json", noAuth)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		var last fileReport
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Phase != want {
			t.Errorf("%s: the result has the phase %q, %v, want %q", args, last.Phase, err, want)
		}
	}
}
