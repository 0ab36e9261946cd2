package matrix_test

import (
	"testing"

	"ibverbx/internal/enginetest"
)

func TestMain(m *testing.M) { enginetest.Main(m) }
