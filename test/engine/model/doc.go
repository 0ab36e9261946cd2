// Package model holds the property tests of the engine: thousands of random steps on scripted NICs, compared
// with models simple enough to be read.
package model
