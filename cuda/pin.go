package cuda

import (
	"sync"

	"ibverbx/verbs"
)

// PinnedMemory is host memory pinned for the GPU, so that its copy engines access it directly.
type PinnedMemory struct {
	gpu *GPU
	mem *verbs.Memory

	mu     sync.Mutex
	closed bool
}

// Pin pins host memory, which then cannot be freed until PinnedMemory.Close. A process can pin each
// range of memory once. Pinning takes about as long as allocating the pages.
func (g *GPU) Pin(mem *verbs.Memory) (*PinnedMemory, error) {
	const op = "pin memory"
	if mem == nil {
		return nil, g.wrap(op, verbs.Invalidf("no memory"))
	}
	if d := mem.Device(); d != nil {
		return nil, g.wrap(op, verbs.Invalidf("this is memory of %s; only host memory is pinned", d.Name()))
	}
	if err := g.retain(); err != nil {
		return nil, g.wrap(op, err)
	}
	err := mem.Retain()
	if err == nil {
		if err = g.driver.failed(cPin(g, mem.Addr(), mem.Len())); err != nil {
			mem.Release()
		}
	}
	if err != nil {
		g.release()
		return nil, g.wrap(op, err)
	}
	g.copies.allowKernel(mem.Addr(), mem.Len())
	return &PinnedMemory{gpu: g, mem: mem}, nil
}

// Close unpins the memory. The caller must have synchronized the streams that use it; Close waits for
// copies by Memory and NICs. A second Close does nothing. On a lost GPU it returns the error, and the
// memory counts as unpinned.
func (p *PinnedMemory) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.gpu == nil {
		return nil
	}
	if err := p.gpu.copies.waitIdle(p.mem.Addr()); err != nil {
		return p.gpu.wrap("unpin memory", err)
	}
	err := p.gpu.driver.failed(cUnpin(p.gpu, p.mem.Addr()))
	if err == nil || lost(err) {
		p.closed = true
		p.mem.Release()
		p.gpu.release()
	}
	return p.gpu.wrap("unpin memory", err)
}

// PinHost implements verbs.MemoryDevice.
func (g *GPU) PinHost(mem *verbs.Memory) (unpin func() error, err error) {
	p, err := g.Pin(mem)
	if err != nil {
		return nil, err
	}
	return p.Close, nil
}
