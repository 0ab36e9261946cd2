package cm

import (
	"flag"
	"os"
	"strconv"
	"testing"

	"ibverbx/internal/property"
	"ibverbx/internal/testslice"
)

// TestMain draws ten times as many cases as slices do for other properties: a draw of the model
// takes half a millisecond.
func TestMain(m *testing.M) {
	property.Seed()
	if part, err := testslice.Current(); err == nil { // Seed has validated it
		_ = flag.Set("rapid.checks", strconv.Itoa(10*part.Count(100)))
	}
	os.Exit(m.Run())
}
