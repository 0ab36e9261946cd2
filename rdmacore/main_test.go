package rdmacore_test

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a test leaks a goroutine. A closed context has none.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
