package reliable_test

import (
	"testing"

	"ibverbx/internal/rig"
)

func TestMain(m *testing.M) { rig.Main(m) }
