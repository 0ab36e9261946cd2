package mutant

import (
	"errors"
	"strings"
	"testing"
)

// original is a file whose functions the test changes.
const original = `package p

const limit = 4

func (q *queue) push(v int, more ...int) bool { // full at the limit
	return q.n < limit
}

func reset(q *queue) { q.n = 0 }

func first[T any](all []T) T { return all[0] }

func ignore(_ int) {}
`

// TestCombine: the original calls the changed function if its number is selected, in the same line, and two changes of a
// function are independent.
func TestCombine(t *testing.T) {
	c := newCombined()
	for i, edit := range [][2]string{{"q.n < limit", "true"}, {"q.n < limit", "false"}, {"q.n = 0", "q.n = 1"}} {
		after := strings.Replace(original, edit[0], edit[1], 1)
		if err := c.add(i+1, map[string]string{"/d/a.go": original}, map[string]string{"/d/a.go": after}); err != nil {
			t.Fatalf("add of %q: got %v, want no error", edit, err)
		}
	}
	files := c.files()
	const want = `package p

const limit = 4

func (q *queue) push(v int, more ...int) bool { if mutantChosen == 1 { return q.push_mutant1(v, more...) }; if mutantChosen == 2 { return q.push_mutant2(v, more...) }; // full at the limit
	return q.n < limit
}

func reset(q *queue) { if mutantChosen == 3 { reset_mutant3(q); return }; q.n = 0 }

func first[T any](all []T) T { return all[0] }

func ignore(_ int) {}

func (q *queue) push_mutant1(v int, more ...int) bool { // full at the limit
	return true
}

func (q *queue) push_mutant2(v int, more ...int) bool { // full at the limit
	return false
}

func reset_mutant3(q *queue) { q.n = 1 }
`
	if got := files["/d/a.go"]; got != want {
		t.Errorf("the combined file is\n%s\nwant\n%s", got, want)
	}
	if got := files["/d/mutant_chosen.go"]; !strings.HasPrefix(got, "package p\n") || !strings.Contains(got, chosen) || len(files) != 2 {
		t.Errorf("%d files with %q, want 2 and one that reads %s", len(files), got, chosen)
	}
}

// TestApart: a change that cannot be selected at run time is built alone.
func TestApart(t *testing.T) {
	for _, edit := range [][2]string{
		{"limit = 4", "limit = 5"},
		{"v int, more", "v uint, more"},
		{"return all[0]", "return all[1]"},
		{"func ignore(_ int) {}", "func ignore(_ int) { panic(1) }"},
		{"func reset(q *queue) { q.n = 0 }\n", ""},
		{"q.n = 0 }", "q.n = 0 }\n\nvar other int"},
	} {
		c := newCombined()
		after := strings.Replace(original, edit[0], edit[1], 1)
		if err := c.add(1, map[string]string{"a.go": original}, map[string]string{"a.go": after}); !errors.Is(err, errApart) || len(c.files()) != 0 {
			t.Errorf("add of %q: got %v, want %v and no files", edit, err, errApart)
		}
	}
}
