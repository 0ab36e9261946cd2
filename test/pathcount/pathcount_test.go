package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestWorkingTree counts the path of the working tree, twice. Over memory it contains both sides of
// a request but no setup, and both counts are equal.
func TestWorkingTree(t *testing.T) {
	count := func() string {
		var out bytes.Buffer
		if err := run(t.Context(), &out, "", true); err != nil {
			t.Fatal(err)
		}
		memory, _, _ := strings.Cut(out.String(), "WRITE_WITH_IMM over udp")
		return memory
	}
	memory := count()
	if again := count(); again != memory {
		t.Errorf("two runs differ:\n%s\n%s", memory, again)
	}
	names := strings.Fields(memory)
	for _, name := range []string{"ibverbx.PostSend", "ibverbx.PostRecv", "ibverbx.Poll"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not in the path:\n%s", name, memory)
		}
	}
	for _, name := range []string{"ibverbx.Connect", "softnic.New", "request.write"} {
		if slices.Contains(names, name) {
			t.Errorf("%s is in the path, and it is not part of a request", name)
		}
	}
}

// TestReport: two columns, and the functions missing from one of two paths.
func TestReport(t *testing.T) {
	both := function{"ibverbx/a.go", "both"}
	var out bytes.Buffer
	err := report(&out, "memory", []tree{{name: "old"}, {name: "new"}}, [][]function{{both}, {both, {"ibverbx/softnic/b.go", "more"}}}, true)
	got := strings.Join(strings.Fields(out.String()), " ")
	if want := "WRITE_WITH_IMM over memory old new ibverbx 1 functions 1 files 1 functions 1 files ibverbx/softnic 0 functions 0 files 1 functions 1 files " +
		"total 1 functions 1 files 2 functions 2 files new softnic.more ibverbx/softnic/b.go"; got != want || err != nil {
		t.Errorf("report = %q, %v; want %q", got, err, want)
	}
}

// TestFrequent: a block counts if it is executed in half of the requests.
func TestFrequent(t *testing.T) {
	line := func(file string, count int) string { return fmt.Sprintf("ibverbx/%s.go:3.2,4.5 2 %d\n", file, count) }
	want := "mode: atomic\n" + line("a", requests/2)
	got, err := frequent(want + line("test/pathcount/request/main", requests) + line("b", requests/2-1))
	if string(got) != want || err != nil {
		t.Errorf("frequent = %q, %v; want %q", got, err, want)
	}
	if _, err := frequent("ibverbx/a.go:3.2,4.5 x\n"); err == nil {
		t.Error("a block without a count is accepted")
	}
}
