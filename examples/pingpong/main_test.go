package main

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func Example() {
	if err := run(context.Background(), os.Stdout, 2); err != nil {
		fmt.Println(err)
	}
	// Output:
	// soft1 got "ping 0"
	// soft0 got "pong 0"
	// soft1 got "ping 1"
	// soft0 got "pong 1"
}
