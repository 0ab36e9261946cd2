package softnic_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"ibverbx/internal/property"
)

// TestMain fails if a test leaks a goroutine: a link whose NICs are closed has none.
func TestMain(m *testing.M) {
	property.Seed()
	_ = flag.Set("test.parallel", "8") // parallel tests wait most of the time; a flag of go test overrides it
	goleak.VerifyTestMain(m)
}
