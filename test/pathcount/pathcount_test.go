package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
)

// TestWorkingTree counts a path over memory, twice. It must contain both ends, and be the same both times.
func TestWorkingTree(t *testing.T) {
	count := func() (results []result) {
		t.Helper()
		var out bytes.Buffer
		if err := run([]string{"-json", "-links", "memory", "-requests", "100"}, &out); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(out.Bytes(), &results); err != nil || len(results) != 1 {
			t.Fatalf("got %d results and error %v, want one result", len(results), err)
		}
		return results
	}
	first, second := count()[0], count()[0]
	for _, name := range []string{"ibverbx.VirtualQP.PostSend", "ibverbx.VirtualQP.PostRecv", "ibverbx.VirtualCQ.Poll"} {
		if !slices.Contains(first.Names, name) {
			t.Errorf("%s is not in the path: %q", name, first.Names)
		}
	}
	for _, name := range []string{"ibverbx.VirtualQP.Connect", "softnic.New"} {
		if slices.Contains(first.Names, name) || slices.Contains(first.Occasional, name) {
			t.Errorf("%s is in the path, and it is not part of a request", name)
		}
	}
	if !slices.Equal(first.Names, second.Names) {
		t.Errorf("two runs differ:\n%q\n%q", first.Names, second.Names)
	}
	var out bytes.Buffer
	if err := report(&out, []result{first, second}, true); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(out.Bytes(), []byte("working tree, 0 functions")) {
		t.Errorf("the difference of equal paths is not empty:\n%s", &out)
	}
}

func TestProfile(t *testing.T) {
	const profile = "mode: atomic\nibverbx/test/pathcount/request/main.go:1.1,2.2 1 9\nibverbx/a.go:3.2,4.5 2 7\nibverbx/a.go:8.1,9.1 1 0\n"
	files, err := parseProfile(profile)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := files["ibverbx/a.go"], []block{{line: 3, column: 2, count: 7}}; len(files) != 1 || !slices.Equal(got, want) {
		t.Errorf("got %v, want only %v of a.go", files, want)
	}
	if _, err := parseProfile("ibverbx/a.go:3.2,4.5 2\n"); err == nil {
		t.Error("a block without a count is accepted")
	}
}
