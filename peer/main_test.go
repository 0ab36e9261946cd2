package peer_test

import (
	"fmt"
	"os"
	"testing"

	"ibverbx/internal/enginetest"
)

// TestMain fails if a test leaks a goroutine. In the process that TestTwoProcesses starts,
// it runs the far side instead.
func TestMain(m *testing.M) {
	if addr := os.Getenv(farSideEnv); addr != "" {
		if err := farSide(addr); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	enginetest.Main(m)
}
