// Package pcie finds out from sysfs how far apart two PCI devices are, such as a GPU and a NIC.
package pcie

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Level says what two devices have in common. Smaller is closer.
type Level int

// Levels, closest first.
const (
	Switch    Level = iota // a PCIe switch or bridge
	Bridge                 // a host bridge of the processor
	Node                   // a NUMA node
	Elsewhere              // nothing, or it is not known
)

func (l Level) String() string {
	switch l {
	case Switch:
		return "same PCIe switch"
	case Bridge:
		return "same host bridge"
	case Node:
		return "same NUMA node"
	case Elsewhere:
	}
	return "across NUMA nodes"
}

// Distance is how far apart two devices are.
type Distance struct {
	Level Level
	// Hops is the number of links between the devices and what they have in common. It is 0 for Node and
	// Elsewhere.
	Hops int
}

func (d Distance) String() string {
	if d.Hops == 0 {
		return d.Level.String()
	}
	return fmt.Sprintf("%s, %d hops", d.Level, d.Hops)
}

// Compare is negative if d is less far than e, and 0 if they are equal.
func (d Distance) Compare(e Distance) int {
	return cmp.Or(cmp.Compare(d.Level, e.Level), cmp.Compare(d.Hops, e.Hops))
}

// Between returns the distance of two devices by their PCI addresses. sys is the directory /sys. A
// device that sysfs does not show is Elsewhere.
func Between(sys fs.FS, a, b string) Distance {
	x, y := route(sys, a), route(sys, b)
	common := 0
	for common < min(len(x), len(y)) && x[common] == y[common] {
		common++
	}
	hops := len(x) + len(y) - 2*common
	switch n := node(sys, a); {
	case common > 1:
		return Distance{Switch, hops}
	case common == 1:
		return Distance{Bridge, hops}
	case n >= 0 && n == node(sys, b):
		return Distance{Level: Node}
	}
	return Distance{Level: Elsewhere}
}

// route returns the host bridge, the bridges behind it and the device, none if there is no such device.
func route(sys fs.FS, address string) []string {
	target, err := fs.ReadLink(sys, "bus/pci/devices/"+address)
	if err != nil {
		return nil
	}
	steps := strings.Split(target, "/")
	i := slices.IndexFunc(steps, func(s string) bool { return strings.HasPrefix(s, "pci") })
	if i < 0 {
		return nil
	}
	return steps[i:]
}

// node returns the NUMA node of a device, -1 if it is unknown.
func node(sys fs.FS, address string) int {
	b, err := fs.ReadFile(sys, "bus/pci/devices/"+address+"/numa_node")
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return -1
	}
	return n
}

// ClosestNICs returns the RDMA devices that are closest to a device, by name, and how far they are. There
// are none if no RDMA device of sysfs is a PCI device.
func ClosestNICs(sys fs.FS, address string) (names []string, d Distance) {
	entries, err := fs.ReadDir(sys, "class/infiniband")
	if err != nil {
		return nil, d
	}
	for _, e := range entries {
		target, err := fs.ReadLink(sys, "class/infiniband/"+e.Name()+"/device")
		if err != nil || route(sys, path.Base(target)) == nil {
			continue // a software device
		}
		next := Between(sys, address, path.Base(target))
		switch c := next.Compare(d); {
		case names == nil || c < 0:
			names, d = []string{e.Name()}, next
		case c == 0:
			names = append(names, e.Name())
		}
	}
	return names, d
}
