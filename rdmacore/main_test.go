package rdmacore_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a test leaks a goroutine. Closing a context stops its goroutines.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
