// Package property makes property tests repeatable. TestMain calls [Seed]. With IBVERBX_TEST_SEED, which
// .ci/run derives from the commit, every run draws the same values. Otherwise each run draws new ones. A
// slice (package testslice) checks each property less often.
package property

import (
	"flag"
	"fmt"
	"os"
	"strconv"

	"ibverbx/internal/testslice"
)

// Env is the environment variable with the seed, a number. .ci/run derives it from the commit, so
// each commit draws different values, and the same ones in every run.
const Env = "IBVERBX_TEST_SEED"

// Flags of pgregory.net/rapid. Values on the command line take precedence.
const (
	seedFlag   = "rapid.seed"
	checksFlag = "rapid.checks"
)

// Seed is for TestMain of a package with property tests, before they run. It applies the
// environment's seed and slice. An invalid value exits the process.
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

// use sets the default flag values: the seed, and the part's share of the checks.
func use(flags *flag.FlagSet, seed string, part testslice.Slice) error {
	if f := flags.Lookup(checksFlag); f != nil { // on other systems, the package may lack property tests
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
