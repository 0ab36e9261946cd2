package cuda

import (
	"errors"
	"fmt"
	"sync"

	"ibverbx/verbs"
)

// GPU is an open GPU. It is safe for concurrent use. It uses the GPU's primary context, like the CUDA
// runtime and PyTorch, so it can access their memory.
type GPU struct {
	driver  *Driver
	ordinal int
	device  int     // CUdevice
	context uintptr // CUcontext
	copies  *Stream // used by Copy and Start

	mu     sync.Mutex
	open   int // number of streams, pins and memory ranges
	closed bool
}

var _ verbs.MemoryDevice = (*GPU)(nil)

func gpuName(ordinal int) string { return fmt.Sprintf("cuda:%d", ordinal) }

// Open opens a GPU by its ordinal. It returns ErrNoDevice if the GPU does not exist. The first use of a
// GPU in a process takes a few hundred milliseconds.
func (d *Driver) Open(ordinal int) (*GPU, error) {
	g := &GPU{driver: d, ordinal: ordinal}
	if ordinal < 0 || ordinal >= d.count {
		return nil, g.wrap("open", fmt.Errorf("%w %d; the driver has %d", ErrNoDevice, ordinal, d.count))
	}
	var o outcome
	g.context, g.device, o = cRetain(d.lib, ordinal)
	if err := d.failed(o); err != nil {
		return nil, g.wrap("open", err)
	}
	copies, err := g.newStream("open")
	if err != nil {
		return nil, errors.Join(err, d.failed(cRelease(d.lib, g.device)))
	}
	g.copies = copies
	return g, nil
}

// Name returns the GPU's name in errors and on command lines, such as cuda:0.
func (g *GPU) Name() string { return gpuName(g.ordinal) }

// wrap wraps an error of an operation; nil stays nil.
func (g *GPU) wrap(op string, err error) error {
	if err == nil {
		return nil // without formatting the name
	}
	return verbs.NewOpError(op, g.Name(), 0, err)
}

// retain counts an object, so that Close cannot release the context while it is in use.
func (g *GPU) retain() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed || g.driver == nil {
		return verbs.ErrClosed
	}
	g.open++
	return nil
}

func (g *GPU) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open--
}

// Close releases the GPU. It waits for Copy calls in progress, and returns verbs.ErrBusy while memory,
// pins or streams of the GPU are open. A second Close does nothing. On a lost GPU it returns the error,
// and the GPU is closed.
func (g *GPU) Close() error {
	const op = "close"
	if g.copies == nil {
		return nil
	}
	g.copies.mu.Lock() // the last copy may have released its memory and not returned
	defer g.copies.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	if g.open > 0 {
		return g.wrap(op, fmt.Errorf("%w: %d memory ranges, pins or streams are open", verbs.ErrBusy, g.open))
	}
	if err := g.copies.unloadKernel(); err != nil {
		return g.wrap(op, err)
	}
	if err := g.copies.destroy(); err != nil && !lost(err) {
		return g.wrap(op, err)
	}
	g.closed, g.copies.closed = true, true
	return g.wrap(op, g.driver.failed(cRelease(g.driver.lib, g.device)))
}
