package verbs

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"
)

// MemoryConfig configures NIC memory. The zero value and a nil pointer mean ordinary pages.
type MemoryConfig struct {
	// HugePages requests explicit huge pages. If they are unavailable, the memory uses ordinary
	// pages, with a hint for transparent huge pages where the system supports them.
	// Memory.HugePages reports the outcome.
	HugePages bool
	// Shared backs the memory with a dedicated file (a memfd), so that a NIC can share it with another
	// process on this host. The file uses a descriptor and usually rules out huge pages. If the file
	// cannot be created, Shared is ignored. Memory.File reports the outcome.
	Shared bool
}

// Memory is memory that NICs can access: page-aligned, zeroed, never moved, outside the Go heap, and
// freed explicitly. Registered memory cannot be freed.
//
// Device memory, such as GPU memory, is neither aligned nor zeroed, and the CPU cannot access it.
// Package cuda allocates it. Its Bytes is nil: use WriteAt, ReadAt and CopyFrom.
//
// All methods are safe for concurrent use. The caller synchronizes access to the bytes.
type Memory struct {
	b    []byte
	huge bool
	file bool // fd is the file of an allocation
	fd   int
	root *Memory // the allocation that a view belongs to; nil on an allocation itself

	device MemoryDevice // owner of the bytes; nil if the CPU can access them
	addr   uint64       // address on device
	size   int          // number of bytes on device

	mu    sync.Mutex // guards refs and freed; used on the root only
	refs  int        // number of registrations and copies; used on the root only
	freed bool       // set once by Free; used on the root only
	unmap func() error
}

// AllocMemory allocates size bytes. The mapping is rounded up to whole pages; Bytes is not. A nil cfg
// means the defaults. An invalid size returns ErrInvalid; a failed mapping returns the system's error.
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
	if cfg.Shared {
		if b, fd, err := mapFile(mapped); err == nil {
			return &Memory{b: b[:size:size], file: true, fd: fd, unmap: func() error { return unmapFile(b, fd) }}, nil
		}
	}
	b, huge, err := mapMemory(mapped, cfg.HugePages)
	if err != nil {
		return nil, NewOpError("allocate memory", "", 0, fmt.Errorf("%d bytes: %w", size, err))
	}
	unmap := func() error { return unmapMemory(b) }
	return &Memory{b: b[:size:size], huge: huge, unmap: unmap}, nil
}

// AdoptMemory makes memory mapped by the caller (a file, a device, shared memory) available for
// registration. It must not be Go heap memory. It must stay mapped until Free succeeds; Free does not
// unmap it. Empty memory returns ErrInvalid.
func AdoptMemory(b []byte) (*Memory, error) {
	if len(b) == 0 {
		return nil, NewOpError("adopt memory", "", 0, Invalidf("no bytes"))
	}
	return &Memory{b: b[:len(b):len(b)], unmap: func() error { return nil }}, nil
}

// Slice returns a view of n bytes at off that can be registered separately. A view is freed with its
// root. A range outside the memory returns ErrInvalid.
func (m *Memory) Slice(off, n int) (*Memory, error) {
	if off < 0 || n <= 0 || off > m.Len()-n {
		return nil, NewOpError("slice memory", "", 0, Invalidf("%d bytes at %d of %d", n, off, m.Len()))
	}
	if m.device != nil {
		return &Memory{device: m.device, addr: m.addr + uint64(off), size: n, root: m.top()}, nil
	}
	return &Memory{b: m.b[off : off+n : off+n], huge: m.huge, root: m.top()}, nil
}

func (m *Memory) top() *Memory {
	if m.root != nil {
		return m.root
	}
	return m
}

// Bytes returns the memory, or nil for device memory. It must not be used after Free.
func (m *Memory) Bytes() []byte { return m.b }

// Len returns the number of bytes.
func (m *Memory) Len() int { return len(m.b) + m.size }

// Addr returns the address of the first byte, as used in work requests.
func (m *Memory) Addr() uint64 {
	if m.device != nil {
		return m.addr
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.b))))
}

// HugePages reports whether the memory was mapped with explicit huge pages.
func (m *Memory) HugePages() bool { return m.huge }

// File is for providers. It returns the descriptor of the file that backs exactly this memory, starting
// at its first byte. The file's size is sealed. The descriptor is valid until Free. ok is false unless
// the memory was allocated as Shared; views are never backed by a file.
func (m *Memory) File() (fd int, ok bool) { return m.fd, m.file }

// Retain is for providers. It prevents Free until a matching Release. It returns ErrClosed for freed
// memory.
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

// Release undoes one Retain. It panics without one, because memory in use would be freed.
func (m *Memory) Release() {
	r := m.top()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refs == 0 {
		panic("ibverbx/verbs: Memory.Release without Retain")
	}
	r.refs--
}

// Free returns the memory to the system or its device. It returns ErrBusy while the memory is
// registered or being copied. A second Free is a no-op. If the device is lost, Free returns its
// error, and the memory counts as freed.
func (m *Memory) Free() error {
	const op = "free memory"
	if m.root != nil {
		return NewOpError(op, "", 0, Invalidf("a view is freed with its root"))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.freed {
		return nil
	}
	if m.refs > 0 {
		return NewOpError(op, m.on(), 0, fmt.Errorf("%w: %d memory regions or copies use it", ErrBusy, m.refs))
	}
	if m.unmap != nil { // nil on a zero Memory
		if err := m.unmap(); err != nil {
			m.freed = errors.Is(err, ErrDeviceFatal)
			return NewOpError(op, m.on(), 0, err)
		}
	}
	m.freed = true
	return nil
}
