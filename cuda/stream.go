package cuda

import (
	"fmt"
	"sync"

	"ibverbx/verbs"
)

// maxQueued is the number of copies that a Stream accepts between two calls of Synchronize.
const maxQueued = 1024

// Stream runs copies in order, concurrently with other streams. It is safe for concurrent use. Calls
// wait while another one synchronizes.
//
// A copy is complete only when Synchronize returns nil. Until then the stream prevents the GPU memory
// from being freed. Host bytes must stay mapped and unchanged, and destination bytes must not be read.
// Copies from and to unpinned host memory (GPU.Pin) are slower, and may block the caller.
//
// The stream keeps host bytes on the Go heap alive, but it is not kept alive itself. Synchronize or
// close it before dropping the last reference: otherwise the GPU may access memory that Go has reused.
type Stream struct {
	gpu *GPU

	mu     sync.Mutex // acquired before the locks of Memory and GPU
	stream uintptr    // CUstream
	queued []copyRef
	kernel copyKernel // used by copyAll
	// busy is set if copies were queued since the last successful synchronization.
	busy   bool
	closed bool
}

// copyRef holds the memory used by a queued copy.
type copyRef struct {
	a, b *verbs.Memory // retained; nil for the host's side
	host []byte        // kept reachable, so that it is not reused
}

func (h *copyRef) release() {
	if h.a != nil {
		h.a.Release()
	}
	if h.b != nil {
		h.b.Release()
	}
	*h = copyRef{}
}

// NewStream creates a stream. Close it before the GPU.
func (g *GPU) NewStream() (*Stream, error) {
	const op = "create stream"
	if err := g.retain(); err != nil {
		return nil, g.wrap(op, err)
	}
	s, err := g.newStream(op)
	if err != nil {
		g.release()
		return nil, err
	}
	return s, nil
}

func (g *GPU) newStream(op string) (*Stream, error) {
	h, o := cStream(g)
	if err := g.driver.failed(o); err != nil {
		return nil, g.wrap(op, err)
	}
	return &Stream{gpu: g, stream: h, queued: make([]copyRef, 0, maxQueued)}, nil
}

// Write queues a copy of src to dst at off. A range outside dst returns verbs.ErrInvalid.
func (s *Stream) Write(dst *verbs.Memory, off int, src []byte) error {
	to, err := retainRange(dst, off, len(src))
	if err != nil {
		return s.wrap(err)
	}
	return s.queue(to, 0, len(src), copyRef{a: dst, host: src})
}

// Read queues a copy from src at off to dst. A range outside src returns verbs.ErrInvalid.
func (s *Stream) Read(dst []byte, src *verbs.Memory, off int) error {
	from, err := retainRange(src, off, len(dst))
	if err != nil {
		return s.wrap(err)
	}
	return s.queue(0, from, len(dst), copyRef{a: src, host: dst})
}

// Copy queues a copy of n bytes from src, which may be on another GPU, to dst. A range outside either
// memory returns verbs.ErrInvalid.
func (s *Stream) Copy(dst *verbs.Memory, off int, src *verbs.Memory, srcOff, n int) error {
	to, err := retainRange(dst, off, n)
	if err != nil {
		return s.wrap(err)
	}
	from, err := retainRange(src, srcOff, n)
	if err != nil {
		dst.Release()
		return s.wrap(err)
	}
	return s.queue(to, from, n, copyRef{a: dst, b: src})
}

// wrap wraps an error of a copy; nil stays nil.
func (s *Stream) wrap(err error) error {
	if err != nil && s.gpu == nil {
		return verbs.NewOpError("copy memory", "", 0, err)
	}
	return s.gpu.wrap("copy memory", err)
}

// queue queues a copy, and keeps its memory until the copy is complete.
func (s *Stream) queue(to, from uint64, n int, h copyRef) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.ready()
	if err == nil && n > 0 {
		if err = s.push(to, from, n, h); err == nil {
			return nil
		}
	}
	h.release()
	return s.wrap(err)
}

// direction selects which addresses of a copy are on a GPU.
type direction int

// The values match shim.h.
const (
	toGPU direction = iota
	fromGPU
	withinGPU
)

// push queues a copy, with the lock held. An address of 0 stands for h.host, which is stored before
// its address is used. After an error the caller releases h.
func (s *Stream) push(to, from uint64, n int, h copyRef) error {
	s.queued = append(s.queued, h)
	d := withinGPU
	if to == 0 {
		to, d = hostAddr(h.host), fromGPU
	}
	if from == 0 {
		from, d = hostAddr(h.host), toGPU
	}
	err := s.gpu.driver.failed(cCopy(s.gpu, d, to, from, n, s.stream))
	if err != nil {
		s.queued[len(s.queued)-1] = copyRef{}
		s.queued = s.queued[:len(s.queued)-1]
	}
	s.busy = s.busy || err == nil
	return err
}

// copyAll queues copies. With wait, or after an error, it returns when they and all earlier ones are complete. The
// stream is locked until then: as soon as the caller releases the memory, the GPU and the stream can be closed. The
// caller keeps the memory. If the synchronization fails, the copies stay queued, and waitIdle retries it.
//
// Several callers may have copies in the stream. A successful synchronization covers all of them. CUDA reports a
// failed copy or kernel to all later calls, so each caller gets the error.
func (s *Stream) copyAll(copies []verbs.DeviceCopy, wait bool) error {
	if s == nil {
		return verbs.ErrClosed // the GPU was never opened
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return verbs.ErrClosed
	}
	var err error
	for err == nil && len(copies) > 0 {
		n, parallel := s.kernel.collect(copies)
		if parallel && s.loadKernel() {
			err = s.launch()
		} else {
			n = max(n, 1)
			err = s.copyEach(copies[:n])
		}
		copies = copies[n:]
	}
	if s.busy && (wait || err != nil) {
		if e := s.synchronize(); err == nil {
			err = e
		}
	}
	return err
}

// copyEach queues copies one by one.
func (s *Stream) copyEach(copies []verbs.DeviceCopy) error {
	for i := range copies {
		c := &copies[i]
		if c.Len == 0 {
			continue
		}
		if len(s.queued) == maxQueued {
			if err := s.synchronize(); err != nil {
				return err
			}
		}
		if err := s.push(c.To, c.From, int(c.Len), copyRef{host: c.Host}); err != nil {
			return err
		}
	}
	return nil
}

// ready returns the reason why the stream cannot queue copies, with the lock held.
func (s *Stream) ready() error {
	switch {
	case s.closed || s.gpu == nil:
		return verbs.ErrClosed
	case len(s.queued) == maxQueued:
		return fmt.Errorf("%w: %d copies wait; synchronize the stream first", verbs.ErrQueueFull, maxQueued)
	}
	return nil
}

// Synchronize waits for all copies to complete. After an error their destinations are undefined and
// still in use, unless the error is ErrDeviceLost: try again, or close the stream.
func (s *Stream) Synchronize() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.gpu == nil {
		return verbs.NewOpError("synchronize stream", "", 0, verbs.ErrClosed)
	}
	return s.gpu.wrap("synchronize stream", s.synchronize())
}

func (s *Stream) synchronize() error {
	err := s.gpu.driver.failed(cSynchronize(s.gpu, s.stream))
	if err != nil && !lost(err) {
		return err
	}
	for i := range s.queued {
		s.queued[i].release()
	}
	s.queued = s.queued[:0]
	s.kernel.used = 0
	s.busy = err != nil // a lost GPU fails every synchronization
	return err
}

// waitIdle is called before the memory at addr is unmapped. It waits for copies in progress, including ones left
// in the stream by a failed synchronization of copyAll. An error leaves them there, unless the GPU is lost. The
// kernel does not use the memory afterwards.
func (s *Stream) waitIdle(addr uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		if err := s.synchronize(); err != nil && !lost(err) {
			return fmt.Errorf("%w: a failed copy may still be in progress: %w", verbs.ErrBusy, err)
		}
	}
	s.kernel.forbid(addr)
	return nil
}

// Close waits for the copies and destroys the stream. A second Close does nothing. On a lost GPU it
// returns the error, and the stream is closed.
func (s *Stream) Close() error {
	if s.gpu == nil {
		return nil // a zero Stream
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	err := s.synchronize()
	if err == nil || lost(err) {
		if e := s.destroy(); e != nil {
			err = e
		}
	}
	if err == nil || lost(err) {
		s.closed = true
		s.gpu.release()
	}
	return s.gpu.wrap("close stream", err)
}

// destroy destroys an empty stream.
func (s *Stream) destroy() error { return s.gpu.driver.failed(cDestroy(s.gpu, s.stream)) }
