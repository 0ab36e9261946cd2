// Package property makes a run of the property tests repeatable. A CI that draws new seeds every
// time can fail for a change that passed a minute ago. With a seed in the environment every test
// draws the same values again. Without one it draws new values, which finds mistakes. A slice
// (package slice) checks each property less often.
package property

import (
	"flag"
	"fmt"
	"os"
	"strconv"

	"ibverbx/internal/testslice"
)

// Env is the environment variable with the seed, a number. .ci/run derives it from the commit:
// each commit has draws of its own, and the same ones every time.
const Env = "IBVERBX_TEST_SEED"

// Flags of pgregory.net/rapid. A value on the command line wins.
const (
	seedFlag   = "rapid.seed"
	checksFlag = "rapid.checks"
)

// Seed is for TestMain of a package with property tests, before they run. It makes them use the
// seed and the slice of the environment. A bad value ends the process.
func Seed() {
	part, err := testslice.Current()
	if err == nil {
		err = use(flag.CommandLine, os.Getenv(Env), part)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// use makes the seed, and the part's share of the checks, the defaults of the flags.
func use(flags *flag.FlagSet, seed string, part testslice.Slice) error {
	if f := flags.Lookup(checksFlag); f != nil { // the package may have property tests on other systems
		full, err := strconv.Atoi(f.DefValue)
		if err == nil {
			err = flags.Set(checksFlag, strconv.Itoa(part.Count(full)))
		}
		if err != nil {
			return fmt.Errorf("property: -%s is %q by default: %w", checksFlag, f.DefValue, err)
		}
	}
	if seed == "" || flags.Lookup(seedFlag) == nil {
		return nil
	}
	if err := flags.Set(seedFlag, seed); err != nil {
		return fmt.Errorf("property: %s is %q: want a number up to 2^64-1: %w", Env, seed, err)
	}
	return nil
}
