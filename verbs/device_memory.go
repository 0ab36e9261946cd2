package verbs

import (
	"fmt"
	"os"

	"ibverbx/internal/ntcopy"
)

// MemoryDevice copies memory that the CPU cannot access, such as GPU memory. It is for providers;
// programs use the methods of Memory. It is safe for concurrent use.
type MemoryDevice interface {
	// Name returns the device's name for errors, such as cuda:0.
	Name() string

	// Copy executes the copies in order and returns when all bytes are in place. After an error all
	// destinations are undefined, and no copy counts as done. Copies of earlier failed calls may still
	// be in progress until a Copy, possibly an empty one, returns nil or ErrDeviceFatal. Copy does not
	// retain the slice.
	Copy(copies []DeviceCopy) error

	// Start begins copies and may return before they are done. The caller's next Copy completes them: it
	// runs after them and returns the result of all. The caller keeps their memory until then. Errors
	// are as in Copy. Start does not retain the slice.
	Start(copies []DeviceCopy) error

	// PinHost pins host memory, which speeds up copies from and to mem. The caller must call unpin
	// before freeing the memory.
	PinHost(mem *Memory) (unpin func() error, err error)

	// DMABuf exports n bytes at addr as a dma-buf that contains them at offset. The caller closes the
	// file.
	DMABuf(addr, n uint64) (file *os.File, offset uint64, err error)

	// ExportMemory returns a handle that lets other processes on this host open n bytes at addr. The
	// handle has at most 95 bytes and becomes invalid when the memory is freed.
	ExportMemory(addr, n uint64) (handle []byte, err error)

	// OpenMemory opens another process's memory by its handle. The handle is untrusted: OpenMemory
	// rejects invalid handles, handles from this process or for another kind of device, and sizes beyond
	// the exported memory. Freeing the returned memory closes it in this process.
	OpenMemory(handle []byte) (*Memory, error)
}

// DeviceCopy is a copy from, to or within the memory of a MemoryDevice. The source may be on another
// device of the same kind.
type DeviceCopy struct {
	// To and From are device addresses. 0 selects Host.
	To, From uint64
	// Host is the host buffer, nil for copies between device addresses.
	Host []byte
	// Len is the number of bytes.
	Len uint64
}

// NewDeviceMemory is for device drivers such as package cuda. It makes size bytes at device address addr
// available for registration. Memory.Free calls free once the memory is unused.
func NewDeviceMemory(d MemoryDevice, addr uint64, size int, free func() error) (*Memory, error) {
	if d == nil || addr == 0 || size <= 0 || addr+uint64(size) < addr || free == nil {
		return nil, NewOpError("make device memory", "", 0, Invalidf("%d bytes at %#x of %v", size, addr, d))
	}
	return &Memory{device: d, addr: addr, size: size, unmap: free}, nil
}

// Device returns the memory's device, or nil for host memory.
func (m *Memory) Device() MemoryDevice { return m.device }

// WriteAt copies p to the memory at off. All bytes are in place when it returns nil. A range outside the
// memory returns ErrInvalid.
func (m *Memory) WriteAt(p []byte, off int64) (int, error) {
	if err := m.use(off, len(p)); err != nil {
		return 0, err
	}
	defer m.Release()
	if m.device == nil {
		return ntcopy.Copy(m.b[off:], p), nil
	}
	if err := m.device.Copy([]DeviceCopy{{To: m.addr + uint64(off), Host: p, Len: uint64(len(p))}}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ReadAt copies the memory at off to p. Unlike io.ReaderAt it fills p or fails: a range outside the
// memory returns ErrInvalid.
func (m *Memory) ReadAt(p []byte, off int64) (int, error) {
	if err := m.use(off, len(p)); err != nil {
		return 0, err
	}
	defer m.Release()
	if m.device == nil {
		return ntcopy.Copy(p, m.b[off:]), nil
	}
	if err := m.device.Copy([]DeviceCopy{{From: m.addr + uint64(off), Host: p, Len: uint64(len(p))}}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CopyFrom copies n bytes from src at srcOff to the memory at off. All bytes are in place when it
// returns nil. A range outside either memory returns ErrInvalid.
func (m *Memory) CopyFrom(off int64, src *Memory, srcOff int64, n int) error {
	if src == nil {
		return m.copyError(Invalidf("no source"))
	}
	if err := m.use(off, n); err != nil {
		return err
	}
	defer m.Release()
	if err := src.use(srcOff, n); err != nil {
		return err
	}
	defer src.Release()
	var err error
	switch {
	case src.device == nil:
		_, err = m.WriteAt(src.b[srcOff:][:n], off)
	case m.device == nil:
		_, err = src.ReadAt(m.b[off:][:n], srcOff)
	default:
		err = m.device.Copy([]DeviceCopy{{To: m.addr + uint64(off), From: src.addr + uint64(srcOff), Len: uint64(n)}})
	}
	return err
}

// use checks that the memory has n bytes at off, and prevents Free until Release.
func (m *Memory) use(off int64, n int) error {
	if off < 0 || n < 0 || off > int64(m.Len()-n) {
		return m.copyError(Invalidf("%d bytes at %d of %d", n, off, m.Len()))
	}
	if err := m.Retain(); err != nil {
		return m.copyError(err)
	}
	return nil
}

func (m *Memory) copyError(err error) error {
	return NewOpError("copy memory", m.on(), 0, err)
}

// on returns the name of the memory's device, or "" for host memory.
func (m *Memory) on() string {
	if m.device == nil {
		return ""
	}
	return m.device.Name()
}

// DMABuf exports device memory as a dma-buf for PD.RegisterDMABuf. The memory starts at offset, because
// a dma-buf consists of whole pages. The caller closes the file, at the earliest after registering it,
// and must not free the memory before closing all its registrations. Host memory returns
// ErrNotSupported.
func (m *Memory) DMABuf() (file *os.File, offset uint64, err error) {
	const op = "export dma-buf"
	if m.device == nil {
		return nil, 0, NewOpError(op, "", 0, fmt.Errorf("%w: this is host memory; register it with RegisterMemory", ErrNotSupported))
	}
	if err := m.Retain(); err != nil {
		return nil, 0, NewOpError(op, m.on(), 0, err)
	}
	defer m.Release()
	return m.device.DMABuf(m.addr, uint64(m.size))
}
