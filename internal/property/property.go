// Package property makes a run of the property tests repeatable. A gate that draws new seeds
// every time can fail for a change that passed a minute ago, and whoever is stopped by it has
// not made the mistake. With a seed in the environment every test draws the same again; without
// one it draws anew, which is what finds mistakes.
package property

import (
	"flag"
	"fmt"
	"os"
)

// Env is the environment variable with the seed, a number. .ci/run derives it from the commit:
// each commit has draws of its own, and the same ones every time.
const Env = "IBVERBX_SEED"

// seedFlag is the flag of pgregory.net/rapid; a seed on the command line wins.
const seedFlag = "rapid.seed"

// Seed is for TestMain of a package with property tests, before they run: they have the seed of
// the environment from then on. A bad one ends the process.
func Seed() {
	if err := use(flag.CommandLine, os.Getenv(Env)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}

// use makes seed the default of the flag.
func use(flags *flag.FlagSet, seed string) error {
	if seed == "" || flags.Lookup(seedFlag) == nil { // the package may have property tests on other systems
		return nil
	}
	if err := flags.Set(seedFlag, seed); err != nil {
		return fmt.Errorf("property: %s is %q: want a number up to 2^64-1: %w", Env, seed, err)
	}
	return nil
}
