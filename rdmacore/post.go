//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"ibverbx/verbs"
)

func (q *qp) PostSend(wrs []verbs.SendWR) (int, error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	s := &q.send
	s.mu.Lock()
	if !s.ready || s.datagrams != nil {
		defer s.mu.Unlock()
		return q.postRare(wrs)
	}
	from := unsafe.SliceData(wrs)
	if q.h == 0 {
		s.from = from // never; see cq.into
	}
	r := cPostSend(q.h, uintptr(unsafe.Pointer(from)), len(wrs))
	runtime.KeepAlive(from)
	s.crossings++
	s.mu.Unlock()
	n := int(r >> 32)
	if why := uint32(r); why != 0 {
		return n, q.sendError(n, wrs, why)
	}
	return n, nil
}

// postRare refuses sends that the state does not allow, and posts datagrams.
func (q *qp) postRare(wrs []verbs.SendWR) (int, error) {
	s := &q.send
	switch {
	case s.closed:
		return 0, q.opError("post send", verbs.ErrClosed)
	case s.state < verbs.StateRTS:
		return 0, q.opError("post send", fmt.Errorf("%w: sends can be posted from RTS on, the QP is in %s", verbs.ErrState, s.state))
	case s.depth == 0:
		return 0, verbs.ErrQueueFull
	}
	// The handles of datagrams are looked up, never followed: they come from the
	// caller. While C reads what they stand for nobody can destroy it.
	x := q.pd.ctx
	x.ahMu.RLock()
	defer x.ahMu.RUnlock()
	for done := 0; ; {
		n := copy(s.datagrams, wrs[done:])
		for i := range s.datagrams[:n] {
			wr := &s.datagrams[i]
			if a := x.ahs[wr.AH]; a != nil && a.pd == q.pd {
				wr.AH = verbs.AHHandle(a.h)
			} else {
				wr.AH = 0
			}
		}
		r := cPostSend(q.h, uintptr(unsafe.Pointer(unsafe.SliceData(s.datagrams))), n)
		s.crossings++
		done += int(r >> 32)
		if why := uint32(r); why != 0 {
			return done, q.sendError(done, wrs, why)
		}
		if done == len(wrs) {
			return done, nil
		}
	}
}

// sendError says why wrs[n] was not taken. A full queue is ordinary and stays bare.
func (q *qp) sendError(n int, wrs []verbs.SendWR, why uint32) error {
	if queueFull(syscall.Errno(why)) {
		return verbs.ErrQueueFull
	}
	wr := &wrs[n]
	var err error
	switch why {
	case badOpcode:
		err = verbs.Invalidf("send %d of the chain: opcode %s is not legal on a %s QP", n, wr.Opcode, q.typ)
	case badSGEs:
		err = verbs.Invalidf("send %d of the chain: %d SGEs, the QP allows %d", n, wr.NumSGE, q.maxSendSGE)
	case badFlags:
		err = verbs.Invalidf("send %d of the chain: unknown flags %s", n, wr.Flags)
	case tooLong:
		err = verbs.Invalidf("send %d of the chain: %d bytes, the QP sends %d in one message", n, wr.Length(), q.maxMsg)
	case inlineOpcode:
		err = verbs.Invalidf("send %d of the chain: INLINE is not legal on %s", n, wr.Opcode)
	case inlineLength:
		err = verbs.Invalidf("send %d of the chain: %d inline bytes, the QP allows %d", n, wr.Length(), q.maxInline)
	case atomicLength:
		err = verbs.Invalidf("send %d of the chain: an atomic needs a local buffer of 8 bytes, not %d", n, wr.Length())
	case noAH:
		err = verbs.Invalidf("send %d of the chain: AH %d is not an open address handle of the PD", n, wr.AH)
	default:
		err = fmt.Errorf("send %d of the chain: %w", n, inWords(syscall.Errno(why)))
	}
	return q.opError("post send", err)
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	s := &q.recv
	s.mu.Lock()
	if !s.ready {
		defer s.mu.Unlock()
		return 0, q.recvRefused()
	}
	from := unsafe.SliceData(wrs)
	if q.h == 0 {
		s.from = from // never; see cq.into
	}
	r := cPostRecv(q.h, uintptr(unsafe.Pointer(from)), len(wrs))
	runtime.KeepAlive(from)
	s.crossings++
	s.mu.Unlock()
	n := int(r >> 32)
	if why := uint32(r); why != 0 {
		return n, q.pd.ctx.recvError(q.num, n, wrs, why, q.maxRecvSGE)
	}
	return n, nil
}

// recvRefused says why the QP takes no receives.
func (q *qp) recvRefused() error {
	var err error
	switch {
	case q.recv.closed:
		err = verbs.ErrClosed
	case q.srq != nil:
		err = verbs.Invalidf("the QP takes its receives from an SRQ: post them there")
	case q.recv.depth == 0:
		return verbs.ErrQueueFull
	default:
		err = fmt.Errorf("%w: receives can be posted from INIT on, the QP is in RESET", verbs.ErrState)
	}
	return q.opError("post receive", err)
}

// recvError says why wrs[n] was not taken, by a QP or, if qpn is 0, by an SRQ.
func (x *nicContext) recvError(qpn uint32, n int, wrs []verbs.RecvWR, why uint32, maxSGE int) error {
	if queueFull(syscall.Errno(why)) {
		return verbs.ErrQueueFull
	}
	err := fmt.Errorf("receive %d of the chain: %w", n, inWords(syscall.Errno(why)))
	if why == badSGEs {
		err = verbs.Invalidf("receive %d of the chain: %d SGEs, the queue allows %d", n, wrs[n].NumSGE, maxSGE)
	}
	return verbs.NewOpError("post receive", x.dev.Name(), qpn, err)
}
