package bootstrap

import (
	"flag"
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8") // parallel tests wait most of the time; a flag of go test overrides it
	goleak.VerifyTestMain(m)
}
