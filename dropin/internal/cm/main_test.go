package cm

import (
	"flag"
	"os"
	"strconv"
	"testing"

	"ibverbx/internal/property"
	"ibverbx/internal/testslice"
)

// TestMain draws ten times as often as a slice does for other properties: a draw of the model takes half a millisecond.
func TestMain(m *testing.M) {
	property.Seed()
	if part, err := testslice.Current(); err == nil { // Seed has checked it
		_ = flag.Set("rapid.checks", strconv.Itoa(10*part.Count(100)))
	}
	os.Exit(m.Run())
}
