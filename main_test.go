package ibverbx_test

import (
	"testing"

	"go.uber.org/goleak"

	"ibverbx/internal/property"
)

// TestMain fails if a test leaves a goroutine behind: the engine has none.
func TestMain(m *testing.M) {
	property.Seed()
	goleak.VerifyTestMain(m)
}
