package sim

import (
	"fmt"
	"slices"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// request is one request of an end and its expected result.
type request struct {
	id      uint64 // index in end.sends, and the WRID
	wr      ibverbx.SendWR
	length  int      // bytes
	content uint32   // content of its bytes
	local   *span    // nil if it is empty
	remote  *span    // nil unless it writes
	pin     *request // WRITE whose bytes this READ fetches, or nil
	pinned  bool     // a later READ fetches the bytes of this WRITE
	bad     bool     // it uses an invalid key
	word    int      // counter of an atomic
	place   int      // number of an atomic among those of its counter, from 1
	shared  bool     // the counter of an atomic is the shared one
	doubted bool     // an atomic that failed without its VirtualQP

	posted   int64 // time of the post
	late     bool  // posted after the VirtualQP had failed
	done     bool  // it has ended, and status is set
	status   verbs.Status
	notified bool // the peer was notified of it
	verified bool // its bytes were seen at the peer
}

func (r *request) signaled() bool { return r.wr.Flags&verbs.SendSignaled != 0 }
func (r *request) atomic() bool   { return r.wr.Opcode >= verbs.OpAtomicCmpAndSwp }
func (r *request) imm() bool      { return r.wr.Opcode == verbs.OpRDMAWriteWithImm }

func (r *request) message() bool {
	return r.wr.Opcode == verbs.OpSend || r.wr.Opcode == verbs.OpSendWithImm
}

// writes reports whether the request leaves bytes in the peer's memory.
func (r *request) writes() bool {
	return r.wr.Opcode == verbs.OpRDMAWrite || r.wr.Opcode == verbs.OpRDMAWriteWithImm
}

func (r *request) String() string {
	return fmt.Sprintf("request %d (%s, %d bytes, %s)", r.id, r.wr.Opcode, r.length, r.wr.Flags)
}

// makeRequest draws a request. It returns nil if its bytes do not fit now.
func (e *end) makeRequest() *request {
	w, rng := e.w, e.w.rng
	p := &w.plan.Work
	r := &request{id: uint64(len(e.sends) + len(e.backlog)), content: uint32(rng.IntN(contentSpace))}
	percent := func(share int) bool { return rng.IntN(100) < share/100 }
	if !percent(p.Silent) || e.mustSignal() {
		r.wr.Flags |= verbs.SendSignaled
	}
	plain := e.burstOp != 0
	if percent(p.Fence) && !plain {
		r.wr.Flags |= verbs.SendFence
	}
	if percent(1000) {
		r.wr.Flags |= verbs.SendSolicited
	}
	r.wr.WRID, r.wr.Imm = r.id, rng.Uint32()
	op := e.burstOp
	if !plain {
		op = w.drawOp()
	}
	if r.length = e.burstSize; r.length < 0 {
		r.length = w.drawSize(op, 8)
	}
	switch op {
	case OpWrite, OpImm:
		r.wr.Opcode = verbs.OpRDMAWrite
		if op == OpImm {
			r.wr.Opcode = verbs.OpRDMAWriteWithImm
		}
		if !e.aim(r) {
			return nil
		}
	case OpRead:
		r.wr.Opcode = verbs.OpRDMARead
		e.aimRead(r)
	case OpSend:
		r.wr.Opcode = verbs.OpSend + verbs.Opcode(rng.IntN(2))
	default:
		r.wr.Opcode = verbs.OpAtomicCmpAndSwp + verbs.Opcode(rng.IntN(2))
		r.wr.Remote = e.peer.host.remote
	}
	if !e.fill(r, percent(p.Inline) && !plain, percent(p.Scatter) && !plain) {
		if r.remote != nil {
			r.remote.ended = true
			r.remote.ring.release()
		}
		return nil
	}
	if r.pin != nil {
		r.pin.pinned = true
	}
	if r.atomic() {
		e.aimAtomic(r)
	}
	if e.badKey && (r.writes() || r.wr.Opcode == verbs.OpRDMARead) && r.length > 0 {
		e.badKey = false
		r.bad = true
		r.wr.Remote = e.peer.host.wrongRemote()
	}
	return r
}

// mustSignal reports whether a VirtualQP that passes requests through would run out of slots without
// a completion.
func (e *end) mustSignal() bool {
	return e.straight() && e.silentRun+1 >= max(e.plan.LaneDepth/2, 1)
}

func (w *world) drawOp() OpSet {
	for {
		if op := OpSet(1) << w.rng.IntN(len(opNames)); w.plan.Work.Ops&op != 0 {
			return op
		}
	}
}

// drawSize draws a length. Most are small, one in oddly is anything that the plan allows.
func (w *world) drawSize(op OpSet, oddly int) int {
	low, high := w.plan.Work.Sizes[0], w.plan.Work.Sizes[1]
	if op == OpSend {
		high = w.maxSend()
		low = min(low, high)
	}
	small := low + (high-low)/16
	n := low + w.rng.IntN(small-low+1)
	if w.rng.IntN(oddly) == 0 {
		n = low + w.rng.IntN(high-low+1)
	}
	switch op {
	case OpAtomic:
		return 8
	case OpRead:
		return max(min(n, librarySize), 1)
	case OpWrite:
		return max(n, 1)
	default:
		return n
	}
}

// aim gives a WRITE a range of the peer's memory, and fills the range with another content.
func (e *end) aim(r *request) bool {
	r.wr.Remote = e.peer.host.remote
	if r.length == 0 {
		r.wr.Remote = nil
		return true
	}
	if r.remote = e.peer.in.alloc(r.length, e.w.rng.IntN(64)); r.remote == nil {
		return false
	}
	r.remote.label, r.remote.id = e.name, r.id
	r.wr.RemoteOffset = uint64(r.remote.off)
	copy(r.remote.bytes(), e.w.pool.content((r.content+contentSpace/2)%contentSpace, r.length))
	return true
}

// aimRead makes a READ fetch constant bytes or, with a fence, the bytes of the WRITE before it.
func (e *end) aimRead(r *request) {
	r.wr.Remote = e.peer.host.remote
	last := e.lastMade()
	if last != nil && last.writes() && last.remote != nil && !last.bad && !last.pinned && e.w.rng.IntN(2) == 0 {
		r.wr.Flags |= verbs.SendFence
		r.pin, r.length, r.content = last, last.length, last.content
		r.wr.RemoteOffset = last.wr.RemoteOffset
		return
	}
	off := e.w.rng.IntN(librarySize - r.length + 1)
	r.content = e.peer.libraryContent + uint32(off)
	r.wr.RemoteOffset = uint64(e.peer.library.off + off)
}

// lastMade is the newest incomplete request, or nil.
func (e *end) lastMade() *request {
	if n := len(e.backlog); n > 0 {
		return e.backlog[n-1]
	}
	if n := len(e.sends); n > e.head {
		return e.sends[n-1]
	}
	return nil
}

// fill gives a request its local bytes.
func (e *end) fill(r *request, inline, scatter bool) bool {
	if r.length == 0 {
		return true
	}
	if r.local = e.out.alloc(r.length, e.w.rng.IntN(64)); r.local == nil {
		return false
	}
	r.local.label, r.local.id = e.name, r.id
	fetches := r.atomic() || r.wr.Opcode == verbs.OpRDMARead
	if inline && !fetches && r.length <= maxInline {
		r.wr.Flags |= verbs.SendInline
	}
	pieces := 1
	if scatter && !r.atomic() {
		pieces = 1 + e.w.rng.IntN(min(ibverbx.MaxSGE, r.length))
	}
	e.cut(r, pieces, !fetches)
	r.local.allow = setOf(softnic.AccessGather)
	switch {
	case fetches:
		r.local.allow = setOf(softnic.AccessScatter)
	case r.wr.Flags&verbs.SendInline != 0:
		r.local.allow = setOf(softnic.AccessInline) // Only PostSend reads it.
	}
	if r.remote != nil {
		r.remote.allow = setOf(softnic.AccessRemoteWrite)
	}
	return true
}

// cut divides the local bytes of a request into pieces, which lie in its range in reverse order. It
// writes the content of a request that sends.
func (e *end) cut(r *request, pieces int, source bool) {
	var sges [ibverbx.MaxSGE]ibverbx.SGE
	done, end := 0, r.length
	for i := range pieces {
		n := r.length - done
		if i < pieces-1 {
			n = 1 + e.w.rng.IntN(n-(pieces-1-i))
		}
		end -= n
		sges[i] = e.host.region.SGE(uint64(r.local.off+end), uint32(n))
		if source {
			copy(r.local.bytes()[end:][:n], e.w.pool.content(r.content+uint32(done), n))
		}
		done += n
	}
	if !source {
		copy(r.local.bytes(), e.w.pool.content((r.content+contentSpace/2)%contentSpace, r.length))
	}
	r.wr.SetSGE(sges[:pieces]...)
}

// wrongRemote is the memory of the host with invalid keys.
func (h *host) wrongRemote() *ibverbx.RemoteRegion {
	m := *h.remote
	m.RKeys = slices.Clone(m.RKeys)
	for i := range m.RKeys {
		m.RKeys[i] ^= 0x5aa5 << 16
	}
	return &m
}
