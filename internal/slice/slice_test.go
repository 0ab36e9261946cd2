package slice

import "testing"

func TestParse(t *testing.T) {
	for text, ok := range map[string]bool{
		"": true, "0/1": true, "3/6": true, "5/6": true,
		"6/6": false, "-1/6": false, "3": false, "3/": false, "/6": false, "3/0": false, "3/6x": false, " 3/6": false, "03/6": false, "x": false,
	} {
		if _, err := parse(text); (err == nil) != ok {
			t.Errorf("parse(%q) = %v, want an error: %t", text, err, !ok)
		}
	}
	t.Setenv(Env, "1/4")
	if s := Of(t); s != (Slice{index: 1, parts: 4}) {
		t.Errorf("Of with %s=1/4 = %v", Env, s)
	}
}

// TestParts: every entry is in one part, and counts add up to at least the whole.
func TestParts(t *testing.T) {
	const parts, entries = 6, 47
	for i := range entries {
		in := 0
		for k := range parts {
			if (Slice{k, parts}).Has(i) {
				in++
			}
		}
		if in != 1 || !(Slice{}).Has(i) {
			t.Errorf("entry %d is in %d parts, want one, and in the whole", i, in)
		}
	}
	for full, want := range map[int]int{0: 0, 1: 1, 6: 1, 7: 2, 100: 17} {
		if got := (Slice{2, parts}).Count(full); got != want {
			t.Errorf("Count(%d) of six parts = %d, want %d", full, got, want)
		}
		if got := (Slice{}).Count(full); got != full {
			t.Errorf("Count(%d) of the whole = %d", full, got)
		}
	}
}
