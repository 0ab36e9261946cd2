package property

import (
	"flag"
	"testing"

	"ibverbx/internal/testslice"
)

func TestSeed(t *testing.T) {
	for _, c := range []struct {
		seed string
		args []string
		want uint64
		ok   bool
	}{
		{"", nil, 0, true},
		{"17", nil, 17, true},
		{"17", []string{"-rapid.seed=4"}, 4, true},
		{"18446744073709551616", nil, 0, false},
		{"x", nil, 0, false},
	} {
		flags := flag.NewFlagSet("test", flag.ContinueOnError)
		got := flags.Uint64(seedFlag, 0, "")
		if err := use(flags, c.seed, testslice.Slice{}); (err == nil) != c.ok {
			t.Errorf("use(%q) = %v, want an error: %t", c.seed, err, !c.ok)
			continue
		}
		if err := flags.Parse(c.args); err != nil || (c.ok && *got != c.want) {
			t.Errorf("with %q and %q the seed is %d (%v), want %d", c.seed, c.args, *got, err, c.want)
		}
	}
	if err := use(flag.NewFlagSet("test", flag.ContinueOnError), "17", testslice.Slice{}); err != nil {
		t.Errorf("use without the flag = %v, want no error", err)
	}
}

// TestChecks: a slice performs fewer checks, unless the command line sets their number.
func TestChecks(t *testing.T) {
	for _, c := range []struct {
		slice string
		args  []string
		want  int
	}{
		{"0/1", nil, 100},
		{"", nil, 17},
		{"2/6", nil, 17},
		{"2/6", []string{"-rapid.checks=1000"}, 1000},
	} {
		t.Setenv(testslice.Env, c.slice)
		flags := flag.NewFlagSet("test", flag.ContinueOnError)
		got := flags.Int(checksFlag, 100, "")
		if err := use(flags, "", testslice.Of(t)); err != nil {
			t.Fatal(err)
		}
		if err := flags.Parse(c.args); err != nil || *got != c.want {
			t.Errorf("slice %q and %q give %d checks (%v), want %d", c.slice, c.args, *got, err, c.want)
		}
	}
}
