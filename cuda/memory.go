package cuda

import (
	"fmt"
	"os"
	"sync"

	"ibverbx/verbs"
)

// Memory is memory of a GPU. The CPU cannot touch it: copies move its bytes. It is safe for concurrent
// use, but the caller orders copies that overlap.
//
// A copy does not wait for kernels and copies that other libraries have queued on their streams.
// Synchronize those first.
type Memory struct {
	gpu     *GPU
	addr    uint64
	size    int
	base    uint64                     // beginning of the allocation that addr is in
	release func(*GPU, uint64) outcome // gives base back; nil for adopted memory

	mu    sync.Mutex
	refs  int // copies and exports under way
	freed bool
}

// Alloc returns size bytes of the GPU. Their contents are undefined.
func (g *GPU) Alloc(size int) (*Memory, error) {
	const op = "allocate memory"
	if size <= 0 {
		return nil, g.wrong(op, verbs.Invalidf("size %d: want at least 1 byte", size))
	}
	if err := g.use(); err != nil {
		return nil, g.wrong(op, err)
	}
	addr, o := cAlloc(g, size)
	if err := g.driver.failed(o); err != nil {
		g.unuse()
		return nil, g.wrong(op, fmt.Errorf("%d bytes: %w", size, err))
	}
	return &Memory{gpu: g, addr: addr, base: addr, size: size, release: cFree}, nil
}

// pointerKind has the attributes of a pointer (CUpointer_attribute).
type pointerKind struct{ memoryType, managed, ordinal int }

// deviceMemory is CU_MEMORYTYPE_DEVICE.
const deviceMemory = 2

// Adopt makes memory that another library allocated on the GPU usable, such as a tensor of PyTorch. The
// range must lie in one allocation. The memory must stay allocated until Free, which does not free the
// allocation.
func (g *GPU) Adopt(addr uint64, size int) (*Memory, error) {
	const op = "adopt memory"
	if addr == 0 || size <= 0 || addr+uint64(size) < addr {
		return nil, g.wrong(op, verbs.Invalidf("%d bytes at %#x", size, addr))
	}
	if err := g.use(); err != nil {
		return nil, g.wrong(op, err)
	}
	base, err := g.locate(addr, uint64(size))
	if err != nil {
		g.unuse()
		return nil, g.wrong(op, fmt.Errorf("%d bytes at %#x: %w", size, addr, err))
	}
	return &Memory{gpu: g, addr: addr, base: base, size: size}, nil
}

// locate checks that a range is memory of the GPU and in one allocation, whose beginning it returns.
func (g *GPU) locate(addr, size uint64) (base uint64, err error) {
	kind, o := cKind(g, addr)
	if err := g.driver.failed(o); err != nil {
		return 0, fmt.Errorf("CUDA does not know this address, or it was freed: %w", err)
	}
	switch {
	case kind.memoryType != deviceMemory:
		return 0, verbs.Invalidf("this is host memory; use verbs.AdoptMemory")
	case kind.managed != 0:
		return 0, verbs.Invalidf("this is managed memory, which moves; allocate it with cudaMalloc")
	case kind.ordinal != g.ordinal:
		return 0, verbs.Invalidf("this is memory of %s", gpuName(kind.ordinal))
	}
	return g.within(addr, size)
}

// within checks that a range is in one allocation.
func (g *GPU) within(addr, size uint64) (base uint64, err error) {
	base, length, o := cRange(g, addr)
	if err := g.driver.failed(o); err != nil {
		return 0, err
	}
	if addr < base || addr-base > length || size > length-(addr-base) {
		return 0, verbs.Invalidf("the range leaves its allocation of %d bytes at %#x", length, base)
	}
	return base, nil
}

// Addr is the address of the first byte on the GPU. The CPU must not access it.
func (m *Memory) Addr() uint64 { return m.addr }

// Len is the number of bytes.
func (m *Memory) Len() int { return m.size }

// GPU is the GPU that has the memory.
func (m *Memory) GPU() *GPU { return m.gpu }

// take prevents Free until give, and returns the address of n bytes at off.
func (m *Memory) take(off, n int) (uint64, error) {
	if m == nil || m.gpu == nil {
		return 0, verbs.Invalidf("no GPU memory")
	}
	if off < 0 || n < 0 || off > m.size-n {
		return 0, verbs.Invalidf("%d bytes at %d of %d", n, off, m.size)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.freed {
		return 0, verbs.ErrClosed
	}
	m.refs++
	return m.addr + uint64(off), nil
}

// give undoes one take.
func (m *Memory) give() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refs--
}

// WriteAt copies p to the memory at off. All of it is in place when WriteAt returns without an error.
func (m *Memory) WriteAt(p []byte, off int64) (int, error) {
	return m.finish(p, func(s *Stream) error { return s.Write(m, int(off), p) })
}

// ReadAt copies the memory at off to p. Unlike io.ReaderAt it reads all of p or fails.
func (m *Memory) ReadAt(p []byte, off int64) (int, error) {
	return m.finish(p, func(s *Stream) error { return s.Read(p, m, int(off)) })
}

// finish does one copy between p and the memory.
func (m *Memory) finish(p []byte, do func(*Stream) error) (int, error) {
	if m.gpu == nil {
		return 0, verbs.NewOpError("copy memory", "", 0, verbs.Invalidf("no GPU memory"))
	}
	if err := do(m.gpu.copies); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CopyFrom copies n bytes of src, which may be memory of another GPU, to the memory at off. All of them
// are in place when CopyFrom returns without an error.
func (m *Memory) CopyFrom(off int, src *Memory, srcOff, n int) error {
	_, err := m.finish(nil, func(s *Stream) error { return s.Copy(m, off, src, srcOff, n) })
	return err
}

// DMABuf exports the memory as dma-buf, for RegisterDMABuf of a verbs.PD. The memory begins at offset
// of it, because a dma-buf has whole pages. The caller closes the file, and may do so once it is
// registered. The memory must not be freed before all its registrations are closed.
func (m *Memory) DMABuf() (file *os.File, offset uint64, err error) {
	const op = "export dma-buf"
	addr, err := m.take(0, m.size)
	if err != nil {
		return nil, 0, verbs.NewOpError(op, "", 0, err)
	}
	defer m.give()
	page := uint64(os.Getpagesize())
	first := addr &^ (page - 1)
	end := (addr + uint64(m.size) + page - 1) &^ (page - 1)
	fd, o := cDMABuf(m.gpu, first, end-first)
	if err := m.gpu.driver.failed(o); err != nil {
		return nil, 0, m.gpu.wrong(op, err)
	}
	return os.NewFile(uintptr(fd), "dma-buf of "+m.gpu.Name()), addr - first, nil
}

func (m *Memory) inUse() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refs > 0
}

// Free gives the memory back. It returns verbs.ErrBusy while copies use it: those that are under way, and
// those of a Stream that is not synchronized. A copy that failed can be under way. Free then waits for
// it. A second Free does nothing. If the GPU is lost, Free reports that, and the memory counts as freed.
func (m *Memory) Free() error {
	const op = "free memory"
	if m.gpu == nil {
		return nil // a zero Memory
	}
	if m.inUse() {
		m.gpu.copies.settle()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.freed {
		return nil
	}
	if m.refs > 0 {
		return m.gpu.wrong(op, fmt.Errorf("%w: copies use it; synchronize their stream first", verbs.ErrBusy))
	}
	var err error
	if m.release != nil {
		if err = m.gpu.driver.failed(m.release(m.gpu, m.base)); err != nil && !lost(err) {
			return m.gpu.wrong(op, err)
		}
	}
	m.freed = true
	m.gpu.unuse()
	return m.gpu.wrong(op, err)
}
