package verbstest

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

var chainTests = []test{
	{"Empty", chainEmpty},
	{"BadSendAtEveryPosition", chainBadSend},
	{"BadRecvAtEveryPosition", chainBadRecv},
	{"CallerKeepsSlice", chainCallerKeepsSlice},
}

// Posting an empty chain is a successful no-op.
func chainEmpty(e *env) {
	c := e.rc()
	for _, wrs := range [][]verbs.SendWR{nil, {}} {
		if n, err := c.a.PostSend(wrs); n != 0 || err != nil {
			e.Errorf("PostSend of no requests = %d, %v, want 0, nil", n, err)
		}
	}
	if n, err := c.a.PostRecv(nil); n != 0 || err != nil {
		e.Errorf("PostRecv of no requests = %d, %v, want 0, nil", n, err)
	}
	e.fence(c)
}

// PostSend returns the position of a bad request in the chain: the requests before it are executed,
// and the ones behind it are not posted (ibv_post_send(3)).
func chainBadSend(e *env) {
	const count = 5
	for bad := range count {
		e.sub(fmt.Sprintf("position=%d", bad), func(e *env) {
			c, src, dst := e.rc(), e.filled(e.a, 1, count*8), e.painted(e.b, count*8)
			wrs := chain(count, func(i int) verbs.SendWR {
				return write(uint64(i), dst, 8*i, src.sge(8*i, 8))
			})
			wrs[bad].Opcode = 99
			n, err := c.a.PostSend(wrs)
			e.rejectsPost("PostSend", bad, verbs.ErrInvalid)(n, err)
			if _, ok := errors.AsType[*verbs.OpError](err); !ok {
				e.Errorf("PostSend = %v, want an *OpError", err)
			}
			e.doneFrom(c.a, 0, bad, verbs.WCRDMAWrite)
			e.fence(c)
			e.expectEmpty(c.a.cq)
			e.holds(dst, 0, payload(1, count*8)[:8*bad])
		})
	}
}

// PostRecv returns the position of a bad receive in the chain: the receives before it are posted,
// and the ones behind it are not.
func chainBadRecv(e *env) {
	const count = 5
	for bad := range count {
		e.sub(fmt.Sprintf("position=%d", bad), func(e *env) {
			c := e.rc()
			var wrs []verbs.RecvWR
			for i := range count {
				wrs = append(wrs, recv(uint64(i)))
			}
			wrs[bad].NumSGE = verbs.MaxSGE + 1
			e.rejectsPost("PostRecv", bad, verbs.ErrInvalid)(c.b.PostRecv(wrs))
			e.postRecv(c.b, recv(100))
			for i := range uint64(bad) {
				e.post(c.a, send(i))
				e.gets(c.b, i, 0)
			}
			e.post(c.a, send(99))
			e.gets(c.b, 100, 0)
		})
	}
}

// The caller may reuse the slice of a chain when the call returns.
func chainCallerKeepsSlice(e *env) {
	c, src, dst := e.rc(), e.filled(e.a, 1, 64), e.buf(e.b, 64)
	sends := []verbs.SendWR{send(1, src.sge(0, 32)), send(2, src.sge(32, 32))}
	recvs := []verbs.RecvWR{recv(11, dst.sge(0, 32)), recv(12, dst.sge(32, 32))}
	e.post(c.a, sends...) // they wait for the receives
	for i := range sends {
		sends[i] = verbs.SendWR{WRID: 666, Opcode: verbs.OpRDMAWrite, NumSGE: 1}
	}
	if n, err := c.b.PostRecv(recvs); n != 2 || err != nil {
		e.Fatalf("PostRecv = %d, %v, want 2, nil", n, err)
	}
	for i := range recvs {
		recvs[i] = verbs.RecvWR{WRID: 666}
	}
	e.gets(c.b, 11, 32)
	e.gets(c.b, 12, 32)
	e.done(c.a, 1, verbs.WCSend)
	e.done(c.a, 2, verbs.WCSend)
	e.same(dst.bytes(), payload(1, 64))
}
