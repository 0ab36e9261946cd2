package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ibverbx/sim/measure"
)

// fake returns an invented result for every scenario.
func fake(name string) (*measure.Result, error) {
	if _, ok := measure.Builtin(name); !ok {
		return nil, errors.New("no scenario " + name)
	}
	r := &measure.Result{Scenario: name, GoodputRatio: 0.75}
	if strings.HasPrefix(name, "rc-") {
		r.GoodputRatio = 0.5
	}
	return r, nil
}

// TestPictures draws every picture from invented results. Each must be well-formed and have a title and
// dark colours.
func TestPictures(t *testing.T) {
	for _, p := range pictures() {
		svg, err := p.draw(fake)
		if err != nil {
			t.Fatalf("%s: %v, want a picture", p.name, err)
		}
		check(t, p.name, svg, "<title>", "prefers-color-scheme: dark")
	}
}

// check wants a picture to be well-formed and to have some texts.
func check(t *testing.T, name string, svg []byte, wants ...string) {
	t.Helper()
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%s is not well-formed: %v", name, err)
		}
	}
	for _, want := range wants {
		if !bytes.Contains(svg, []byte(want)) {
			t.Errorf("%s has no %q", name, want)
		}
	}
}

// TestDemoPicture draws a demo of two samples. Runs of equal blocks are one rectangle.
func TestDemoPicture(t *testing.T) {
	demo := `{"setup": {"title": "a <demo>", "seconds": 2, "rails": [{"device": "a", "peer": "b"}]}, "ended": "All is well.", "events": [{"text": "pulled"}],
		"samples": [{"at": 1, "rails": [{"bytes_per_second": 8, "up": 4, "lanes": 4}]}, {"at": 2, "rails": [{"bytes_per_second": 4, "lanes": 4}]}]}`
	file := filepath.Join(t.TempDir(), "demo.svg")
	if err := demoPicture(strings.NewReader(demo), file); err != nil {
		t.Fatalf("demoPicture: %v, want no error", err)
	}
	svg, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "demo.svg", svg, ">$ ibverbx demo<", ">a &lt;demo&gt;<", ">All is well.<", `<text class="t1"`, `width="663.6" height="18.0"`)
	if n := bytes.Count(svg, []byte(`<rect class="t0"`)); n != 6 {
		t.Errorf("demo.svg has %d rectangles, want one for each line of the chart", n)
	}
	if err := demoPicture(strings.NewReader("no JSON"), file); err == nil {
		t.Errorf("demoPicture of no JSON: no error, want one")
	}
}

func TestGoodputLoss(t *testing.T) {
	svg, err := goodputLoss(fake)
	if err != nil {
		t.Fatalf("%v, want a picture", err)
	}
	for _, want := range []string{">0.750<", ">0.500<", ">reliable<", ">one RC QP<", ">packets lost", ">goodput, share", ">0.01%<", ">5%<"} {
		if !bytes.Contains(svg, []byte(want)) {
			t.Errorf("the plot has no %q", want)
		}
	}
	broken := errors.New("broken")
	if _, err := goodputLoss(func(string) (*measure.Result, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("a scenario that fails: error %v, want %v", err, broken)
	}
}
