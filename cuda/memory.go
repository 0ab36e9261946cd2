package cuda

import (
	"fmt"
	"os"

	"ibverbx/verbs"
)

// Alloc allocates size bytes of GPU memory with undefined contents. It returns ErrOutOfMemory if the GPU
// is full, and verbs.ErrInvalid for a size below 1.
//
// Copies do not wait for kernels and copies that other libraries queued on their streams. Synchronize
// those first.
func (g *GPU) Alloc(size int) (*verbs.Memory, error) {
	const op = "allocate memory"
	if size <= 0 {
		return nil, g.wrap(op, verbs.Invalidf("size %d: want at least 1 byte", size))
	}
	if err := g.retain(); err != nil {
		return nil, g.wrap(op, err)
	}
	addr, o := cAlloc(g, size)
	if err := g.driver.failed(o); err != nil {
		g.release()
		return nil, g.wrap(op, fmt.Errorf("%d bytes: %w", size, err))
	}
	g.copies.allowKernel(addr, size)
	return g.memory(addr, size, addr, cFree)
}

// memory returns a range of GPU memory as a verbs.Memory. Free passes base to release, unless that is nil.
func (g *GPU) memory(addr uint64, size int, base uint64, release func(*GPU, uint64) outcome) (*verbs.Memory, error) {
	return verbs.NewDeviceMemory(g, addr, size, func() error { return g.free(base, release) })
}

// free releases unused memory, unless a failed copy may still be in progress. An error of a lost GPU is returned
// after the release.
func (g *GPU) free(base uint64, release func(*GPU, uint64) outcome) error {
	if err := g.copies.waitIdle(base); err != nil {
		return err
	}
	var err error
	if release != nil {
		if err = g.driver.failed(release(g, base)); err != nil && !lost(err) {
			return err
		}
	}
	g.release()
	return err
}

// pointerKind holds the attributes of a pointer (CUpointer_attribute).
type pointerKind struct{ memoryType, managed, ordinal int }

// deviceMemory is CU_MEMORYTYPE_DEVICE.
const deviceMemory = 2

// Adopt makes another library's memory on the GPU available for registration and copies, such as a
// PyTorch tensor. The range must lie in one allocation, which must stay allocated until Free; Free does
// not release it.
func (g *GPU) Adopt(addr uint64, size int) (*verbs.Memory, error) {
	const op = "adopt memory"
	if addr == 0 || size <= 0 || addr+uint64(size) < addr {
		return nil, g.wrap(op, verbs.Invalidf("%d bytes at %#x", size, addr))
	}
	if err := g.retain(); err != nil {
		return nil, g.wrap(op, err)
	}
	if err := g.checkAdopt(addr, uint64(size)); err != nil {
		g.release()
		return nil, g.wrap(op, fmt.Errorf("%d bytes at %#x: %w", size, addr, err))
	}
	return g.memory(addr, size, 0, nil)
}

// checkAdopt checks that a range is memory of the GPU within one allocation.
func (g *GPU) checkAdopt(addr, size uint64) error {
	kind, o := cKind(g, addr)
	if err := g.driver.failed(o); err != nil {
		return fmt.Errorf("CUDA does not know this address, or it was freed: %w", err)
	}
	switch {
	case kind.memoryType != deviceMemory:
		return verbs.Invalidf("this is host memory; use verbs.AdoptMemory")
	case kind.managed != 0:
		return verbs.Invalidf("this is managed memory, which moves; allocate it with cudaMalloc")
	case kind.ordinal != g.ordinal:
		return verbs.Invalidf("this is memory of %s", gpuName(kind.ordinal))
	}
	_, err := g.checkRange(addr, size)
	return err
}

// checkRange checks that a range lies in one allocation, and returns its start.
func (g *GPU) checkRange(addr, size uint64) (base uint64, err error) {
	base, length, o := cRange(g, addr)
	if err := g.driver.failed(o); err != nil {
		return 0, err
	}
	if addr < base || addr-base > length || size > length-(addr-base) {
		return 0, verbs.Invalidf("the range leaves its allocation of %d bytes at %#x", length, base)
	}
	return base, nil
}

// retainRange prevents Free of memory until Release, and returns the address of n bytes at off.
func retainRange(m *verbs.Memory, off, n int) (uint64, error) {
	if m == nil {
		return 0, verbs.Invalidf("no memory")
	}
	if _, ok := m.Device().(*GPU); !ok {
		return 0, verbs.Invalidf("this is host memory; want memory of a GPU")
	}
	if off < 0 || n < 0 || off > m.Len()-n {
		return 0, verbs.Invalidf("%d bytes at %d of %d", n, off, m.Len())
	}
	if err := m.Retain(); err != nil {
		return 0, err
	}
	return m.Addr() + uint64(off), nil
}

// Copy implements verbs.MemoryDevice.
func (g *GPU) Copy(copies []verbs.DeviceCopy) error {
	return g.wrap("copy memory", g.copies.copyAll(copies, true))
}

// Start implements verbs.MemoryDevice.
func (g *GPU) Start(copies []verbs.DeviceCopy) error {
	return g.wrap("copy memory", g.copies.copyAll(copies, false))
}

// DMABuf implements verbs.MemoryDevice.
func (g *GPU) DMABuf(addr, n uint64) (file *os.File, offset uint64, err error) {
	if g.driver == nil {
		return nil, 0, g.wrap("export dma-buf", verbs.ErrClosed)
	}
	page := uint64(os.Getpagesize())
	first, end := addr&^(page-1), (addr+n+page-1)&^(page-1)
	fd, o := cDMABuf(g, first, end-first)
	if err := g.driver.failed(o); err != nil {
		return nil, 0, g.wrap("export dma-buf", err)
	}
	return os.NewFile(uintptr(fd), "dma-buf of "+g.Name()), addr - first, nil
}
