package cuda

import (
	"fmt"

	"ibverbx/verbs"
)

// IPCHandle names memory of a GPU to other processes of the host. It is valid while the process that
// made it has the memory.
type IPCHandle struct {
	// Handle is CUDA's handle of the whole allocation.
	Handle [64]byte
	// Offset is where the memory begins in the allocation, in bytes.
	Offset uint64
	// Size is the number of bytes.
	Size uint64
}

// IPCHandle returns a handle of memory for OpenIPC in another process. Memory that is itself opened from a
// handle has none.
func (g *GPU) IPCHandle(m *verbs.Memory) (IPCHandle, error) {
	const op = "export memory to processes"
	addr, err := take(m, 0, 0)
	if err != nil {
		return IPCHandle{}, g.wrong(op, err)
	}
	defer m.Release()
	base, err := g.within(addr, uint64(m.Len()))
	if err != nil {
		return IPCHandle{}, g.wrong(op, err)
	}
	h, o := cIPCGet(g, base)
	if err := g.driver.failed(o); err != nil {
		return IPCHandle{}, g.wrong(op, err)
	}
	return IPCHandle{Handle: h, Offset: addr - base, Size: uint64(m.Len())}, nil
}

// OpenIPC opens memory of another process. The GPU must be the same one, or one with peer access to it.
// The handle need not be trusted: a range outside of the allocation is refused. The other process must
// not free the memory before Free.
func (g *GPU) OpenIPC(h IPCHandle) (*verbs.Memory, error) {
	const op = "open memory of another process"
	if h.Size == 0 || h.Size > 1<<62 || h.Offset > 1<<62 {
		return nil, g.wrong(op, verbs.Invalidf("%d bytes at %d", h.Size, h.Offset))
	}
	if err := g.use(); err != nil {
		return nil, g.wrong(op, err)
	}
	base, o := cIPCOpen(g, h.Handle)
	if err := g.driver.failed(o); err != nil {
		g.unuse()
		return nil, g.wrong(op, fmt.Errorf("the other process must be alive, on this host, and not this process: %w", err))
	}
	if err := g.opened(base, h); err != nil {
		if e := g.free(base, cIPCClose); e != nil {
			err = fmt.Errorf("%w; then %w", err, e)
		}
		return nil, g.wrong(op, err)
	}
	return g.memory(base+h.Offset, int(h.Size), base, cIPCClose)
}

// opened checks that the allocation at base has the bytes of the handle.
func (g *GPU) opened(base uint64, h IPCHandle) error {
	start, length, o := cRange(g, base)
	if err := g.driver.failed(o); err != nil {
		return err
	}
	if start != base || h.Offset > length || h.Size > length-h.Offset {
		return verbs.Invalidf("%d bytes at %d of an allocation of %d", h.Size, h.Offset, length)
	}
	return nil
}
