package verbs

import (
	"fmt"
	"os"
)

// MemoryDevice has memory that the CPU cannot access, such as a GPU, and copies it. Programs do not call it:
// they use the methods of Memory. It is safe for concurrent use.
type MemoryDevice interface {
	// Name is the name of the device in errors, such as cuda:0.
	Name() string

	// Copy does the copies in order, and returns when all bytes are in place. After an error the bytes of all
	// destinations are undefined, and no copy counts as done. Copies of earlier calls that failed may still be
	// under way, until a Copy, which may be one without copies, returns without an error or with ErrDeviceFatal. It keeps no reference to the slice.
	Copy(copies []DeviceCopy) error

	// Start begins copies, and may return before they are done. The next Copy of the caller ends them: it does
	// its copies behind them, and its result is that of all. The caller keeps their memory until then. An error
	// of Start is that of such a Copy. It keeps no reference to the slice.
	Start(copies []DeviceCopy) error

	// PinHost makes copies from and to mem, which is memory of the host, as fast as they can be. They are slower
	// without. The caller calls unpin before it frees the memory.
	PinHost(mem *Memory) (unpin func() error, err error)

	// DMABuf exports n bytes at addr as dma-buf. They begin at offset of it. The caller closes the file.
	DMABuf(addr, n uint64) (file *os.File, offset uint64, err error)

	// ExportMemory returns a handle with which other processes of the host open n bytes at addr. The handle has at most
	// MaxMemoryHandle bytes. It is of no use once the memory is freed.
	ExportMemory(addr, n uint64) (handle []byte, err error)

	// OpenMemory opens memory of another process by its handle. The handle need not be trusted: one that is wrong, of this
	// process or of another kind of device is refused, and so is one of more bytes than there are. The caller frees the
	// memory, which closes it here.
	OpenMemory(handle []byte) (*Memory, error)
}

// MaxMemoryHandle is the most bytes that a handle of MemoryDevice.ExportMemory has.
const MaxMemoryHandle = 95

// DeviceCopy is a copy from or to memory of a MemoryDevice, or between two places of it. The source may be
// memory of another device of the same kind.
type DeviceCopy struct {
	// To and From are addresses on the device. 0 stands for Host.
	To, From uint64
	// Host is the host's side, nil if there is none.
	Host []byte
	// Len is the number of bytes.
	Len uint64
}

// NewDeviceMemory is for packages that drive a device. It makes size bytes at addr of the device usable for
// registration. Free of the memory calls free once nothing uses the memory.
func NewDeviceMemory(d MemoryDevice, addr uint64, size int, free func() error) (*Memory, error) {
	if d == nil || addr == 0 || size <= 0 || addr+uint64(size) < addr || free == nil {
		return nil, NewOpError("make device memory", "", 0, Invalidf("%d bytes at %#x of %v", size, addr, d))
	}
	return &Memory{device: d, addr: addr, size: size, unmap: free}, nil
}

// Device returns the device that has the memory, nil if the CPU can access it.
func (m *Memory) Device() MemoryDevice { return m.device }

// WriteAt copies p to the memory at off. All of it is in place when WriteAt returns without an error.
func (m *Memory) WriteAt(p []byte, off int64) (int, error) {
	if err := m.use(off, len(p)); err != nil {
		return 0, err
	}
	defer m.Release()
	if m.device == nil {
		return copy(m.b[off:], p), nil
	}
	if err := m.device.Copy([]DeviceCopy{{To: m.addr + uint64(off), Host: p, Len: uint64(len(p))}}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// ReadAt copies the memory at off to p. Unlike io.ReaderAt it reads all of p or fails.
func (m *Memory) ReadAt(p []byte, off int64) (int, error) {
	if err := m.use(off, len(p)); err != nil {
		return 0, err
	}
	defer m.Release()
	if m.device == nil {
		return copy(p, m.b[off:]), nil
	}
	if err := m.device.Copy([]DeviceCopy{{From: m.addr + uint64(off), Host: p, Len: uint64(len(p))}}); err != nil {
		return 0, err
	}
	return len(p), nil
}

// CopyFrom copies n bytes of src at srcOff to the memory at off. All of them are in place when CopyFrom
// returns without an error.
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

// on is the name of the device that has the memory, "" for the host.
func (m *Memory) on() string {
	if m.device == nil {
		return ""
	}
	return m.device.Name()
}

// DMABuf exports memory of a device as dma-buf, for PD.RegisterDMABuf. The memory begins at offset of it,
// because a dma-buf has whole pages. The caller closes the file, and may do so once it is registered. The
// memory must not be freed before all its registrations are closed.
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
