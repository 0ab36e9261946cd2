package interop_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// world is two wires, each a veth pair. One end of a wire is in the test's namespace, with a kernel device
// (rxe). The other is in a separate namespace, with a softnic on each of its addresses.
//
//	rxe10 on kern0, 10.78.0.1, fd78:0::1  <- veth pair ->  soft0, 10.78.0.2, fd78:0::2: a softnic on each
//	rxe11 on kern1, 10.78.1.1, fd78:1::1  <- veth pair ->  soft1, 10.78.1.2, fd78:1::2: a softnic on each
type world struct {
	space namespace
	wires [2]wire
}

// wire is a veth pair; fields per IP version are in the order of families.
type wire struct {
	device     string // of the kernel
	kern, soft string // network devices
	addrs      [2][2]netip.Addr
	nics       [2]*softnic.NIC
}

var families = [2]string{"IPv4", "IPv6"}

// Sides of a wire, and indexes into per-side values.
const (
	ours = iota
	kernels
)

var sides = [2]string{"softnic", "rxe"}

// newWorld creates a world for one test.
func newWorld(t *testing.T) *world {
	t.Helper()
	wantMachine(t)
	w := &world{space: newNamespace(t, "soft")}
	link, err := softnic.NewUDPLink(nil)
	enginetest.Must(t, err)
	for i := range w.wires {
		w.wires[i] = w.newWire(t, i, link)
	}
	return w
}

// newWire creates wire i, with NICs on link.
func (w *world) newWire(t *testing.T, i int, link *softnic.UDPLink) wire {
	t.Helper()
	v := wire{device: fmt.Sprintf("rxe1%d", i), kern: fmt.Sprintf("kern%d", i), soft: fmt.Sprintf("soft%d", i)}
	space := string(w.space)
	command(t, "ip", "link", "add", v.kern, "type", "veth", "peer", "name", v.soft, "netns", space)
	t.Cleanup(func() { command(t, "ip", "link", "del", v.kern) }) // immediately; the namespace would remove it later
	for side, where := range [2][]string{ours: {"-n", space}, kernels: {}} {
		dev := [2]string{v.soft, v.kern}[side]
		ip := func(args ...string) { command(t, "ip", append(where[:len(where):len(where)], args...)...) }
		four, six := fmt.Sprintf("10.78.%d.%d/24", i, 2-side), fmt.Sprintf("fd78:%d::%d/64", i, 2-side)
		ip("link", "set", dev, "mtu", "4200", "up")
		ip("addr", "add", four, "dev", dev)
		ip("addr", "add", six, "dev", dev, "nodad")
		for f, prefix := range [2]string{four, six} {
			v.addrs[f][side] = netip.MustParsePrefix(prefix).Addr()
		}
	}
	command(t, "rdma", "link", "add", v.device, "type", "rxe", "netdev", v.kern)
	t.Cleanup(func() { command(t, "rdma", "link", "del", v.device) })
	for f := range families {
		w.space.inside(t, func() (err error) {
			v.nics[f], err = softnic.New(link, softnic.Config{Addr: v.addrs[f][ours]})
			return err
		})
		t.Cleanup(func() { enginetest.Must(t, v.nics[f].Close()) })
	}
	return v
}

// open opens a side's device for the duration of the test, and returns its address too.
func (v *wire) open(t *testing.T, family, side int) (verbs.Context, verbs.GIDEntry) {
	t.Helper()
	var ctx verbs.Context
	if side == kernels {
		ctx = openDevice(t, v.device)
	} else {
		var err error
		ctx, err = v.nics[family].Open()
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, ctx.Close()) })
	}
	return ctx, rowOf(t, ctx, verbs.GIDFromAddr(v.addrs[family][side]))
}

// impair impairs a wire in both directions, with tc-netem(8) arguments, until restore is called or the test
// finishes.
func (w *world) impair(t *testing.T, i int, netem ...string) (restore func()) {
	t.Helper()
	theirs := impair(t, "", w.wires[i].kern, netem...)
	own := impair(t, w.space, w.wires[i].soft, netem...)
	return func() {
		theirs()
		own()
	}
}

// tell logs both sides' counters if the test has failed.
func (w *world) tell(t *testing.T, family int) {
	t.Helper()
	if !t.Failed() {
		return
	}
	t.Logf("softnic has counted %+v", w.wires[0].nics[family].Stats())
	counters, err := filepath.Glob(filepath.Join("/sys/class/infiniband", w.wires[0].device, "ports/1/hw_counters/*"))
	enginetest.Must(t, err)
	for _, name := range counters {
		value, err := os.ReadFile(name)
		t.Logf("the kernel has counted %s %s (%v)", filepath.Base(name), bytes.TrimSpace(value), err)
	}
}
