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
	if q.send.datagrams != nil {
		return q.postDatagrams(wrs)
	}
	from := unsafe.SliceData(wrs)
	if q.h == 0 {
		q.send.heapWRs = from // never executed; see cq.into
	}
	r := cPostSend(q.h, uintptr(unsafe.Pointer(from)), len(wrs))
	runtime.KeepAlive(from)
	runtime.KeepAlive(q) // its cleanup frees the handle
	if uint32(r) != 0 {
		return q.retrySend(wrs, r)
	}
	return int(r >> 32), nil
}

// callPostSend is PostSend's call into C, for callers off the hot path.
func (q *qp) callPostSend(wrs []verbs.SendWR) int64 {
	from := unsafe.SliceData(wrs)
	if q.h == 0 {
		q.send.heapWRs = from // never executed; see cq.into
	}
	r := cPostSend(q.h, uintptr(unsafe.Pointer(from)), len(wrs))
	runtime.KeepAlive(from)
	runtime.KeepAlive(q) // its cleanup frees the handle
	return r
}

// retrySend continues a post of sends that were not all accepted.
func (q *qp) retrySend(wrs []verbs.SendWR, r int64) (int, error) {
	n, why, err := q.send.retryPost(r, func() int64 { return q.callPostSend(wrs) }, q.sendRefused)
	if why != 0 {
		err = q.sendError(n, wrs, why)
	}
	return n, err
}

// retryPost repeats a post with call while the gate is shut or another goroutine posts. It returns
// the number of accepted requests and the reason for stopping, or the error of refused. Waiting
// goroutines queue on the lock, so only one of them spins.
func (s *side) retryPost(r int64, call func() int64, refused func() error) (n int, why uint32, err error) {
	for {
		if why = uint32(r); why != stopped && why != busy {
			return int(r >> 32), why, nil
		}
		s.mu.Lock()
		if !s.ready {
			defer s.mu.Unlock()
			return 0, 0, refused()
		}
		r = call()
		s.mu.Unlock()
		runtime.Gosched()
	}
}

// sendRefused returns the reason why the QP rejects sends. The lock is held.
func (q *qp) sendRefused() error {
	switch s := &q.send; {
	case s.closed:
		return q.opError("post send", verbs.ErrClosed)
	case s.state < verbs.StateRTS:
		return q.opError("post send", fmt.Errorf("%w: sends need RTS, the QP is in %s", verbs.ErrState, s.state))
	case s.depth == 0:
		return verbs.ErrQueueFull
	default:
		return q.opError("post send", fmt.Errorf("%w: the QP is being reset", verbs.ErrState))
	}
}

// postDatagrams posts datagrams. Address handles passed by the caller are looked up, never
// dereferenced. The table is locked while C reads the objects, which therefore stay open.
func (q *qp) postDatagrams(wrs []verbs.SendWR) (int, error) {
	s, x := &q.send, q.pd.ctx
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ready {
		return 0, q.sendRefused()
	}
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
		r := q.callPostSend(s.datagrams[:n]) // the gate is free: gate changes and datagram posts both hold the lock
		done += int(r >> 32)
		if why := uint32(r); why != 0 {
			return done, q.sendError(done, wrs, why)
		}
		if done == len(wrs) {
			return done, nil
		}
	}
}

// sendError explains why wrs[n] was not accepted. ErrQueueFull is not wrapped.
func (q *qp) sendError(n int, wrs []verbs.SendWR, why uint32) error {
	if queueFull(syscall.Errno(why)) {
		return verbs.ErrQueueFull
	}
	wr := &wrs[n]
	err := errnoErr(syscall.Errno(why))
	switch why {
	case badOpcode:
		err = verbs.Invalidf("opcode %s is not legal on a %s QP", wr.Opcode, q.typ)
	case badSGEs:
		err = verbs.Invalidf("%d SGEs, the QP allows %d", wr.NumSGE, q.maxSendSGE)
	case badFlags:
		err = verbs.Invalidf("unknown flags %s", wr.Flags)
	case tooLong:
		err = verbs.Invalidf("%d bytes, the QP allows %d in one message", wr.Length(), q.maxMsg)
	case inlineOpcode:
		err = verbs.Invalidf("INLINE is not legal on %s", wr.Opcode)
	case inlineLength:
		err = verbs.Invalidf("%d inline bytes, the QP allows %d", wr.Length(), q.maxInline)
	case atomicLength:
		err = verbs.Invalidf("an atomic needs a local buffer of 8 bytes, not %d", wr.Length())
	case noAH:
		err = verbs.Invalidf("AH %d is not an open address handle of the PD", wr.AH)
	}
	return q.opError("post send", fmt.Errorf("send %d of the chain: %w", n, err))
}

func (q *qp) PostRecv(wrs []verbs.RecvWR) (int, error) {
	if len(wrs) == 0 {
		return 0, nil
	}
	r := q.callPostRecv(wrs)
	if uint32(r) != 0 {
		return q.retryRecv(wrs, r)
	}
	return int(r >> 32), nil
}

// callPostRecv posts receives in C if the gate is open.
func (q *qp) callPostRecv(wrs []verbs.RecvWR) int64 {
	from := unsafe.SliceData(wrs)
	if q.h == 0 {
		q.recv.heapWRs = from // never executed; see cq.into
	}
	r := cPostRecv(q.h, uintptr(unsafe.Pointer(from)), len(wrs))
	runtime.KeepAlive(from)
	runtime.KeepAlive(q) // its cleanup frees the handle
	return r
}

// retryRecv continues a post of receives that were not all accepted.
func (q *qp) retryRecv(wrs []verbs.RecvWR, r int64) (int, error) {
	n, why, err := q.recv.retryPost(r, func() int64 { return q.callPostRecv(wrs) }, q.recvRefused)
	if why != 0 {
		err = q.pd.ctx.recvError(q.num, n, wrs, why, q.maxRecvSGE)
	}
	return n, err
}

// recvRefused returns the reason why the QP rejects receives. The lock is held.
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
		err = fmt.Errorf("%w: receives need at least INIT, the QP is in RESET", verbs.ErrState)
	}
	return q.opError("post receive", err)
}

// recvError explains why wrs[n] was not accepted, by a QP or, if qpn is 0, by an SRQ.
func (x *nicContext) recvError(qpn uint32, n int, wrs []verbs.RecvWR, why uint32, maxSGE int) error {
	if queueFull(syscall.Errno(why)) {
		return verbs.ErrQueueFull
	}
	err := fmt.Errorf("receive %d of the chain: %w", n, errnoErr(syscall.Errno(why)))
	if why == badSGEs {
		err = verbs.Invalidf("receive %d of the chain: %d SGEs, the queue allows %d", n, wrs[n].NumSGE, maxSGE)
	}
	return verbs.NewOpError("post receive", x.dev.Name(), qpn, err)
}
