//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"

	"ibverbx/cuda"
	"ibverbx/verbs"
)

// pinned allocates and pins host memory for the duration of the test.
func pinned(tb testing.TB, g *cuda.GPU, size int) *verbs.Memory {
	tb.Helper()
	host, err := verbs.AllocMemory(size, nil)
	ok(tb, err, "AllocMemory")
	pin, err := g.Pin(host)
	ok(tb, err, "Pin")
	tb.Cleanup(func() {
		ok(tb, pin.Close(), "Close of the pin")
		ok(tb, host.Free(), "Free")
	})
	return host
}

// one returns a copy of n bytes.
func one(to *verbs.Memory, toOff int, from *verbs.Memory, fromOff, n int) verbs.DeviceCopy {
	c := verbs.DeviceCopy{To: to.Addr() + uint64(toOff), From: from.Addr() + uint64(fromOff), Len: uint64(n)}
	if to.Device() == nil {
		c.To, c.Host = 0, to.Bytes()[toOff:][:n]
	}
	if from.Device() == nil {
		c.From, c.Host = 0, from.Bytes()[fromOff:][:n]
	}
	return c
}

// batch returns count copies of n bytes each, between the starts of two buffers.
func batch(to, from *verbs.Memory, count, n int) (list []verbs.DeviceCopy) {
	for i := range count {
		list = append(list, one(to, i*n, from, i*n, n))
	}
	return list
}

// model holds memory and its expected contents.
type model struct {
	mem  []*verbs.Memory // two buffers on the GPU and a pinned one
	want [][]byte
	list []verbs.DeviceCopy
}

// add adds a copy to the list, unless it is within host memory or its source overlaps its
// destination.
func (m *model) add(to, toOff, from, fromOff, n int) {
	if to == 2 && from == 2 || to == from && toOff < fromOff+n && fromOff < toOff+n {
		return
	}
	m.list = append(m.list, one(m.mem[to], toOff, m.mem[from], fromOff, n))
	copy(m.want[to][toOff:][:n], m.want[from][fromOff:])
}

// check executes the listed copies and compares all bytes.
func (m *model) check(t *testing.T, g *cuda.GPU) {
	t.Helper()
	ok(t, g.Copy(m.list), "Copy")
	for i, mem := range m.mem {
		got := make([]byte, mem.Len())
		if _, err := mem.ReadAt(got, 0); err != nil || !bytes.Equal(got, m.want[i]) {
			t.Fatalf("memory %d after %d copies: %v, or bytes that differ from those of copies in order", i, len(m.list), err)
		}
	}
	m.list = m.list[:0]
}

// checkBlocks executes many lists of copies: pages in random order, and overlapping copies of all
// lengths and alignments.
func checkBlocks(t *testing.T, g *cuda.GPU) {
	t.Helper()
	const size = 1 << 20
	m := &model{mem: []*verbs.Memory{alloc(t, g, size), alloc(t, g, size), pinned(t, g, size)}}
	for i, mem := range m.mem {
		m.want = append(m.want, pattern(size, i))
		_, err := mem.WriteAt(m.want[i], 0)
		ok(t, err, "WriteAt")
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, page := range []int{16, 1000, 4096, 65521, 65536, 100_000} {
		for to := range m.mem {
			for from := range m.mem {
				stride := (page + 15) &^ 15
				order := r.Perm(min(5000, size/stride)) // more than the capacity of the kernel's list
				for i, k := range order {
					m.add(to, k*stride, from, i*stride, page)
				}
				m.check(t, g)
			}
		}
	}
	lengths := []int{1, 15, 16, 17, 500, 4096, 65536, 65537, 262_144, 262_145, 300_000}
	for range 60 {
		to, from, high := r.IntN(3), r.IntN(3), 1+r.IntN(len(lengths))
		for range 1 + r.IntN(100) {
			if r.IntN(10) == 0 {
				to, from = from, to
			}
			n := lengths[r.IntN(high)]
			a, b := r.IntN(size-n), r.IntN(size-n)
			if r.IntN(20) > 0 {
				a, b = a&^15, b&^15
			}
			m.add(to, a, from, b, n)
		}
		m.check(t, g)
	}
	if !g.HasKernel() {
		t.Error("the kernel is not loaded: the driver refuses it")
	}
}

func TestBlocks(t *testing.T) { g, _ := open(t); checkBlocks(t, g) }

// TestBlocksInOneLaunch: a batch of small copies is one launch and one synchronization, and allocates nothing.
func TestBlocksInOneLaunch(t *testing.T) {
	g, f := open(t)
	m, host := alloc(t, g, 1<<20), pinned(t, g, 1<<20)
	list := batch(m, host, 1000, 1024)
	before := *f
	ok(t, g.Copy(list), "Copy")
	if n := f.calls[callLaunch]; n != 1 || f.copied-before.copied != 1000 || f.calls[callCopy] != 0 || f.calls[callSync]-before.calls[callSync] != 1 {
		t.Errorf("%d launches, %d copies by engines and %d blocks, want 1, 0 and 1000", n, f.calls[callCopy], f.copied)
	}
	if n := testing.AllocsPerRun(20, func() { _ = g.Copy(list) }); n != 0 {
		t.Errorf("a batch allocates %v times, want 0", n)
	}
}

// TestBlocksInOrder: dependent copies execute in order.
func TestBlocksInOrder(t *testing.T) {
	g, f := open(t)
	a, b, host := alloc(t, g, 4096), alloc(t, g, 4096), pinned(t, g, 4096)
	for i := range host.Bytes() {
		host.Bytes()[i] = byte(i / 16)
	}
	var same, ahead, chain []verbs.DeviceCopy
	for i := range 32 {
		same = append(same, one(a, 0, host, i*16, 16))            // each write replaces the previous one
		ahead = append(ahead, one(b, i*16, host, i*32, 32))       // each write replaces half of the previous one
		chain = append(chain, one(b, (i+1)*16, b, i*16, 16))      // each copy reads the previous one's destination
		chain = append(chain, one(a, 2048+i*16, b, (i+1)*16, 16)) // reads that destination
	}
	got := make([]byte, 1)
	ok(t, g.Copy(same), "Copy")
	if _, err := a.ReadAt(got, 0); err != nil || got[0] != 31 {
		t.Errorf("ReadAt = %v and %d, want the last of the writes, 31", err, got[0])
	}
	ok(t, g.Copy(ahead), "Copy")
	if _, err := b.ReadAt(got, 16); err != nil || got[0] != 2 {
		t.Errorf("ReadAt = %v and %d, want the beginning of the second write, 2", err, got[0])
	}
	ok(t, errorOf(b.WriteAt([]byte{200}, 0)), "WriteAt")
	ok(t, g.Copy(chain), "Copy")
	if _, err := a.ReadAt(got, 2048+31*16); err != nil || got[0] != 200 {
		t.Errorf("ReadAt = %v and %d, want what the first copy read, 200", err, got[0])
	}
	if f.calls[callLaunch] != 0 {
		t.Errorf("%d launches, want none", f.calls[callLaunch])
	}
}

// TestBlocksOfMappedMemory: the kernel is not used for memory that others may unmap, nor for
// unsuitable addresses and lengths.
func TestBlocksOfMappedMemory(t *testing.T) {
	d, f := load(t)
	g, err := d.Open(0)
	ok(t, err, "Open")
	second, err := d.Open(1)
	ok(t, err, "Open of the second GPU")
	t.Run("lists", func(t *testing.T) {
		m, host, far := alloc(t, g, 4<<20), pinned(t, g, 4<<20), alloc(t, second, 1<<16)
		plain, err := verbs.AllocMemory(1<<16, nil)
		ok(t, err, "AllocMemory")
		t.Cleanup(func() { ok(t, plain.Free(), "Free") })
		half, err := plain.Slice(0, 1<<15)
		ok(t, err, "Slice")
		pin, err := g.Pin(half)
		ok(t, err, "Pin")
		h, err := g.IPCHandle(m)
		ok(t, err, "IPCHandle")
		opened, err := g.OpenIPC(h)
		ok(t, err, "OpenIPC")
		shift := func(list []verbs.DeviceCopy) []verbs.DeviceCopy {
			for i := range list {
				list[i].To++
			}
			return list
		}
		for name, list := range map[string][]verbs.DeviceCopy{
			"another GPU":       batch(m, far, 10, 1024),
			"not pinned":        batch(m, plain, 32, 2048)[16:],
			"odd addresses":     shift(batch(m, host, 10, 1024)),
			"few":               batch(m, host, 7, 1024),
			"long":              batch(m, host, 10, 256<<10+16),
			"nothing":           batch(m, host, 10, 0),
			"beyond the pinned": append(batch(m, plain, 7, 4096), one(m, 8*4096, plain, 1<<15-16, 4096)),
		} {
			ok(t, g.Copy(list), name)
			if f.calls[callLaunch] != 0 || f.calls[callLoad] != 0 {
				t.Fatalf("%s: the kernel is used", name)
			}
		}
		ok(t, g.Copy(batch(m, plain, 8, 4096)), "Copy of pinned memory")
		ok(t, pin.Close(), "Close of the pin")
		ok(t, g.Copy(batch(m, plain, 8, 4096)), "Copy of memory that is no longer pinned")
		if f.calls[callLaunch] != 1 {
			t.Errorf("%d launches, want one, of the list in pinned memory", f.calls[callLaunch])
		}
		list := batch(opened, host, 10, 1024)
		ok(t, g.Copy(list), "Copy of memory that is open by its handle")
		ok(t, opened.Free(), "Free of the opened memory")
		if err := g.Copy(list); err == nil || f.calls[callLaunch] != 2 {
			t.Errorf("Copy of memory that is no longer open = %v after %d launches, want an error and 2", err, f.calls[callLaunch])
		}
	})
	ok(t, g.Close(), "Close")
	ok(t, second.Close(), "Close")
	f.settled(t)
}

// TestNoKernel: if the kernel cannot be loaded, copies run one by one, and loading is attempted
// only once.
func TestNoKernel(t *testing.T) {
	old := compile(t, "-DOLD")
	for name, fail := range map[string]func(f *fake){
		"old driver": nil, "load": func(f *fake) { f.failWith(callLoad, 218) }, "function": func(f *fake) { f.failWith(callFunction, 500) },
		"attribute": func(f *fake) { f.failWith(callAttribute, 304) }, "pin": func(f *fake) { f.fail[callPin], f.after[callPin] = 304, 1 },
		"host pointers": func(f *fake) { f.noHostPointers = 1 }, "release": func(f *fake) { f.failWith(callLoad, 218); f.failWith(callUnpin, 304) },
	} {
		t.Run(name, func(t *testing.T) {
			path, f := standIn(t)
			if fail == nil {
				path, f = place(t, old)
			} else {
				fail(f)
			}
			d, err := cuda.Load(cuda.Config{Library: path})
			ok(t, err, "Load")
			g, err := d.Open(0)
			ok(t, err, "Open")
			t.Cleanup(func() { ok(t, g.Close(), "Close"); f.settled(t) })
			m, host := alloc(t, g, 1<<16), pinned(t, g, 1<<16)
			for seed := range 2 {
				want, got := pattern(1<<16, seed), make([]byte, 1<<16)
				copy(host.Bytes(), want)
				ok(t, g.Copy(batch(m, host, 64, 1024)), "Copy")
				if _, err := m.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
					t.Errorf("ReadAt = %v, want nil and the bytes that were written", err)
				}
				clear(f.fail[:])
			}
			if f.calls[callLaunch] != 0 || f.calls[callLoad] > 1 || f.calls[callCopy] != 2*64+2 || g.HasKernel() {
				t.Errorf("%d loads, %d launches and %d copies, want one at most, none and 130", f.calls[callLoad], f.calls[callLaunch], f.calls[callCopy])
			}
		})
	}
}

// TestLaunchFails: Copy returns the error of a failed launch or synchronization. Memory that a
// kernel may still use is neither freed nor unpinned.
func TestLaunchFails(t *testing.T) {
	g, f := open(t)
	m, err := g.Alloc(1 << 16)
	ok(t, err, "Alloc")
	host, err := verbs.AllocMemory(1<<16, nil)
	ok(t, err, "AllocMemory")
	pin, err := g.Pin(host)
	ok(t, err, "Pin")
	list := batch(m, host, 64, 1024)
	for call, name := range map[int]string{callLaunch: "cuLaunchKernel", callSync: "cuStreamSynchronize"} {
		f.failWith(call, 304)
		if err := g.Copy(list); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Copy = %v, want the error of %s", err, name)
		}
		if call == callSync {
			for _, release := range []func() error{pin.Close, m.Free} {
				if err := release(); !errors.Is(err, verbs.ErrBusy) {
					t.Errorf("release while the synchronization fails = %v, want ErrBusy", err)
				}
			}
		}
		f.failWith(call, 0)
		ok(t, g.Copy(list), "Copy without failures")
	}
	ok(t, pin.Close(), "Close of the pin")
	ok(t, m.Free(), "Free")
	ok(t, host.Free(), "Free")
	for _, call := range []int{callUnload, callUnpin} {
		f.failWith(call, 304)
		if err := g.Close(); err == nil {
			t.Errorf("Close with a failed call %d = nil, want its error", call)
		}
		f.failWith(call, 0)
	}
}

// TestDeviceLostInKernel: losing the GPU while the kernel runs fails the copies, and all resources
// are released.
func TestDeviceLostInKernel(t *testing.T) {
	g, f := open(t)
	m, err := g.Alloc(1 << 16)
	ok(t, err, "Alloc")
	host, err := verbs.AllocMemory(1<<16, nil)
	ok(t, err, "AllocMemory")
	pin, err := g.Pin(host)
	ok(t, err, "Pin")
	reopen := f.shut()
	done := make(chan error, 1)
	go func() { done <- g.Copy(batch(m, host, 64, 1024)) }()
	f.awaitSynchronization(t, done)
	atomic.StoreInt64(&f.lost, 719)
	reopen()
	for what, err := range map[string]error{"Copy": <-done, "Copy after it": g.Copy(batch(m, host, 64, 1024)), "Close of the pin": pin.Close(), "Free": m.Free()} {
		if !errors.Is(err, cuda.ErrDeviceLost) {
			t.Errorf("%s = %v, want ErrDeviceLost", what, err)
		}
	}
	if f.calls[callLaunch] != 2 || f.copied != 0 {
		t.Errorf("%d launches and %d blocks, want 2 and none", f.calls[callLaunch], f.copied)
	}
	ok(t, host.Free(), "Free")
	ok(t, g.Close(), "Close")
}
