package u32map_test

import (
	"os"
	"testing"

	"ibverbx/internal/property"
)

func TestMain(m *testing.M) {
	property.Seed()
	os.Exit(m.Run())
}
