// Package pcie reads sysfs to determine the distance between two PCI devices ([Between]), or the RDMA
// devices closest to a GPU ([ClosestNICs]).
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

// Level is the closest element of the PCI topology that two devices share. Smaller is closer.
type Level int

// Levels, closest first.
const (
	Switch    Level = iota // a PCIe switch or bridge
	Bridge                 // a host bridge of the processor
	Node                   // a NUMA node
	Elsewhere              // none, or unknown
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

// Distance is the distance between two devices in the PCI topology.
type Distance struct {
	Level Level
	// Hops is the number of links between the devices and the shared element. It is 0 for Node and
	// Elsewhere.
	Hops int
}

func (d Distance) String() string {
	if d.Hops == 0 {
		return d.Level.String()
	}
	return fmt.Sprintf("%s, %d hops", d.Level, d.Hops)
}

// Compare is negative if d is less than e, and 0 if they are equal.
func (d Distance) Compare(e Distance) int {
	return cmp.Or(cmp.Compare(d.Level, e.Level), cmp.Compare(d.Hops, e.Hops))
}

// Between returns the distance between two devices, given by PCI address. sys is the directory
// /sys. A device missing in sysfs is Elsewhere.
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

// route returns the host bridge, the bridges behind it and the device; empty if the device does not
// exist.
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

// node returns a device's NUMA node, -1 if unknown.
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

// ClosestNICs returns the names of the RDMA devices closest to a device, and their distance. names
// is empty if sysfs lists no RDMA device on PCI.
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
