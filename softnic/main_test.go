package softnic_test

import (
	"testing"

	"go.uber.org/goleak"

	"ibverbx/internal/property"
)

// TestMain fails if a test leaves a goroutine behind: a link whose NICs are closed has
// none.
func TestMain(m *testing.M) {
	property.Seed()
	goleak.VerifyTestMain(m)
}
