//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"ibverbx/cuda"
	"ibverbx/verbs"
)

// pattern returns n bytes that differ by seed.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

// checkCopies writes, copies on the GPU and reads, at unaligned offsets.
func checkCopies(t *testing.T, g *cuda.GPU) {
	t.Helper()
	const n = 1 << 20
	a, b := alloc(t, g, n), alloc(t, g, n)
	want := pattern(n-13, 1)
	if k, err := a.WriteAt(want, 5); k != len(want) || err != nil {
		t.Fatalf("WriteAt = %d, %v, want %d and nil", k, err, len(want))
	}
	ok(t, b.CopyFrom(3, a, 5, len(want)), "CopyFrom")
	got := make([]byte, len(want))
	if k, err := b.ReadAt(got, 3); k != len(want) || err != nil {
		t.Fatalf("ReadAt = %d, %v, want %d and nil", k, err, len(want))
	}
	if !bytes.Equal(got, want) {
		t.Error("the bytes that come back are not those that were written")
	}
}

// checkStream copies blocks through a pinned host buffer, a stream and two buffers on the GPU.
func checkStream(t *testing.T, g *cuda.GPU) {
	t.Helper()
	const block, blocks = 4096, 200
	host, err := verbs.AllocMemory(2*block*blocks, nil)
	ok(t, err, "AllocMemory")
	pin, err := g.Pin(host)
	ok(t, err, "Pin")
	if err := host.Free(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Free of pinned memory = %v, want ErrBusy", err)
	}
	s, err := g.NewStream()
	ok(t, err, "NewStream")
	a, b := alloc(t, g, block*blocks), alloc(t, g, block*blocks)
	from, to := host.Bytes()[:block*blocks], host.Bytes()[block*blocks:]
	copy(from, pattern(len(from), 2))
	for i := range blocks {
		j := blocks - 1 - i
		ok(t, s.Write(a, i*block, from[i*block:][:block]), "Write")
		ok(t, s.Copy(b, j*block, a, i*block, block), "Copy")
		ok(t, s.Read(to[i*block:][:block], b, j*block), "Read")
	}
	ok(t, s.Synchronize(), "Synchronize")
	if !bytes.Equal(from, to) {
		t.Error("the bytes that come back are not those that were written")
	}
	ok(t, s.Close(), "Close of the stream")
	ok(t, pin.Close(), "Close of the pin")
	ok(t, host.Free(), "Free")
}

// checkThreads copies from many goroutines, on several threads.
func checkThreads(t *testing.T, g *cuda.GPU) {
	t.Helper()
	const workers, n = 8, 10_000
	m := alloc(t, g, workers*n)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			want, got := pattern(n, w), make([]byte, n)
			for range 20 {
				if _, err := m.WriteAt(want, int64(w*n)); err != nil {
					t.Errorf("WriteAt = %v, want nil", err)
				}
				runtime.Gosched()
				if _, err := m.ReadAt(got, int64(w*n)); err != nil || !bytes.Equal(got, want) {
					t.Errorf("ReadAt = %v, want nil and the bytes that were written", err)
				}
				extra, err := g.Alloc(512)
				if err != nil {
					t.Errorf("Alloc = %v, want nil", err)
					continue
				}
				if err := extra.Free(); err != nil {
					t.Errorf("Free = %v, want nil", err)
				}
			}
		})
	}
	wg.Wait()
}

func TestCopies(t *testing.T)  { g, _ := open(t); checkCopies(t, g) }
func TestStream(t *testing.T)  { g, _ := open(t); checkStream(t, g) }
func TestThreads(t *testing.T) { g, _ := open(t); checkThreads(t, g) }

// TestCopiesWaitForTheStream: stream copies execute in order, once the stream is synchronized. A
// copy outside a stream is complete on return.
func TestCopiesWaitForTheStream(t *testing.T) {
	g, f := open(t)
	m := alloc(t, g, 100)
	s, err := g.NewStream()
	ok(t, err, "NewStream")
	got := make([]byte, 4)
	ok(t, s.Write(m, 0, []byte("abcd")), "Write")
	ok(t, s.Read(got, m, 0), "Read")
	ok(t, s.Write(m, 0, []byte("efgh")), "Write")
	runtime.GC() // the stream keeps the host bytes alive
	if f.copied != 0 || f.calls[callSync] != 0 {
		t.Errorf("%d copies and %d synchronizations before Synchronize, want none", f.copied, f.calls[callSync])
	}
	ok(t, s.Synchronize(), "Synchronize")
	if string(got) != "abcd" || f.copied != 3 {
		t.Errorf("%q after %d copies, want abcd after 3", got, f.copied)
	}
	ok(t, s.Close(), "Close")
	if _, err := m.ReadAt(got, 0); err != nil || string(got) != "efgh" {
		t.Errorf("ReadAt = %v and %q, want nil and efgh", err, got)
	}
}

// TestCopyReturnsAfterTheStream: WriteAt returns only after its synchronization; until then the
// memory cannot be freed.
func TestCopyReturnsAfterTheStream(t *testing.T) {
	g, f := open(t)
	m := alloc(t, g, 100)
	reopen := f.shut()
	done := make(chan error, 1)
	go func() { _, err := m.WriteAt([]byte("abcd"), 0); done <- err }()
	f.awaitSynchronization(t, done)
	if err := m.Free(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Free during a copy = %v, want ErrBusy", err)
	}
	if len(done) > 0 {
		t.Error("WriteAt returns before the stream is done")
	}
	reopen()
	ok(t, <-done, "WriteAt")
}

// TestCopiesDuringClose: goroutines copy while another one frees the memory and closes the GPU.
// Each copy succeeds or returns ErrClosed, and none uses the destroyed stream.
func TestCopiesDuringClose(t *testing.T) {
	d, f := load(t)
	for range 100 {
		g, err := d.Open(0)
		ok(t, err, "Open")
		m, err := g.Alloc(100)
		ok(t, err, "Alloc")
		var wg, writing sync.WaitGroup
		writing.Add(3)
		for w := range 3 {
			wg.Go(func() {
				b := make([]byte, 10)
				_, err := m.WriteAt(b, int64(w*10))
				writing.Done()
				for i := 0; i < 50 && err == nil; i++ { // bounded, because Free runs only between copies
					_, err = m.WriteAt(b, int64(w*10))
				}
				if err != nil && !errors.Is(err, verbs.ErrClosed) {
					t.Errorf("WriteAt = %v, want nil or ErrClosed", err)
				}
			})
		}
		writing.Wait()
		for err = m.Free(); errors.Is(err, verbs.ErrBusy); err = m.Free() {
			runtime.Gosched()
		}
		ok(t, err, "Free")
		ok(t, g.Close(), "Close")
		wg.Wait()
	}
	f.settled(t)
}

// TestStreamLimits: a stream accepts a bounded number of copies, and keeps their memory from being
// freed.
func TestStreamLimits(t *testing.T) {
	g, _ := open(t)
	m, err := g.Alloc(100)
	ok(t, err, "Alloc")
	s, err := g.NewStream()
	ok(t, err, "NewStream")
	b, n := make([]byte, 10), 0
	for err = s.Write(m, 0, b); err == nil; err = s.Write(m, 0, b) {
		n++
	}
	if !errors.Is(err, verbs.ErrQueueFull) || n != 1024 {
		t.Errorf("Write = %v after %d, want ErrQueueFull after 1024", err, n)
	}
	if err := m.Free(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Free with queued copies = %v, want ErrBusy", err)
	}
	if err := g.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Close of the GPU = %v, want ErrBusy", err)
	}
	ok(t, s.Close(), "Close of the stream")
	ok(t, m.Free(), "Free")
}

// TestBadRanges: a copy outside the memory is rejected and has no effect.
func TestBadRanges(t *testing.T) {
	g, f := open(t)
	m, other := alloc(t, g, 100), alloc(t, g, 10)
	s, err := g.NewStream()
	ok(t, err, "NewStream")
	b, big := make([]byte, 10), int(^uint(0)>>1)
	for i, err := range []error{
		s.Write(m, 91, b), s.Write(m, -1, b), s.Write(m, big, b), s.Read(b, m, 91), s.Read(b, nil, 0), s.Write(&verbs.Memory{}, 0, b),
		s.Copy(m, 0, other, 0, 11), s.Copy(other, 0, m, 0, 11), s.Copy(m, 0, m, 0, -1), s.Copy(m, 0, nil, 0, 1), s.Copy(m, big, m, 0, big),
		errorOf(m.WriteAt(b, 91)), errorOf(m.ReadAt(b, -1)), m.CopyFrom(0, nil, 0, 1), errorOf(new(verbs.Memory).WriteAt(b, 0)),
		errorOf(g.Alloc(0)), errorOf(g.Alloc(-1)), errorOf(g.Adopt(0, 1)), errorOf(g.Adopt(1<<63, big)), errorOf(g.Adopt(m.Addr(), 0)), errorOf(g.Pin(nil)),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("case %d: %v, want ErrInvalid", i, err)
		}
	}
	ok(t, s.Write(m, 100, nil), "Write of nothing")
	ok(t, s.Close(), "Close")
	if f.calls[callCopy] != 0 {
		t.Errorf("%d copies reached the driver, want none", f.calls[callCopy])
	}
}

func errorOf[T any](_ T, err error) error { return err }

// TestStreamAllocatesNothing: a batch of copies allocates no memory.
func TestStreamAllocatesNothing(t *testing.T) {
	g, _ := open(t)
	m := alloc(t, g, 4096)
	s, err := g.NewStream()
	ok(t, err, "NewStream")
	b := make([]byte, 64)
	if n := testing.AllocsPerRun(50, func() {
		for i := range 16 {
			_ = s.Write(m, i*64, b)
			_ = s.Copy(m, i*64, m, 2048, 64)
		}
		_ = s.Synchronize()
	}); n != 0 {
		t.Errorf("a batch allocates %v times, want 0", n)
	}
	ok(t, s.Close(), "Close")
}

// TestDevices checks the descriptions of the GPUs.
func TestDevices(t *testing.T) {
	d, f := load(t)
	got, err := d.Devices()
	ok(t, err, "Devices")
	one := cuda.Device{Name: "Fake 0", PCI: "0000:1a:00.0", Memory: 64 << 20, Compute: "9.0", DMABuf: true, GPUDirect: true}
	two := one
	two.Ordinal, two.Name, two.PCI = 1, "Fake 1", "0000:1b:00.0"
	if !slices.Equal(got, []cuda.Device{one, two}) || d.Version() != "12.4" {
		t.Errorf("Devices = %+v, version %s", got, d.Version())
	}
	f.noDMABuf = 1
	if got, err := d.Devices(); err != nil || got[0].DMABuf {
		t.Errorf("Devices = %+v, %v, want no dma-buf", got, err)
	}
	for _, n := range []int{-1, 2} {
		if _, err := d.Open(n); !errors.Is(err, cuda.ErrNoDevice) || !errors.Is(err, verbs.ErrNotFound) {
			t.Errorf("Open(%d) = %v, want ErrNoDevice", n, err)
		}
	}
}
