//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// describe queries the constant attributes of the device.
func (x *nicContext) describe() error {
	attr, khz, errno := cQueryDevice(x.lib, x.h)
	if errno != 0 {
		return fmt.Errorf("query device: %w", errnoErr(errno))
	}
	port, errno := cQueryPort(x.lib, x.h, 1)
	if errno != 0 {
		return fmt.Errorf("query port 1: %w", errnoErr(errno))
	}
	attr.Provider, attr.Link, attr.MaxMsgSize = "rdmacore", port.LinkLayer.String(), port.MaxMsg
	if attr.MaxSRQ <= 0 || attr.MaxSRQWR <= 0 {
		attr.MaxSRQ, attr.MaxSRQWR, attr.MaxSRQSGE = 0, 0, 0
	}
	x.attr, x.clockKHz = attr, khz
	return nil
}

func (x *nicContext) QueryDevice() (verbs.DeviceAttr, error) {
	return withResult(x.do, "query device", func() (verbs.DeviceAttr, error) {
		attr := x.attr
		attr.Capabilities = x.capabilities()
		return attr, nil
	})
}

// capabilities returns the capabilities of the device. The first call probes them.
func (x *nicContext) capabilities() verbs.Capabilities {
	x.probed.Do(x.probe)
	return x.caps
}

// ReadClock implements verbs.ClockReader.
func (x *nicContext) ReadClock() (ticks, hz uint64, err error) {
	err = x.do("read clock", func() error {
		if x.capabilities()&verbs.CapTimestamp == 0 {
			return fmt.Errorf("%w: completions of this device carry no timestamp", verbs.ErrNotSupported)
		}
		var errno unix.Errno
		ticks, errno = cReadClock(x.h)
		return errnoErr(errno)
	})
	return ticks, x.clockKHz * 1000, err
}

// checkPort rejects a port that the device does not have.
func (x *nicContext) checkPort(port int) error {
	if port < 1 || port > x.attr.Ports {
		return verbs.Invalidf("port %d: the device has ports 1 to %d", port, x.attr.Ports)
	}
	return nil
}

func (x *nicContext) port(port int) (verbs.PortAttr, error) {
	if err := x.checkPort(port); err != nil {
		return verbs.PortAttr{}, err
	}
	attr, errno := cQueryPort(x.lib, x.h, port)
	return attr, errnoErr(errno)
}

func (x *nicContext) QueryPort(port int) (verbs.PortAttr, error) {
	return withResult(x.do, "query port", func() (verbs.PortAttr, error) { return x.port(port) })
}

func (x *nicContext) QueryGID(port, index int) (verbs.GIDEntry, error) {
	return withResult(x.do, "query GID", func() (verbs.GIDEntry, error) { return x.gid(port, index) })
}

func (x *nicContext) gid(port, index int) (verbs.GIDEntry, error) {
	if err := x.checkPort(port); err != nil {
		return verbs.GIDEntry{}, err
	}
	if index < 0 || index >= 1<<16 {
		return verbs.GIDEntry{}, verbs.Invalidf("GID index %d", index)
	}
	r, errno := cQueryGID(x.lib, x.h, port, index)
	if errno != 0 {
		return verbs.GIDEntry{}, fmt.Errorf("row %d of port %d: %w", index, port, errnoErr(errno))
	}
	if r.GID.IsZero() {
		return verbs.GIDEntry{}, fmt.Errorf("row %d of port %d is empty: %w", index, port, verbs.ErrNotFound)
	}
	x.fillType(&r)
	r.NetDev = x.gidAttribute(port, "ndevs", index)
	return r.GIDEntry, nil
}

// fillType fills in the type of a row if the library did not report it.
func (x *nicContext) fillType(r *gidRow) {
	if r.hasType {
		return
	}
	r.Type = verbs.GIDTypeIB
	switch x.gidAttribute(r.port, "types", r.Index) {
	case "RoCE v2":
		r.Type = verbs.GIDTypeRoCEv2
	case "IB/RoCE v1":
		if x.attr.Link == verbs.LinkLayerEthernet.String() {
			r.Type = verbs.GIDTypeRoCEv1
		}
	}
}

// gidAttribute reads an attribute of a GID table row from sysfs; empty if it does not exist.
func (x *nicContext) gidAttribute(port int, what string, index int) string {
	b, err := os.ReadFile(filepath.Join(x.dev.info.path, "ports", fmt.Sprint(port), "gid_attrs", what, fmt.Sprint(index)))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// gids returns the non-empty rows of a port's GID table.
func (x *nicContext) gids(port int, attr verbs.PortAttr) ([]verbs.GIDEntry, error) {
	rows, errno := cGIDTable(x.lib, x.h, attr.GIDs*x.attr.Ports)
	if errno != 0 && !lacksFeature(errno) { // EINVAL: another port has more rows
		return nil, fmt.Errorf("read the GID table: %w", errnoErr(errno))
	}
	var found []verbs.GIDEntry
	if errno == 0 {
		for _, r := range rows {
			if r.port == port && !r.GID.IsZero() {
				found = append(found, r.GIDEntry)
			}
		}
		return found, nil
	}
	for i := range attr.GIDs {
		row, err := x.gid(port, i)
		if errors.Is(err, verbs.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, row)
	}
	return found, nil
}

// guid converts a GUID from big-endian memory.
func guid(raw uint64) verbs.GUID {
	return verbs.GUID(binary.BigEndian.Uint64((*[8]byte)(unsafe.Pointer(&raw))[:]))
}

// linkLayer converts the code of a port. Unspecified means InfiniBand (ibv_query_port(3)).
func linkLayer(code uint8) verbs.LinkLayer {
	if code == 0 {
		return verbs.LinkLayerInfiniBand
	}
	return verbs.LinkLayer(code)
}

// driverRXE is the kernel's Soft-RoCE driver.
const driverRXE = "rdma_rxe"

// driverOf returns the kernel driver of a device, given its sysfs path. Software devices are not
// linked to a driver; rxe devices are recognized by the network interface named there.
func driverOf(path string) string {
	if target, err := os.Readlink(filepath.Join(path, "device", "driver")); err == nil {
		return filepath.Base(target)
	}
	if _, err := os.Stat(filepath.Join(path, "parent")); err == nil {
		return driverRXE
	}
	return ""
}
