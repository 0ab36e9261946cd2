package shm

import (
	"testing"

	"go.uber.org/goleak"

	"ibverbx/internal/property"
)

func TestMain(m *testing.M) {
	property.Seed()
	goleak.VerifyTestMain(m)
}
