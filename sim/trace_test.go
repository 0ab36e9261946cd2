package sim

import (
	"bytes"
	"encoding/json"
	"testing"
)

// TestSameTrace: equal seeds produce byte-identical traces, whatever ran before and wherever the memory is,
// and different seeds different traces.
func TestSameTrace(t *testing.T) {
	s, err := Builtin("mixed")
	if err != nil {
		t.Fatal(err)
	}
	first, second := NewPool(), NewPool()
	trace := func(pool *Pool, seed uint64) []byte {
		var b bytes.Buffer
		plans, err := s.Plans(seed)
		if err != nil {
			t.Fatal(err)
		}
		if r := plans[0].Run(Options{Pool: pool, Trace: &b}); r.Failure != nil {
			t.Fatalf("seed %d: %v", seed, r.Failure)
		}
		return b.Bytes()
	}
	n := seeds(t, 30)
	var before []byte
	for seed := range n {
		a := trace(first, seed)
		for line := range bytes.Lines(a) {
			if !json.Valid(line) {
				t.Fatalf("seed %d: not a line of JSON: %s", seed, line)
			}
		}
		if bytes.Equal(a, before) {
			t.Fatalf("seeds %d and %d give the same trace", seed-1, seed)
		}
		before = a
	}
	for i := range n { // In reverse order.
		seed := n - 1 - i
		a, b := trace(first, seed), trace(second, seed)
		if !bytes.Equal(a, b) {
			t.Fatalf("seed %d: two runs differ from line %d on", seed, differs(a, b))
		}
	}
	for _, p := range []*Pool{first, second} {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// differs returns the number of the first line that differs between two texts.
func differs(a, b []byte) int {
	la, lb := bytes.Split(a, []byte("\n")), bytes.Split(b, []byte("\n"))
	for i := range la {
		if i >= len(lb) || !bytes.Equal(la[i], lb[i]) {
			return i + 1
		}
	}
	return len(la) + 1
}

// TestPlanText: printing and parsing a plan returns the same plan.
func TestPlanText(t *testing.T) {
	s, err := Builtin("mixed")
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(200) {
		plans, err := s.Plans(seed)
		if err != nil {
			t.Fatal(err)
		}
		text := plans[0].String()
		again, err := Parse("again", text)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		back, err := again.Plans(seed)
		if err != nil {
			t.Fatal(err)
		}
		if got := back[0].String(); got != text {
			t.Fatalf("seed %d: read and written again it is\n%s\nwant\n%s", seed, got, text)
		}
	}
}
