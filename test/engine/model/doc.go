// Package model holds the property tests of the engine: thousands of random steps on NICs that
// do only what the test says, compared with models that are simple enough to be read.
package model
