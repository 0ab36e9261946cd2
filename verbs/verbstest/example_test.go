package verbstest_test

import (
	"errors"
	"fmt"
	"log"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// Run the conformance suite on a provider, here on two software NICs.
func ExampleRun() {
	open := func(tb testing.TB) verbs.Context {
		nic, err := softnic.New(softnic.NewMemoryLink(nil), softnic.Config{})
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = nic.Close() })
		ctx, err := nic.Open()
		if err != nil {
			tb.Fatal(err)
		}
		return ctx
	}
	// In a test file this is TestConformance.
	_ = func(t *testing.T) {
		verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
			ctx := open(tb)
			return verbstest.Pair{A: ctx, B: ctx} // both may be contexts of the same device
		})
	}
}

// Test code for GPU memory without a GPU, and inject a failing copy.
func ExampleMemoryDevice() {
	gpu := &verbstest.MemoryDevice{}
	mem, err := gpu.Alloc(4096)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(mem.Bytes() == nil) // the CPU cannot access it

	_, err = mem.WriteAt([]byte("hello"), 0)
	fmt.Println(err)
	gpu.FailAfter(0)
	_, err = mem.WriteAt([]byte("again"), 0)
	fmt.Println(errors.Is(err, verbstest.ErrCopy))
	gpu.FailAfter(-1)
	fmt.Println(mem.Free())
	// Output:
	// true
	// <nil>
	// true
	// <nil>
}
