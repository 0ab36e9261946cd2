//go:build linux && !heapmem

package softnic

import (
	"slices"
	"testing"
	"time"

	"ibverbx/internal/shm"
	"ibverbx/internal/testslice"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// grantedContext is a context whose regions are known to the peer as soon as they are registered, so that the
// suite never falls back to packets.
type grantedContext struct {
	verbs.Context
	verbs.ClockReader
	tb   testing.TB
	peer *ShmLink
}

type grantedPD struct {
	verbs.PD
	x *grantedContext
}

func (x *grantedContext) AllocPD() (verbs.PD, error) {
	d, err := x.Context.AllocPD()
	if err != nil {
		return nil, err
	}
	return &grantedPD{d, x}, nil
}

func (d *grantedPD) RegisterMemory(mem *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	m, err := d.PD.RegisterMemory(mem, access)
	if err != nil {
		return nil, err
	}
	if m := m.(*mr); m.pd.ctx.core.neighbors[0].published(m).Load() == m.key {
		d.x.await(m.key)
	}
	return m, nil
}

// await waits until the peer has mapped a region.
func (x *grantedContext) await(key uint32) {
	x.tb.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Microsecond) {
		x.peer.mu.Lock()
		mapped := slices.ContainsFunc(x.peer.peer.files.regions, func(r shmRegion) bool { return r.key == key })
		x.peer.mu.Unlock()
		if mapped {
			return
		}
		if time.Now().After(deadline) {
			x.tb.Fatalf("region %#x is not mapped", key)
		}
	}
}

// shmEnds returns the two ends of a link.
func shmEnds(tb testing.TB) (links [2]*ShmLink) {
	tb.Helper()
	pair, err := shm.Pair()
	if err != nil {
		tb.Fatal(err)
	}
	errs := make(chan error, 2)
	for i := range pair {
		go func() {
			var err error
			links[i], err = NewShmLink(pair[i])
			errs <- err
		}()
	}
	for range links {
		if err := <-errs; err != nil {
			tb.Fatal(err)
		}
	}
	return links
}

// TestConformanceShmGranted runs the suite over shared memory, with every region shared before its first use, so
// that eligible requests are direct from the start.
func TestConformanceShmGranted(t *testing.T) {
	conformGranted(t, false, func(size int) (*verbs.Memory, error) {
		return verbs.AllocMemory(size, &verbs.MemoryConfig{Shared: true})
	})
}

// TestConformanceShmGrantedDevice does the same with device memory, and alternately with device and host memory.
func TestConformanceShmGrantedDevice(t *testing.T) {
	d := new(verbstest.MemoryDevice)
	d.Share(verbstest.Sharing{Export: true, Open: true, Copy: true})
	for _, name := range testslice.Pick(t, []string{"device", "mixed"}) {
		turns := 0
		t.Run(name, func(t *testing.T) {
			conformGranted(t, true, func(size int) (*verbs.Memory, error) {
				if turns++; turns%2 == 1 && name == "mixed" {
					return verbs.AllocMemory(size, &verbs.MemoryConfig{Shared: true})
				}
				return d.Alloc(size)
			})
		})
	}
	if n := d.Opened(); n != 0 {
		t.Errorf("%d regions are open at the end, want none", n)
	}
}

func conformGranted(t *testing.T, device bool, alloc func(size int) (*verbs.Memory, error)) {
	t.Helper()
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		links := shmEnds(tb)
		var ctx [2]verbs.Context
		for i, l := range links {
			nic, err := New(l, Config{})
			if err != nil {
				tb.Fatal(err)
			}
			tb.Cleanup(func() { _ = nic.Close() })
			x, err := nic.Open()
			if err != nil {
				tb.Fatal(err)
			}
			ctx[i] = &grantedContext{x, x.(verbs.ClockReader), tb, links[1-i]}
		}
		return verbstest.Pair{A: ctx[0], B: ctx[1], Device: device, Alloc: alloc}
	})
}
