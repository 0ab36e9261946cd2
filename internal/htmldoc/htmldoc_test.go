package htmldoc

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

// write returns a document as text.
func write(t *testing.T, d *Document) string {
	t.Helper()
	var b strings.Builder
	if err := Write(&b, d); err != nil {
		t.Fatalf("Write: got %v, want no error", err)
	}
	return b.String()
}

// evil would run a script if it were not escaped.
const evil = `"'></title></svg><script>alert(1)</script>{{.}}`

// TestEscapes: no text of a document becomes markup.
func TestEscapes(t *testing.T) {
	text := write(t, &Document{Title: evil, Summary: evil, Sections: []Section{{
		Title: evil, Text: evil, Facts: []Fact{{evil, evil}},
		Tables: []Table{{Title: evil, Head: []string{evil}, Rows: [][]Cell{{{evil, CellStyle(evil)}}}}},
		Charts: []Chart{{
			Title: evil, X: evil, Y: evil, Lines: []Line{{Name: evil, Points: []Point{{0, 1}, {1, 2}}}, {Name: evil, Points: []Point{{0, 1}}}},
			Marks: []Mark{{X: 0.5, Text: evil, Style: CellStyle(evil)}},
		}},
	}}})
	if strings.Contains(text, "<script") || strings.Contains(text, "'></title>") {
		t.Errorf("the document has a text that is not escaped:\n%s", text)
	}
	if n := strings.Count(text, "alert(1)"); n < 16 {
		t.Errorf("the document has the text %d times, want it in every place", n)
	}
	wellFormed(t, text)
}

// wellFormed checks that all elements are closed.
func wellFormed(t *testing.T, text string) {
	t.Helper()
	d := xml.NewDecoder(strings.NewReader(text))
	d.Strict, d.AutoClose, d.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Errorf("the document is not well formed: %v", err)
			return
		}
	}
}

// TestSelfContained: a document names no other file or host.
func TestSelfContained(t *testing.T) {
	for _, bad := range []string{"http:", "https:", "src=", "@import", "url(", "<script"} {
		if strings.Contains(page, bad) {
			t.Errorf("the template has %q", bad)
		}
	}
}

// TestCharts: values are where they belong, and what cannot be drawn is left out.
func TestCharts(t *testing.T) {
	p := draw(Chart{
		Lines: []Line{{Name: "a", Points: []Point{{0, 0}, {10, 400}}}, {Name: "none"}},
		Marks: []Mark{{X: 5, Text: "half"}, {X: 11, Text: "outside"}},
	})
	if p == nil || p.Paths[0].D != "M80 250L845 14" || p.Paths[1].D != "" || len(p.Labels) != 1 || p.Labels[0].At != 462.5 {
		t.Errorf("draw = %+v, want a line from corner to corner and a mark in the middle", p)
	}
	if n := len(p.GridY); n != 5 || p.GridY[4].Text != "400" || p.GridY[4].At != chartTop {
		t.Errorf("the vertical axis is %+v, want 0 to 400", p.GridY)
	}
	p = draw(Chart{Log: true, Bars: []Bar{{1, 10, 3}, {10, 100, 4}}})
	if p == nil || len(p.Rects) != 2 || p.Rects[0].X != 80 || p.Rects[1].X != 462.5 || p.Rects[1].Y != chartTop || p.Rects[1].Height != chartBottom-chartTop {
		t.Errorf("draw = %+v, want two bars of equal width", p)
	}
	for _, c := range []Chart{
		{},
		{Lines: []Line{{Points: []Point{{1, 1}}}}},
		{Lines: []Line{{Points: []Point{{1, 0}, {2, 0}}}}},
		{Log: true, Lines: []Line{{Points: []Point{{0, 1}, {2, 1}}}}},
	} {
		if p := draw(c); p != nil {
			t.Errorf("draw(%+v) = %+v, want nothing", c, p)
		}
	}
	for x, want := range map[float64]float64{0: 0, 0.03: 0.05, 1: 1, 1.1: 2, 2.2: 2.5, 3: 5, 7: 10, 1e6: 1e6} {
		if got := nice(x); math.Abs(got-want) > 1e-9*want {
			t.Errorf("nice(%v) = %v, want %v", x, got, want)
		}
	}
	for x, want := range map[float64]string{0.25: "0.25", 400: "400", 12500: "12.5k", 2.5e6: "2.5M"} {
		if got := number(x); got != want {
			t.Errorf("number(%v) = %q, want %q", x, got, want)
		}
	}
}
