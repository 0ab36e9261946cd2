package rdmacore_test

import (
	"errors"
	"fmt"
	"log"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// Open the first port of an RDMA NIC. The error names the missing prerequisite: the library, the kernel
// modules or the device.
func Example() {
	lib, err := rdmacore.Load(rdmacore.Config{})
	if err != nil {
		log.Fatal(err)
	}
	devices, err := lib.Devices()
	if errors.Is(err, rdmacore.ErrNoDevice) {
		log.Fatal("no RDMA NIC: ", err)
	}
	chosen, err := rdmacore.Select("mlx5_0:1", devices)
	if err != nil {
		log.Fatal(err)
	}
	ctx, err := chosen[0].Device.Open()
	if err != nil {
		log.Fatal(err)
	}
	defer ctx.Close()
	port, err := ctx.QueryPort(chosen[0].Port)
	fmt.Println(port.State, port.SpeedMbps, err)
}

// nicName is a device that only has a name.
type nicName string

func (n nicName) Name() string { return string(n) }

// Select devices by name prefix, by exact name and by exclusion.
func ExampleSelect() {
	devices := []nicName{"mlx5_0", "mlx5_1", "mlx5_10", "rxe0"}
	for _, spec := range []string{"mlx5_1", "=mlx5_1:2", "^mlx5", "mlx4"} {
		chosen, err := rdmacore.Select(spec, devices)
		fmt.Printf("%-10s %v %v\n", spec, chosen, errors.Is(err, verbs.ErrNotFound))
	}
	// Output:
	// mlx5_1     [{mlx5_1 0} {mlx5_10 0}] false
	// =mlx5_1:2  [{mlx5_1 2}] false
	// ^mlx5      [{rxe0 0}] false
	// mlx4       [] true
}
