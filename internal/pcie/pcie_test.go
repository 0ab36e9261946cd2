package pcie

import (
	"io/fs"
	"slices"
	"testing"
	"testing/fstest"
)

// server is a machine with two sockets. A GPU and mlx5_0 are behind one switch. mlx5_1 is behind another
// root port of the same host bridge, mlx5_2 on another bridge of the same socket, mlx5_3 on the other
// socket. rxe0 is a software device.
func server() fstest.MapFS {
	m := fstest.MapFS{}
	link := func(name, target string) {
		m[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
	}
	for _, d := range []struct{ nic, route, node string }{
		{"", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", "0\n"},
		{"mlx5_0", "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", "0\n"},
		{"mlx5_1", "pci0000:15/0000:15:05.0/0000:1f:00.0", "0\n"},
		{"mlx5_2", "pci0000:37/0000:37:01.0/0000:38:00.0", "0\n"},
		{"mlx5_3", "pci0000:97/0000:97:01.0/0000:98:00.0", "1\n"},
		{"", "pci0000:b7/0000:b7:00.0", "-1\n"},
	} {
		address := d.route[len(d.route)-len("0000:00:00.0"):]
		link("bus/pci/devices/"+address, "../../../devices/"+d.route)
		m["devices/"+d.route+"/numa_node"] = &fstest.MapFile{Data: []byte(d.node)}
		if d.nic != "" {
			link("class/infiniband/"+d.nic+"/device", "../../../"+address)
		}
	}
	m["class/infiniband/rxe0/parent"] = &fstest.MapFile{Data: []byte("eth0\n")}
	return m
}

const gpu = "0000:18:00.0"

func TestBetween(t *testing.T) {
	for address, want := range map[string]string{
		"0000:19:00.0": "same PCIe switch, 4 hops",
		"0000:1f:00.0": "same host bridge, 6 hops",
		"0000:38:00.0": "same NUMA node",
		"0000:98:00.0": "across NUMA nodes",
		"0000:b7:00.0": "across NUMA nodes",
		"0000:ff:00.0": "across NUMA nodes",
	} {
		if got := Between(server(), gpu, address); got.String() != want || got != Between(server(), address, gpu) {
			t.Errorf("Between(%s) = %v, want %s, and the same from the other side", address, got, want)
		}
	}
}

// TestClosestNICs removes the closest NIC, one after the other.
func TestClosestNICs(t *testing.T) {
	m := server()
	for _, want := range []string{"mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"} {
		if got, d := ClosestNICs(m, gpu); !slices.Equal(got, []string{want}) {
			t.Errorf("ClosestNICs = %v (%v), want %s", got, d, want)
		}
		delete(m, "class/infiniband/"+want+"/device")
	}
	if got, _ := ClosestNICs(m, gpu); got != nil {
		t.Errorf("ClosestNICs without a PCI device = %v, want none", got)
	}
	if got, _ := ClosestNICs(fstest.MapFS{}, gpu); got != nil {
		t.Errorf("ClosestNICs without sysfs = %v, want none", got)
	}
	both := server()
	both["class/infiniband/mlx5_9/device"] = both["class/infiniband/mlx5_0/device"]
	if got, _ := ClosestNICs(both, gpu); !slices.Equal(got, []string{"mlx5_0", "mlx5_9"}) {
		t.Errorf("ClosestNICs = %v, want both", got)
	}
}
