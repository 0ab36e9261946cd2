package reliable

import (
	"encoding/binary"
	"sync/atomic"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// answer is a READ or an atomic of the peer, and its response. The chunks of the response to a
// READ are sent directly from the region.
type answer struct {
	wire.Fetch
	lkey uint32 // the local key of a READ's data, once executed
	old  uint64 // the old value of an atomic, once executed
}

// putFetch writes the fetch of a READ or an atomic into b and returns its length.
func putFetch(b []byte, wr *verbs.SendWR) int {
	f := wire.Fetch{Kind: wire.FetchRead, Addr: wr.RemoteAddr, RKey: wr.RKey}
	switch wr.Opcode {
	case verbs.OpAtomicCmpAndSwp:
		f.Kind, f.CompareAdd, f.Swap = wire.FetchSwap, wr.CompareAdd, wr.Swap
	case verbs.OpAtomicFetchAndAdd:
		f.Kind, f.CompareAdd = wire.FetchAdd, wr.CompareAdd
	default:
	}
	f.Put(b)
	return wire.FetchLen
}

// checkFetch validates a fetch of the peer against the local regions.
func (q *qp) checkFetch(h *wire.Header) verbs.Status {
	f, err := wire.DecodeFetch(q.conn.payload)
	if err != nil {
		return verbs.StatusRemInvReqErr
	}
	access := fetchAccess(&f)
	word := f.Kind != wire.FetchRead
	if q.access&access == 0 || q.maxServed == 0 || uint64(h.Offset) > q.ctx.maxMsg() || (word && (h.Offset != 8 || f.Addr%8 != 0)) {
		return verbs.StatusRemInvReqErr
	}
	if h.Offset == 0 {
		return verbs.StatusSuccess // a READ of no bytes needs no key
	}
	r, b := q.engine.regions.remote(f.RKey, f.Addr, h.Offset, access)
	switch {
	case r == nil:
		return verbs.StatusRemAccessErr
	case word && wordOf(b) == nil:
		return verbs.StatusRemInvReqErr
	}
	return verbs.StatusSuccess
}

// fetchAccess is the access that a fetch requires from the QP and the region.
func fetchAccess(f *wire.Fetch) verbs.Access {
	if f.Kind == wire.FetchRead {
		return verbs.AccessRemoteRead
	}
	return verbs.AccessRemoteAtomic
}

// storeFetch stores a valid fetch of the peer.
func (q *qp) storeFetch(token uint32) {
	f, _ := wire.DecodeFetch(q.conn.payload) // was decoded before
	if q.answers == nil {
		q.answers = make([]answer, q.conn.core.Answers())
	}
	q.answers[token] = answer{Fetch: f}
}

// executeFetch executes a fetch of the peer. If its region was closed since it arrived, the QP fails, as
// on a NIC.
func (q *qp) executeFetch(a *core.Action) {
	s := &q.answers[a.Token]
	if a.Len == 0 {
		return
	}
	r, b := q.engine.regions.remote(s.RKey, s.Addr, a.Len, fetchAccess(&s.Fetch))
	switch {
	case r == nil || (s.Kind != wire.FetchRead && wordOf(b) == nil): // nil if another region has the key now
		q.broken, q.conn.failing = true, true
	case s.Kind == wire.FetchRead:
		s.lkey = r.lkey
	default:
		s.old = executeAtomic(wordOf(b), &s.Fetch)
	}
}

// executeAtomic executes an atomic on a word in host order. It is atomic among the CPUs of this host, and
// so among all wrapped QPs.
func executeAtomic(word *uint64, f *wire.Fetch) (old uint64) {
	if f.Kind == wire.FetchAdd {
		return atomic.AddUint64(word, f.CompareAdd) - f.CompareAdd
	}
	for {
		old = atomic.LoadUint64(word)
		if old != f.CompareAdd || atomic.CompareAndSwapUint64(word, old, f.Swap) {
			return old
		}
	}
}

// readable reports whether n bytes at off of the response can still be sent. A READ is no longer readable once its
// region is closed.
func (q *qp) readable(s *answer, off, n uint32) bool {
	if s.Kind != wire.FetchRead || n == 0 {
		return true
	}
	r, _ := q.engine.regions.remote(s.RKey, s.Addr+uint64(off), n, verbs.AccessRemoteRead)
	return r != nil && r.lkey == s.lkey
}

// stage adds n bytes at off of the response to wr, whose header is in b. It returns the number of bytes
// stored behind the header.
func (s *answer) stage(wr *verbs.SendWR, b []byte, off, n uint32) int {
	if s.Kind != wire.FetchRead {
		binary.BigEndian.PutUint64(b[wire.HeaderLen:], s.old)
		return int(n)
	}
	if n > 0 {
		wr.SGE[1] = verbs.SGE{Addr: s.Addr + uint64(off), Length: n, LKey: s.lkey}
		wr.NumSGE = 2
	}
	return 0
}

// checkAnswer validates the memory for a response, whose region may have been closed since the request was
// posted. The core checks everything else.
func (q *qp) checkAnswer(h *wire.Header) uint8 {
	token, ok := q.conn.core.Fetching(int(q.flow), h.Message)
	if !ok || h.Len == 0 {
		return 0
	}
	wr := &q.sends.At(token).wr
	ok, dmaBuf := q.engine.regions.covers(wr.SGE[:wr.NumSGE], true)
	if !ok {
		return uint8(verbs.StatusLocProtErr)
	}
	return q.engine.resources.placement(dmaBuf)
}

// toHostOrder converts the response to an atomic to host order.
func (q *qp) toHostOrder(token uint32) {
	if b := q.conn.payload; q.sends.At(token).wr.Opcode >= verbs.OpAtomicCmpAndSwp && len(b) == 8 {
		binary.NativeEndian.PutUint64(b, binary.BigEndian.Uint64(b))
	}
}
