package verbs

import (
	"fmt"
	"os"
	"sync"
	"unsafe"
)

// MemoryConfig describes memory for NICs. The zero value, or a nil pointer, is
// ordinary pages.
type MemoryConfig struct {
	// HugePages asks for huge pages. Where none can be had the memory has ordinary
	// pages, advised to become huge if the system can do that; Memory.HugePages
	// tells which.
	HugePages bool
}

// Memory is memory that NICs may touch: page-aligned, zeroed, never moved, not on
// the Go heap, and freed by hand. While it is registered it cannot be freed.
//
// Its methods are safe for concurrent use; the bytes are the caller's to guard.
type Memory struct {
	b    []byte
	huge bool
	root *Memory // nil on a root

	mu    sync.Mutex // of the root
	refs  int        // registrations, on the root
	freed bool       // on the root
	unmap func() error
}

// AllocMemory returns size bytes, rounded up to whole pages in the mapping but not in
// Bytes. A nil cfg means the defaults.
func AllocMemory(size int, cfg *MemoryConfig) (*Memory, error) {
	if size <= 0 {
		return nil, NewOpError("allocate memory", "", 0, Invalidf("size %d: want at least 1 byte", size))
	}
	if cfg == nil {
		cfg = &MemoryConfig{}
	}
	page := os.Getpagesize()
	if size > int(^uint(0)>>1)-page {
		return nil, NewOpError("allocate memory", "", 0, Invalidf("size %d is more than can be addressed", size))
	}
	mapped := (size + page - 1) &^ (page - 1)
	b, huge, err := mapMemory(mapped, cfg.HugePages)
	if err != nil {
		return nil, NewOpError("allocate memory", "", 0, fmt.Errorf("%d bytes: %w", size, err))
	}
	unmap := func() error { return unmapMemory(b) }
	return &Memory{b: b[:size:size], huge: huge, unmap: unmap}, nil
}

// AdoptMemory makes memory that the caller mapped itself (a file, a device, shared
// memory) usable for registration. It must not be Go heap memory and must stay mapped
// until Free succeeds; Free does not unmap it.
func AdoptMemory(b []byte) (*Memory, error) {
	if len(b) == 0 {
		return nil, NewOpError("adopt memory", "", 0, Invalidf("no bytes"))
	}
	return &Memory{b: b[:len(b):len(b)], unmap: func() error { return nil }}, nil
}

// Slice returns a view of n bytes at off, to be registered on its own. A view is
// freed with its root.
func (m *Memory) Slice(off, n int) (*Memory, error) {
	if off < 0 || n <= 0 || off > len(m.b)-n {
		return nil, NewOpError("slice memory", "", 0, Invalidf("%d bytes at %d of %d", n, off, len(m.b)))
	}
	return &Memory{b: m.b[off : off+n : off+n], huge: m.huge, root: m.top()}, nil
}

func (m *Memory) top() *Memory {
	if m.root != nil {
		return m.root
	}
	return m
}

// Bytes returns the memory. It must not be used after Free.
func (m *Memory) Bytes() []byte { return m.b }

// Len is the number of bytes.
func (m *Memory) Len() int { return len(m.b) }

// Addr is the address of the first byte, as work requests name it.
func (m *Memory) Addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.b)))) }

// HugePages reports whether the memory was mapped with explicit huge pages.
func (m *Memory) HugePages() bool { return m.huge }

// Retain is for providers: it keeps the memory from being freed until Release.
func (m *Memory) Retain() error {
	r := m.top()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.freed {
		return ErrClosed
	}
	r.refs++
	return nil
}

// Release undoes one Retain.
func (m *Memory) Release() {
	r := m.top()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refs == 0 {
		panic("ibverbx/verbs: Memory.Release without Retain")
	}
	r.refs--
}

// Free returns the memory to the system. It is refused with ErrBusy while the memory
// is registered, and a second Free does nothing.
func (m *Memory) Free() error {
	if m.root != nil {
		return NewOpError("free memory", "", 0, Invalidf("a view is freed with its root"))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.freed {
		return nil
	}
	if m.refs > 0 {
		return NewOpError("free memory", "", 0, fmt.Errorf("%w: %d memory regions are registered on it", ErrBusy, m.refs))
	}
	if m.unmap != nil { // nil on a zero Memory
		if err := m.unmap(); err != nil {
			return NewOpError("free memory", "", 0, err)
		}
	}
	m.freed = true
	return nil
}
