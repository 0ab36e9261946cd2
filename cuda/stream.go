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

	mu     sync.Mutex // taken before those of Memory and GPU
	stream uintptr    // CUstream
	queued []hold
	blocks blocks // of do
	// busy says that copies were queued since the last synchronization that succeeded.
	busy   bool
	closed bool
}

// hold is what a queued copy uses.
type hold struct {
	a, b *verbs.Memory // kept from Free; nil for the host's side
	host []byte        // stays reachable, and therefore where it is
}

func (h *hold) give() {
	if h.a != nil {
		h.a.Release()
	}
	if h.b != nil {
		h.b.Release()
	}
	*h = hold{}
}

// NewStream creates a stream. Close it before the GPU.
func (g *GPU) NewStream() (*Stream, error) {
	const op = "create stream"
	if err := g.use(); err != nil {
		return nil, g.wrong(op, err)
	}
	s, err := g.newStream(op)
	if err != nil {
		g.unuse()
		return nil, err
	}
	return s, nil
}

func (g *GPU) newStream(op string) (*Stream, error) {
	h, o := cStream(g)
	if err := g.driver.failed(o); err != nil {
		return nil, g.wrong(op, err)
	}
	return &Stream{gpu: g, stream: h, queued: make([]hold, 0, maxQueued)}, nil
}

// Write queues a copy of src to dst at off. A range outside dst returns verbs.ErrInvalid.
func (s *Stream) Write(dst *verbs.Memory, off int, src []byte) error {
	to, err := take(dst, off, len(src))
	if err != nil {
		return s.wrong(err)
	}
	return s.queue(to, 0, len(src), hold{a: dst, host: src})
}

// Read queues a copy from src at off to dst. A range outside src returns verbs.ErrInvalid.
func (s *Stream) Read(dst []byte, src *verbs.Memory, off int) error {
	from, err := take(src, off, len(dst))
	if err != nil {
		return s.wrong(err)
	}
	return s.queue(0, from, len(dst), hold{a: src, host: dst})
}

// Copy queues a copy of n bytes from src, which may be on another GPU, to dst. A range outside either
// memory returns verbs.ErrInvalid.
func (s *Stream) Copy(dst *verbs.Memory, off int, src *verbs.Memory, srcOff, n int) error {
	to, err := take(dst, off, n)
	if err != nil {
		return s.wrong(err)
	}
	from, err := take(src, srcOff, n)
	if err != nil {
		dst.Release()
		return s.wrong(err)
	}
	return s.queue(to, from, n, hold{a: dst, b: src})
}

// wrong wraps an error of a copy; nil stays nil.
func (s *Stream) wrong(err error) error {
	if err != nil && s.gpu == nil {
		return verbs.NewOpError("copy memory", "", 0, err)
	}
	return s.gpu.wrong("copy memory", err)
}

// queue queues a copy, and keeps what it uses until it has happened.
func (s *Stream) queue(to, from uint64, n int, h hold) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.ready()
	if err == nil && n > 0 {
		if err = s.push(to, from, n, h); err == nil {
			return nil
		}
	}
	h.give()
	return s.wrong(err)
}

// direction says which addresses of a copy are those of a GPU.
type direction int

// The order is that of shim.h.
const (
	toGPU direction = iota
	fromGPU
	withinGPU
)

// push queues a copy, with the lock held. An address of 0 stands for h.host, which is stored before its
// address is used. After an error the caller gives h back.
func (s *Stream) push(to, from uint64, n int, h hold) error {
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
		s.queued[len(s.queued)-1] = hold{}
		s.queued = s.queued[:len(s.queued)-1]
	}
	s.busy = s.busy || err == nil
	return err
}

// do queues copies. With wait, or after an error, it returns when they and those before them have happened.
// The stream is locked until then: as soon as the caller gives the memory back the GPU can be closed, and the
// stream with it. The caller keeps the memory. If the synchronization fails the copies stay queued, and settle
// tries it again.
//
// Several callers may have copies in the stream. A synchronization that succeeds is one of all copies. CUDA
// reports a copy or kernel that fails to all calls from then on, so each caller learns of it.
func (s *Stream) do(copies []verbs.DeviceCopy, wait bool) error {
	if s == nil {
		return verbs.ErrClosed // of a GPU that was never opened
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return verbs.ErrClosed
	}
	var err error
	for err == nil && len(copies) > 0 {
		n, apart := s.blocks.gather(copies)
		if apart && s.load() {
			err = s.launch()
		} else {
			n = max(n, 1)
			err = s.each(copies[:n])
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

// each queues copies one by one.
func (s *Stream) each(copies []verbs.DeviceCopy) error {
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
		if err := s.push(c.To, c.From, int(c.Len), hold{host: c.Host}); err != nil {
			return err
		}
	}
	return nil
}

// ready returns why nothing can be queued, with the lock held.
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
	return s.gpu.wrong("synchronize stream", s.synchronize())
}

func (s *Stream) synchronize() error {
	err := s.gpu.driver.failed(cSynchronize(s.gpu, s.stream))
	if err != nil && !lost(err) {
		return err
	}
	for i := range s.queued {
		s.queued[i].give()
	}
	s.queued = s.queued[:0]
	s.blocks.used = 0
	s.busy = err != nil // a lost GPU fails every synchronization
	return err
}

// settle is called before the memory at addr is unmapped. It waits for copies that are under way, and for
// those that a failed synchronization of do has left in the stream. An error leaves them there, unless the
// GPU is lost. The kernel does not use the memory afterwards.
func (s *Stream) settle(addr uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy {
		if err := s.synchronize(); err != nil && !lost(err) {
			return fmt.Errorf("%w: a copy that failed may still be under way: %w", verbs.ErrBusy, err)
		}
	}
	s.blocks.forbid(addr)
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
		s.gpu.unuse()
	}
	return s.gpu.wrong("close stream", err)
}

// destroy destroys a stream that has no copies.
func (s *Stream) destroy() error { return s.gpu.driver.failed(cDestroy(s.gpu, s.stream)) }
