package testslice

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for text, ok := range map[string]bool{
		"": true, "0/1": true, "3/6": true, "5/6": true,
		"6/6": false, "-1/6": false, "3": false, "3/": false, "/6": false, "3/0": false, "3/6x": false, " 3/6": false, "03/6": false, "x": false,
	} {
		if _, err := parse(text); (err == nil) != ok {
			t.Errorf("parse(%q) = %v, want an error: %t", text, err, !ok)
		}
	}
	for s, want := range map[Slice]bool{{}: true, {0, 1}: true, {0, 2}: false, {1, 2}: false} {
		if s.Whole() != want {
			t.Errorf("Whole of %v = %t, want %t", s, s.Whole(), want)
		}
	}
	t.Setenv(Env, "1/4")
	if s := Of(t); s != (Slice{index: 1, parts: 4}) {
		t.Errorf("Of with %s=1/4 = %v", Env, s)
	}
}

// TestParts: the parts cover the list, are never empty, and do not overlap for long lists.
func TestParts(t *testing.T) {
	const parts = 6
	for _, entries := range []int{1, 2, 5, 6, 7, 47} {
		total := 0
		covered := map[int]bool{}
		for k := range parts {
			before := total
			for i := range entries {
				if (Slice{k, parts}).Has(i, entries) {
					total++
					covered[i] = true
				}
			}
			if total == before {
				t.Errorf("part %d of %d entries is empty", k, entries)
			}
		}
		if len(covered) != entries || total != max(entries, parts) {
			t.Errorf("the parts of %d entries have %d entries, %d different ones", entries, total, len(covered))
		}
		if !(Slice{}).Has(entries-1, entries) {
			t.Errorf("the whole lacks entry %d", entries-1)
		}
	}
	for full, want := range map[int]int{0: 0, 1: 1, 6: 1, 7: 2, 100: 17} {
		if got := (Slice{2, parts}).Count(full); got != want {
			t.Errorf("Count(%d) of six parts = %d, want %d", full, got, want)
		}
		for k := range parts {
			s := Slice{k, parts}
			if got, want := s.First(full), k*s.Count(full); got != want {
				t.Errorf("First(%d) of part %d = %d, want %d", full, k, got, want)
			}
		}
		if got := (Slice{}).First(full); got != 0 {
			t.Errorf("First(%d) of the whole = %d, want 0", full, got)
		}
		if got := (Slice{}).Count(full); got != full {
			t.Errorf("Count(%d) of the whole = %d", full, got)
		}
	}
}

// TestPick: the parts of a test together contain all entries of a list.
func TestPick(t *testing.T) {
	all, picked := []string{"a", "b", "c", "d", "e"}, map[string]int{}
	for _, part := range []string{"0/3", "1/3", "2/3"} {
		t.Setenv(Env, part)
		for _, v := range Pick(t, all) {
			picked[v]++
		}
	}
	for _, v := range all {
		if picked[v] != 1 {
			t.Errorf("%q is in %d parts, want 1", v, picked[v])
		}
	}
}

// TestScript: .ci/part chooses the same entries as Has. With a limit it uses fewer parts.
func TestScript(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skipf("no bash: %v", err)
	}
	for _, tt := range []struct {
		entries, part, parts int
		limit                string
		same                 Slice
	}{
		{0, 0, 1, "", Slice{0, 1}},
		{7, 0, 1, "", Slice{0, 1}},
		{14, 0, 6, "", Slice{0, 6}},
		{14, 5, 6, "", Slice{5, 6}},
		{4, 5, 6, "", Slice{5, 6}},
		{14, 7, 18, "6", Slice{1, 6}},
		{4, 6, 18, "6", Slice{0, 6}},
		{4, 17, 18, "6", Slice{5, 6}},
		{14, 2, 3, "6", Slice{2, 3}},
	} {
		var lines, want string
		for i := range tt.entries {
			line := fmt.Sprintf("entry %d\n", i)
			lines += line
			if tt.same.Has(i, tt.entries) {
				want += line
			}
		}
		cmd := exec.CommandContext(t.Context(), "bash", append([]string{"../../.ci/part"}, strings.Fields(tt.limit)...)...)
		cmd.Stdin = strings.NewReader(lines)
		cmd.Env = append(cmd.Environ(), fmt.Sprintf("%s=%d/%d", Env, tt.part, tt.parts))
		if got, err := cmd.Output(); err != nil || string(got) != want {
			t.Errorf(".ci/part %s of %d entries with %d/%d prints %q, %v, want %q", tt.limit, tt.entries, tt.part, tt.parts, got, err, want)
		}
	}
}

// TestAtMost: every part of a suite with at most n parts belongs to some part of more.
func TestAtMost(t *testing.T) {
	for _, tt := range []struct{ from, want Slice }{
		{Slice{4, 6}, Slice{1, 3}}, {Slice{17, 18}, Slice{2, 3}}, {Slice{1, 2}, Slice{1, 2}}, {Slice{0, 1}, Slice{0, 1}}, {Slice{}, Slice{}},
	} {
		if got := tt.from.AtMost(3); got != tt.want {
			t.Errorf("%v.AtMost(3) = %v, want %v", tt.from, got, tt.want)
		}
	}
}
