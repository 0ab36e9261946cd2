package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// steps returns a side that returns these values one after the other.
func steps(values ...float64) side {
	i := 0
	return func(context.Context) (float64, error) {
		i++
		return values[i-1], nil
	}
}

// TestRow: figures are medians, or the best, and the ratio is judged in the right direction.
func TestRow(t *testing.T) {
	for _, c := range []struct {
		name         string
		row          row
		ours, ratio  float64
		meetsTheBar  bool
		wantInTable  string
		wantNotTable string
	}{
		{"rate", row{Bar: 1, ours: steps(3, 1, 2), theirs: steps(4, 4, 1)}, 2, 0.5, false, "**0.50**", ""},
		{"rate met", row{Bar: 0.5, ours: steps(3, 1, 2), theirs: steps(4, 4, 1)}, 2, 0.5, true, "0.50", "**"},
		{"time", row{Bar: 1.3, Lower: true, ours: steps(3, 1, 2), theirs: steps(1, 1, 1)}, 2, 2, false, "at most 1.3", ""},
		{"best time", row{Bar: 1.3, Lower: true, Best: true, ours: steps(3, 1, 2), theirs: steps(1, 1, 1)}, 1, 1, true, "1.00", "**"},
		{"no peer", row{Bar: 1.5, Lower: true, Unit: "ns", ours: steps(3, 1, 2)}, 2, 0, false, "**2 ns**", "NaN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.row.measure(t.Context(), 3)
			if r := &c.row; r.Ours != c.ours || r.Ratio != c.ratio || r.meets(r.Bar) != c.meetsTheBar {
				t.Errorf("got %v, ratio %v, bar met %v; want %v, %v, %v", r.Ours, r.Ratio, r.meets(r.Bar), c.ours, c.ratio, c.meetsTheBar)
			}
			line := c.row.line()
			if !strings.Contains(line, c.wantInTable) || c.wantNotTable != "" && strings.Contains(line, c.wantNotTable) {
				t.Errorf("got the line %q, want %q in it and not %q", line, c.wantInTable, c.wantNotTable)
			}
		})
	}
}

// TestMissingPeer: for a missing program, the row shows our result and the package to install, and
// does not count as failed. Any other error does, even in a later round.
func TestMissingPeer(t *testing.T) {
	absent := row{Work: "work", ours: steps(1, 1), theirs: func(context.Context) (float64, error) { return 0, &missing{"prog", "debian-package"} }}
	absent.measure(t.Context(), 2)
	if line := absent.line(); !strings.Contains(line, "apt-get install debian-package") || absent.Ours != 1 {
		t.Errorf("got %v and %q, want 1 and the package", absent.Ours, line)
	}
	rounds := 0
	broken := row{Work: "work", ours: steps(1, 1), theirs: func(context.Context) (float64, error) {
		if rounds++; rounds == 1 {
			return 1, nil
		}
		return 0, errors.New("broken pipe")
	}}
	broken.measure(t.Context(), 2)
	if err := failures([]row{absent}); err != nil {
		t.Errorf("failures: got %v for a missing peer, want none", err)
	}
	if err := failures([]row{absent, broken}); err == nil || !strings.Contains(err.Error(), "broken pipe") {
		t.Errorf("failures: got %v, want that of the broken peer", err)
	}
}

// TestSides: each pair of workers moves bytes between two ends, here in one process.
func TestSides(t *testing.T) {
	for _, name := range []string{"tcp", "tls", "stream", "stream-sealed", "stream-host", "transfer"} {
		t.Run(name, func(t *testing.T) {
			k, err := kindOf(name)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			addr, ended := make(chan string, 1), make(chan error, 1)
			go func() { ended <- k.serve(ctx, "127.0.0.1:0", 64*kib, func(a string) { addr <- a }) }()
			select {
			case a := <-addr:
				if v, err := k.measure(ctx, a, 64*kib, 1); err != nil || v <= 0 {
					t.Errorf("measure: got %v, %v; want a rate", v, err)
				}
				cancel()
				<-ended
			case err := <-ended:
				t.Fatalf("serve: got %v, want an address", err)
			}
			cancel()
		})
	}
}

// TestRows: every row has a work, a unit and our side, and the results survive a round trip through the file.
func TestRows(t *testing.T) {
	rows := (&bench{}).rows()
	for i := range rows {
		if r := &rows[i]; r.Work == "" || r.Unit == "" || r.ours == nil || (r.theirs == nil) != (r.Peer == "") {
			t.Errorf("row %d: got %+v, want work, unit, our side, and a name for a peer", i, r)
		}
	}
	file := filepath.Join(t.TempDir(), "dir", "results.json")
	if err := save(file, origin{Commit: "c0ffee"}, rows); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Commit string
		Rows   []row
	}
	if err := json.Unmarshal(b, &got); err != nil || got.Commit != "c0ffee" || len(got.Rows) != len(rows) {
		t.Errorf("got commit %q and %d rows (%v), want c0ffee and %d", got.Commit, len(got.Rows), err, len(rows))
	}
	var out bytes.Buffer
	if err := run(t.Context(), []string{"-list", "-rows", "^UDP"}, &out, &out); err != nil || !strings.Contains(out.String(), "Go TCP") {
		t.Errorf("-list: got %v: %s, want rows", err, &out)
	}
}
