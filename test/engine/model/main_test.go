package model_test

import (
	"flag"
	"strconv"
	"testing"

	"go.uber.org/goleak"

	"ibverbx/internal/property"
	"ibverbx/internal/testslice"
)

// TestMain draws three times as often as a slice does for other properties: with 17 draws the models miss mistakes that
// they find with 50.
func TestMain(m *testing.M) {
	property.Seed()
	if part, err := testslice.Current(); err == nil { // Seed has checked it
		_ = flag.Set("rapid.checks", strconv.Itoa(min(3*part.Count(100), 100)))
	}
	goleak.VerifyTestMain(m)
}
