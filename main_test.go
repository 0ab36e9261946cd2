package ibverbx_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a test leaves a goroutine behind: the engine has none.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
