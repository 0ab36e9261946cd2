package rdmacore_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a test leaves a goroutine behind: a context that is closed has none.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
