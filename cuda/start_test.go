//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"

	"ibverbx/cuda"
	"ibverbx/verbs"
)

// checkStart executes lists of overlapping copies, in slices of different sizes.
func checkStart(t *testing.T, g *cuda.GPU) {
	t.Helper()
	const size, block = 1 << 18, 1024
	m := &model{mem: []*verbs.Memory{alloc(t, g, size), alloc(t, g, size), pinned(t, g, size)}}
	for i, mem := range m.mem {
		m.want = append(m.want, pattern(size, i))
		_, err := mem.WriteAt(m.want[i], 0)
		ok(t, err, "WriteAt")
	}
	for _, slice := range []int{1, 7, 10, 64, 100} {
		for i := range 100 {
			m.add(1, i*block, 0, i*block, block)       // disjoint
			m.add(0, i*block, 2, (100-i)*block, block) // overwrites a source of the first
			m.add(1, i*block+512, 0, i*block, block)   // overwrites half of the first's destination, with data of the second
			m.add(2, (101+i)*block, 1, i*block, block) // reads half of that
		}
		rest := m.list
		for len(rest) > slice {
			ok(t, g.Start(rest[:slice]), "Start")
			rest = rest[slice:]
		}
		m.list = rest
		m.check(t, g)
	}
	ok(t, g.Start(batch(m.mem[1], m.mem[0], 100, block)), "Start")
	ok(t, g.Copy(nil), "Copy of nothing")
	got := make([]byte, 100*block)
	if _, err := m.mem[1].ReadAt(got, 0); err != nil || !bytes.Equal(got, m.want[0][:len(got)]) {
		t.Errorf("ReadAt = %v, want nil and the bytes of the copies that were started", err)
	}
}

func TestStart(t *testing.T)    { g, _ := open(t); checkStart(t, g) }
func TestGPUStart(t *testing.T) { checkStart(t, onGPU(t)) }

// TestStartWaitsForCopy: Start queues copies, which only Copy synchronizes. A few that follow a
// launch are launched too.
func TestStartWaitsForCopy(t *testing.T) {
	g, f := open(t)
	a, b := alloc(t, g, 1<<20), alloc(t, g, 1<<20)
	list, before := batch(b, a, 130, 1024), f.calls[callSync]
	ok(t, g.Start(list[:128]), "Start")
	if f.calls[callLaunch] != 1 || f.copied != 0 || f.calls[callSync] != before {
		t.Errorf("after Start: %d launches, %d copies, %d synchronizations; want 1, 0 and 0", f.calls[callLaunch], f.copied, f.calls[callSync]-before)
	}
	ok(t, g.Copy(list[128:]), "Copy")
	if f.calls[callLaunch] != 2 || f.calls[callCopy] != 0 || f.copied != 130 || f.calls[callSync] != before+1 {
		t.Errorf("%d launches, %d copies by engines, %d in all, %d synchronizations; want 2, 0, 130 and 1",
			f.calls[callLaunch], f.calls[callCopy], f.copied, f.calls[callSync]-before)
	}
	if n := testing.AllocsPerRun(20, func() {
		if g.Start(list[:128]) != nil || g.Copy(list[128:]) != nil {
			t.Error("copies fail")
		}
	}); n != 0 {
		t.Errorf("Start and Copy allocate %v times, want 0", n)
	}
}

// TestStartFails: after a failed Start, or a failed Copy behind one, no copy is in progress and the
// memory can be freed.
func TestStartFails(t *testing.T) {
	g, f := open(t)
	a, b := alloc(t, g, 1<<20), alloc(t, g, 1<<20)
	list := batch(b, a, 64, 1024)
	for _, start := range []func() error{
		func() error { return g.Start(list) },
		func() error { return g.Copy(list) },
	} {
		ok(t, g.Start(list), "Start")
		f.calls[callLaunch] = 0
		f.failWith(callLaunch, 304)
		syncs := f.calls[callSync]
		if err := start(); err == nil || !strings.Contains(err.Error(), "cuLaunchKernel") || f.calls[callSync] != syncs+1 {
			t.Errorf("a launch that fails = %v after %d synchronizations, want its error after one", err, f.calls[callSync]-syncs)
		}
		f.failWith(callLaunch, 0)
		ok(t, g.Copy(list), "Copy without failures")
	}
}

// TestLostBetweenStarts: losing the GPU between two slices fails the next Start and every Copy that
// completes copies, even if another caller has already observed the loss.
func TestLostBetweenStarts(t *testing.T) {
	for name, between := range map[string]func(g *cuda.GPU, other *verbs.Memory, list []verbs.DeviceCopy) error{
		"nothing":    func(*cuda.GPU, *verbs.Memory, []verbs.DeviceCopy) error { return cuda.ErrDeviceLost },
		"next slice": func(g *cuda.GPU, _ *verbs.Memory, list []verbs.DeviceCopy) error { return g.Start(list) },
		"another copy": func(_ *cuda.GPU, other *verbs.Memory, _ []verbs.DeviceCopy) error {
			return errorOf(other.WriteAt([]byte{1}, 0))
		},
		"another wait":  func(g *cuda.GPU, _ *verbs.Memory, _ []verbs.DeviceCopy) error { return g.Copy(nil) },
		"freed memory":  func(_ *cuda.GPU, other *verbs.Memory, _ []verbs.DeviceCopy) error { return other.Free() },
		"a lone launch": func(g *cuda.GPU, _ *verbs.Memory, list []verbs.DeviceCopy) error { return g.Copy(list) },
	} {
		t.Run(name, func(t *testing.T) {
			g, f := open(t)
			var mems []*verbs.Memory
			for range 3 {
				m, err := g.Alloc(1 << 16)
				ok(t, err, "Alloc")
				mems = append(mems, m)
			}
			list := batch(mems[1], mems[0], 64, 1024)
			ok(t, g.Start(list), "Start")
			f.lost = 719
			if err := between(g, mems[2], list); !errors.Is(err, cuda.ErrDeviceLost) {
				t.Errorf("the call between = %v, want ErrDeviceLost", err)
			}
			if err := g.Copy(nil); !errors.Is(err, cuda.ErrDeviceLost) || f.copied != 0 {
				t.Errorf("Copy = %v after %d copies, want ErrDeviceLost after none", err, f.copied)
			}
			for _, m := range mems {
				if err := m.Free(); err != nil && !errors.Is(err, cuda.ErrDeviceLost) {
					t.Errorf("Free = %v, want nil or ErrDeviceLost", err)
				}
			}
			ok(t, g.Close(), "Close")
		})
	}
}

// TestStartByMany: concurrent callers of Start and Copy on one GPU get their own bytes.
func TestStartByMany(t *testing.T) {
	g, _ := open(t)
	const block, slice, slices = 64, 20, 4
	var wg sync.WaitGroup
	for w := range 4 {
		from, to := alloc(t, g, block*slice*slices), alloc(t, g, block*slice*slices)
		wg.Go(func() {
			list, got := batch(to, from, slice*slices, block), make([]byte, from.Len())
			for turn := range 20 {
				want := pattern(from.Len(), w*100+turn)
				_, err := from.WriteAt(want, 0)
				for i := range slices - 1 {
					err = errors.Join(err, g.Start(list[i*slice:][:slice]))
				}
				err = errors.Join(err, g.Copy(list[(slices-1)*slice:]))
				if _, e := to.ReadAt(got, 0); errors.Join(err, e) != nil || !bytes.Equal(got, want) {
					t.Errorf("caller %d: %v and %v, want nil and its bytes", w, err, e)
				}
			}
		})
	}
	wg.Wait()
}
