package core

import (
	"testing"

	"go.uber.org/goleak"

	"ibverbx/internal/property"
)

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) {
	property.Seed()
	goleak.VerifyTestMain(m)
}
