package cuda_test

import (
	"errors"
	"fmt"
	"log"

	"ibverbx/cuda"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Register GPU memory with a NIC. Requests use it like host memory.
func Example() {
	gpu, err := cuda.Open(0)
	if err != nil {
		log.Fatal(err)
	}
	defer gpu.Close()
	mem, err := gpu.Alloc(1 << 20)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = mem.Free() }()
	if _, err := mem.WriteAt([]byte("hello"), 0); err != nil {
		log.Fatal(err)
	}

	nic, err := softnic.New(softnic.NewMemoryLink(nil), softnic.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer nic.Close()
	ctx, err := nic.Open()
	if err != nil {
		log.Fatal(err)
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	mr, err := pd.RegisterMemory(mem, verbs.AccessAll)
	fmt.Println(mr.Addr() == mem.Addr(), mr.Len(), err)
}

// Without a driver, Load reports the reason, and programs can fall back to host memory.
func ExampleLoad() {
	_, err := cuda.Load(cuda.Config{Library: "/nowhere/libcuda.so.1"})
	fmt.Println(errors.Is(err, cuda.ErrNoDriver), errors.Is(err, verbs.ErrNotSupported))
	// Output: true true
}
