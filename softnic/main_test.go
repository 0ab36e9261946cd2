package softnic_test

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"ibverbx/internal/property"
)

// TestMain fails if a test leaks a goroutine: closing all NICs of a link stops its
// goroutines.
func TestMain(m *testing.M) {
	property.Seed()
	_ = flag.Set("test.parallel", "8") // parallel tests mostly wait; a flag of go test overrides it
	goleak.VerifyTestMain(m)
}
