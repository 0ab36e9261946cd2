package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"ibverbx/sim/measure"
)

// fake returns an invented result for every scenario.
func fake(name string) (*measure.Result, error) {
	if _, ok := measure.Named(name); !ok {
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
		d := xml.NewDecoder(bytes.NewReader(svg))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s is not well-formed: %v", p.name, err)
			}
		}
		for _, want := range []string{"<title>", "prefers-color-scheme: dark"} {
			if !bytes.Contains(svg, []byte(want)) {
				t.Errorf("%s has no %q", p.name, want)
			}
		}
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
