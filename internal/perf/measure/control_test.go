package measure

import "testing"

// TestAccepts: the remote side may only request work that makes sense and is bounded.
func TestAccepts(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  Config
		fill bool
		n    int64
		in   bool
		want bool
	}{
		{"a fill of too many", Config{Op: Read, Check: true}, true, 5, true, false},
		{"a compare of too many", Config{Op: Write, Check: true}, false, 5, true, false},
		{"a fill of a write", Config{Op: Write, Check: true}, true, 4, true, false},
		{"a compare of a read", Config{Op: Read, Check: true}, false, 4, true, false},
		{"a compare without --check", Config{Op: Write}, false, 4, true, false},
		{"a compare of what nobody sends", Config{Op: Write, Check: true}, false, 4, false, false},
		{"a compare", Config{Op: Write, Check: true}, false, 4, true, true},
		{"a fill", Config{Op: Read, Check: true}, true, 4, true, true},
	} {
		s := &side{}
		if tt.in {
			s.in = &flow{}
		}
		r := &SizeRun{plan: plan{chain: 2, window: 2}, cfg: &tt.cfg, sides: [2]*side{s, {}}}
		if got := r.Accepts(tt.fill, tt.n); got != tt.want {
			t.Errorf("%s is accepted: %v, want %v", tt.name, got, tt.want)
		}
	}
}
