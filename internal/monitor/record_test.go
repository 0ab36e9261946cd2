package monitor

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

var rewrite = flag.Bool("update", false, "write the golden files")

// scripted is a transfer over two rails, up to the time end. The second rail loses its cable for a
// while.
func scripted(end float64) *Record {
	r := NewRecord(Setup{
		Title: "ibverbx demo: 256 KiB writes over two rails", Hosts: [2]string{"sender", "receiver"}, Seconds: 9, Checked: true,
		Rails: []RailSetup{{Device: "soft0", Peer: "soft1"}, {Device: "soft2", Peer: "soft3"}},
	})
	bytes := int64(0)
	for i := 1; i <= int(end*10); i++ {
		at := float64(i) / 10
		s := Sample{At: at, P50: 7800, P99: 9100, Rails: []RailSample{
			{Rate: (240 + float64(i%3)*8) * mebibyte, Up: 4, Lanes: 4},
			{Rate: (240 + float64(i%4)*6) * mebibyte, Up: 4, Lanes: 4},
		}}
		if at > 3 {
			s.Rails[1].Retransmits = 304
		}
		if at > 3 && at <= 6 {
			s.Rails[1] = RailSample{Lanes: 4, Faults: []string{"pulled"}, Retransmits: 304}
		}
		s.Rate = s.Rails[0].Rate + s.Rails[1].Rate
		bytes += int64(s.Rate / 10)
		s.Bytes, s.Messages = bytes, bytes/(256<<10)
		r.Sample(s)
		switch i {
		case 30:
			r.Event(Event{At: 3, Rail: 1, Bad: true, Text: "the cable of rail 1 is pulled"})
		case 31:
			r.Event(Event{At: 3.1, Rail: 1, Bad: true, Text: "rail 1 lost 4 lanes; 87 requests moved to other lanes"})
		case 60:
			r.Event(Event{At: 6, Rail: 1, Text: "the cable of rail 1 is plugged in"})
		case 61:
			r.Event(Event{At: 6.1, Rail: 1, Text: "rail 1 has 4 lanes in service again"})
		}
	}
	return r
}

// TestScreen compares screens of a scripted transfer with golden files. They must fit the terminal.
func TestScreen(t *testing.T) {
	for _, tt := range []struct {
		name          string
		width, height int
		end           float64
	}{
		{"begin-80x24", 80, 24, 0},
		{"begin-120x40", 120, 40, 0},
		{"pulled-80x24", 80, 24, 4.5},
		{"pulled-120x40", 120, 40, 4.5},
		{"end-80x24", 80, 24, 9},
		{"end-120x40", 120, 40, 9},
		{"end-40x10", 40, 10, 9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := scripted(tt.end).View()
			lines := (&Screen{Width: tt.width, Height: tt.height}).Lines(&v)
			for _, l := range lines {
				if n := utf8.RuneCountInString(l); n > tt.width {
					t.Errorf("a line has %d columns, want at most %d: %q", n, tt.width, l)
				}
			}
			if len(lines) >= tt.height {
				t.Errorf("%d lines, want fewer than %d", len(lines), tt.height)
			}
			golden(t, tt.name+".txt", strings.Join(lines, "\n")+"\n")
		})
	}
}

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// TestScreenPaints: text is styled only if a Screen has a Paint, and a rail that is down is red.
func TestScreenPaints(t *testing.T) {
	v := scripted(4).View()
	s := Screen{Width: 80, Height: 24, Paint: func(look, text string) string { return "<" + look + ">" + text }}
	text := strings.Join(s.Lines(&v), "\n")
	for _, want := range []string{"<31>down, pulled, 304 retransmits", "<32>up", "<31>   3.00 s  the cable"} {
		if !strings.Contains(text, want) {
			t.Errorf("the picture has no %q:\n%s", want, text)
		}
	}
}

// TestScreenScrolls: if the duration is unknown, the newest samples are shown.
func TestScreenScrolls(t *testing.T) {
	r := NewRecord(Setup{Rails: []RailSetup{{}}})
	for i := range 100 {
		r.Sample(Sample{At: float64(i), Rails: []RailSample{{Rate: float64(i)}}})
	}
	v := r.View()
	if got := v.columns(0, 40); len(got) != 40 || got[0] != 60 || got[39] != 99 {
		t.Errorf("columns = %v, want 60 to 99", got)
	}
}

// TestMean: rates are weighted by time, and samples that begin earlier are omitted.
func TestMean(t *testing.T) {
	r := NewRecord(Setup{Rails: []RailSetup{{}}})
	for _, s := range []struct{ at, rate float64 }{{1, 100}, {2, 10}, {4, 40}, {5, 1000}} {
		r.Sample(Sample{At: s.at, Rate: s.rate, Rails: []RailSample{{Rate: s.rate / 2}}})
	}
	v := r.View()
	rails, total := v.Mean(1, 4)
	if total != 30 || rails[0] != 15 {
		t.Errorf("Mean(1, 4) = %v, %v, want [15], 30", rails, total)
	}
	if _, total := v.Mean(10, 20); total != 0 {
		t.Errorf("Mean of no samples = %v, want 0", total)
	}
}

// TestRecordIsBounded: a Record of a long transfer keeps the newest samples and events.
func TestRecordIsBounded(t *testing.T) {
	r := NewRecord(Setup{})
	for i := range 3 * maxSamples {
		r.Sample(Sample{Messages: int64(i)})
		r.Event(Event{Text: strconv.Itoa(i)})
	}
	v := r.View()
	if n := len(v.Samples); n < maxSamples || n >= 2*maxSamples || v.Samples[n-1].Messages != 3*maxSamples-1 {
		t.Errorf("%d samples up to %d, want %d to %d up to %d", n, v.Samples[n-1].Messages, maxSamples, 2*maxSamples, 3*maxSamples-1)
	}
	if n := len(v.Events); n < maxEvents || n >= 2*maxEvents || v.Dropped+n != 3*maxSamples {
		t.Errorf("%d events, want %d to %d", n, maxEvents, 2*maxEvents)
	}
}

// TestWatch: a viewer receives every update once, and is dropped if it does not read.
func TestWatch(t *testing.T) {
	r := NewRecord(Setup{})
	r.Sample(Sample{At: 1})
	now, next, stop := r.watch()
	defer stop()
	_, slow, stopSlow := r.watch()
	defer stopSlow()
	if len(now.Samples) != 1 {
		t.Errorf("the view has %d samples, want 1", len(now.Samples))
	}
	for range maxUpdates {
		r.Event(Event{Text: "x"})
		if u := <-next; u.Event == nil || u.Event.Text != "x" {
			t.Fatalf("update %+v, want the event", u)
		}
	}
	r.End("done")
	if u := <-next; u.Ended != "done" {
		t.Errorf("update %+v, want the end", u)
	}
	if u, ok := <-next; ok {
		t.Errorf("update %+v after the end, want a closed channel", u)
	}
	got := 0
	for u := range slow {
		if got++; u.Ended != "" {
			t.Errorf("a viewer that does not read got the end, want it to be dropped")
		}
	}
	if got != maxUpdates {
		t.Errorf("a viewer that does not read got %d updates, want %d", got, maxUpdates)
	}
	if len(r.watchers) != 0 {
		t.Errorf("%d viewers after the end, want 0", len(r.watchers))
	}
}

// TestBlocks: the height of a block is proportional to its rate, and only a rate of zero is blank.
func TestBlocks(t *testing.T) {
	rates := []float64{0, 0.001, 49, 50, 100}
	if got, want := Blocks(rates, 1, 100)[0], " ▁▄▄█"; got != want {
		t.Errorf("Blocks(%v, 1, 100) = %q, want %q", rates, got, want)
	}
	if got := Blocks([]float64{0, 1}, 1, 0)[0]; got != "  " {
		t.Errorf("Blocks without a top = %q, want blanks", got)
	}
}
