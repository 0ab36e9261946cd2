package cuda

import (
	"encoding/binary"
	"fmt"

	"ibverbx/verbs"
)

// IPCHandle lets other processes on this host map GPU memory. It is valid until the exporting process
// frees the memory.
type IPCHandle struct {
	// Handle is CUDA's handle for the whole allocation.
	Handle [64]byte
	// Offset is the start of the memory within the allocation, in bytes.
	Offset uint64
	// Size is the number of bytes.
	Size uint64
}

// IPCHandle returns a handle to memory for OpenIPC in another process. Memory opened from a handle
// cannot be exported again.
func (g *GPU) IPCHandle(m *verbs.Memory) (IPCHandle, error) {
	const op = "export memory to processes"
	addr, err := retainRange(m, 0, 0)
	if err != nil {
		return IPCHandle{}, g.wrap(op, err)
	}
	defer m.Release()
	h, err := g.ipcHandle(addr, uint64(m.Len()))
	return h, g.wrap(op, err)
}

// ipcHandle returns a handle of n bytes at addr, which the caller has retained.
func (g *GPU) ipcHandle(addr, n uint64) (IPCHandle, error) {
	if g.driver == nil {
		return IPCHandle{}, verbs.ErrClosed
	}
	base, err := g.checkRange(addr, n)
	if err != nil {
		return IPCHandle{}, err
	}
	h, o := cIPCGet(g, base)
	if err := g.driver.failed(o); err != nil {
		return IPCHandle{}, err
	}
	return IPCHandle{Handle: h, Offset: addr - base, Size: n}, nil
}

// A handle of ExportMemory: 0 "cuda" | 4 Handle 64 | 68 Offset 8 | 76 Size 8, in host byte order.
const (
	handleMagic = "cuda"
	handleLen   = 84
)

// ExportMemory implements verbs.MemoryDevice.
func (g *GPU) ExportMemory(addr, n uint64) ([]byte, error) {
	h, err := g.ipcHandle(addr, n)
	if err != nil {
		return nil, g.wrap("export memory to processes", err)
	}
	b := append(make([]byte, 0, handleLen), handleMagic...)
	b = append(b, h.Handle[:]...)
	b = binary.NativeEndian.AppendUint64(b, h.Offset)
	return binary.NativeEndian.AppendUint64(b, h.Size), nil
}

// OpenMemory implements verbs.MemoryDevice.
func (g *GPU) OpenMemory(handle []byte) (*verbs.Memory, error) {
	if len(handle) != handleLen || string(handle[:4]) != handleMagic {
		return nil, g.wrap("open memory of another process", verbs.Invalidf("not a handle of GPU memory (%d bytes)", len(handle)))
	}
	return g.OpenIPC(IPCHandle{
		Handle: [64]byte(handle[4:]), Offset: binary.NativeEndian.Uint64(handle[68:]), Size: binary.NativeEndian.Uint64(handle[76:]),
	})
}

// OpenIPC maps another process's memory. The GPU must be the same one, or have peer access to it. The
// handle is untrusted: a range outside the allocation is rejected. The other process must not free the
// memory before Free.
func (g *GPU) OpenIPC(h IPCHandle) (*verbs.Memory, error) {
	const op = "open memory of another process"
	if h.Size == 0 || h.Size > 1<<62 || h.Offset > 1<<62 {
		return nil, g.wrap(op, verbs.Invalidf("%d bytes at %d", h.Size, h.Offset))
	}
	if err := g.retain(); err != nil {
		return nil, g.wrap(op, err)
	}
	base, o := cIPCOpen(g, h.Handle)
	if err := g.driver.failed(o); err != nil {
		g.release()
		return nil, g.wrap(op, fmt.Errorf("the other process must be alive, on this host, and not this process: %w", err))
	}
	length, err := g.checkOpened(base, h)
	if err != nil {
		if e := g.free(base, cIPCClose); e != nil {
			err = fmt.Errorf("%w; then %w", err, e)
		}
		return nil, g.wrap(op, err)
	}
	g.copies.allowKernel(base, length)
	return g.memory(base+h.Offset, int(h.Size), base, cIPCClose)
}

// checkOpened checks that the allocation at base contains the bytes of the handle, and returns its length.
func (g *GPU) checkOpened(base uint64, h IPCHandle) (int, error) {
	start, length, o := cRange(g, base)
	if err := g.driver.failed(o); err != nil {
		return 0, err
	}
	if start != base || h.Offset > length || h.Size > length-h.Offset {
		return 0, verbs.Invalidf("%d bytes at %d of an allocation of %d", h.Size, h.Offset, length)
	}
	return int(length), nil
}
