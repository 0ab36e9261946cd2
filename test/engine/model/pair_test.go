package model_test

import (
	"testing"

	"pgregory.net/rapid"

	"ibverbx"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// modelSide is one of two VirtualQPs that send to each other. Its memory:
//
//	0            modelSpace       2*modelSpace          3*modelSpace
//	| own bytes  | what the peer  | buffers of data     | words for
//	|            | writes         | receives            | atomics
type modelSide struct {
	*modelEnd
	peer   *modelSide
	shared bool

	requests []*modelRequest
	notified []*modelRequest
	sends    []*modelRequest // SENDs
	adds     int             // FETCH_AND_ADDs
	word     uint64          // the peer's word after the CMP_AND_SWPs
	statuses map[int]verbs.Status
	reported int // requests up to the last reported one

	posted    [2]int // receives: notifications and data
	ended     [2]int
	delivered [2]int // receives completed successfully
	checked   int    // peer requests found in memory

	injected bool         // a failure was injected into a local request or receive
	status   verbs.Status // of the injected failure
	culprit  int          // the request lost with it, -1 if none or unknown
	cutOff   bool         // the peer did not respond
}

const (
	sideTarget = modelSpace
	sideInbox  = 2 * modelSpace
	sideWords  = 3 * modelSpace
	sideMemory = sideWords + 16
)

// newModelPair returns two connected sides with equal lane counts and otherwise independent settings.
func newModelPair(t *rapid.T, scheme ibverbx.Scheme) [2]*modelSide {
	nics := [2][]*nullnic.NIC{modelNICs("a", drawInt(t, "rails", 1, 3)), modelNICs("b", drawInt(t, "rails", 1, 3))}
	nullnic.Join(append(append([]*nullnic.NIC{}, nics[0]...), nics[1]...)...)
	var sides [2]*modelSide
	lanes := drawInt(t, "lanes", 1, 6)
	for i := range sides {
		cfg := drawModelConfig(t, scheme, lanes)
		shared := rapid.SampledFrom([]int{0, 0, 16}).Draw(t, "shared receives")
		sides[i] = &modelSide{
			modelEnd: newModelEnd(t, nics[i], cfg, shared, sideMemory), shared: shared > 0,
			statuses: make(map[int]verbs.Status), culprit: -1,
		}
	}
	sides[0].peer, sides[1].peer = sides[1], sides[0]
	cards := [2]*ibverbx.Card{sides[0].card(), sides[1].card()}
	for i, s := range sides {
		s.connect(cards[1-i])
		for _, l := range s.lanes {
			if oneIn(t, "repeats its READs", 2) {
				l.RepeatReads()
			}
		}
	}
	return sides
}

// post posts a chain of requests.
func (s *modelSide) post() {
	var chain []*modelRequest
	var wrs []ibverbx.SendWR
	remote := s.peer.region.Remote()
	count, news := s.drawChain(modelRequests-len(s.requests)), 0
	for i := range count {
		r := s.drawRequest(len(s.requests)+i, 0, remote, sideTarget)
		if r.notified {
			// RNR does not throttle the peer of an end with shared receives.
			if s.peer.shared && len(s.notified)+news-s.peer.posted[notes] >= s.peer.cfg.RecvDepth {
				break
			}
			news++
		}
		s.setTarget(r)
		chain, wrs = append(chain, r), append(wrs, r.wr)
	}
	n, err := s.qp.PostSend(wrs)
	checkRefusal(s.t, n, len(wrs), len(wrs), s.cfg.SendDepth, len(s.requests)-s.reported, err)
	for _, r := range chain[:n] {
		s.recordAccepted(r)
	}
}

// setTarget gives a READ its source, and an atomic its word and operands.
func (s *modelSide) setTarget(r *modelRequest) {
	switch r.wr.Opcode {
	case verbs.OpRDMARead:
		r.ordinal = r.index // the request whose bytes it reads
		if r.wr.Flags&verbs.SendFence != 0 {
			for _, w := range s.requests {
				if w.wr.Opcode <= verbs.OpRDMAWriteWithImm && w.length >= r.length {
					r.ordinal = w.index
				}
			}
		}
		r.wr.RemoteOffset = uint64(sideTarget + r.ordinal*modelSlot)
		for off := range r.length {
			if r.ordinal == r.index {
				s.peer.memory.Bytes()[sideTarget+r.index*modelSlot+off] = modelByte(r.index, off)
			}
		}
		s.localBytes(r, func(_ int, b *byte) { *b = 0 })
	case verbs.OpAtomicFetchAndAdd:
		r.wr.RemoteOffset, r.wr.CompareAdd = sideWords, 1
	case verbs.OpAtomicCmpAndSwp:
		r.wr.RemoteOffset, r.wr.CompareAdd = sideWords+8, uint64(drawOf(s.t, "compare", 3))
		r.wr.Swap = (r.wr.CompareAdd + 1) % 3
	default:
	}
}

// recordAccepted records a request accepted by the VirtualQP.
func (s *modelSide) recordAccepted(r *modelRequest) {
	s.requests = append(s.requests, r)
	switch r.wr.Opcode {
	case verbs.OpRDMAWriteWithImm:
		r.ordinal = len(s.notified)
		s.notified = append(s.notified, r)
	case verbs.OpSend, verbs.OpSendWithImm:
		r.ordinal = len(s.sends)
		s.sends = append(s.sends, r)
	case verbs.OpAtomicFetchAndAdd:
		r.ordinal = s.adds
		s.adds++
	case verbs.OpAtomicCmpAndSwp:
		r.ordinal = int(s.word)
		if s.word == r.wr.CompareAdd {
			s.word = r.wr.Swap
		}
	default:
	}
	if r.wr.Flags&verbs.SendInline != 0 {
		s.scribble(r)
	}
}

// receive posts receives of one kind.
func (s *modelSide) receive(kind, count int) {
	wrs := make([]ibverbx.RecvWR, 0, count)
	for k := s.posted[kind]; len(wrs) < count && k < modelRequests; k++ {
		wr := ibverbx.RecvWR{WRID: firstNote + uint64(k)}
		if kind == inbox {
			wr.WRID = firstInbox + uint64(k)
			at := uint64(sideInbox + k*modelSlot)
			wr.SetSGE(s.region.SGE(at, 300), s.region.SGE(at+300, modelSlot-300))
		}
		wrs = append(wrs, wr)
	}
	n, err := s.qp.PostRecv(wrs)
	if n < len(wrs) && err == nil {
		s.t.Fatalf("PostRecv = %d of %d without an error", n, len(wrs))
	}
	s.posted[kind] += n
}

// firstNote is the ID of the first notification receive.
const firstNote = 1 << 31

// carry delivers up to n requests of a lane to the peer, and reports whether it delivered any. The lane fails
// if the peer does not respond.
func (s *modelSide) carry(lane, n int) bool {
	l, moved := s.lanes[lane], false
	for ; n > 0; n-- {
		status, done := l.Carry()
		if !done {
			break
		}
		moved = true
		if status == verbs.StatusSuccess {
			continue
		}
		if status != verbs.StatusRetryExcErr {
			s.t.Fatalf("a %s on lane %d cannot be carried: %s", l.Posted()[l.Carried()].Opcode, lane, status)
		}
		s.cutOff = true
		l.Complete(l.Carried())
		l.Fail(status)
		break
	}
	return moved
}

// fail injects a failure into the oldest request or the oldest receive of a lane, once per run.
func (s *modelSide) fail() {
	lane := s.drawLane()
	l := s.lanes[lane]
	if s.injected || s.peer.injected {
		return
	}
	s.status = rapid.SampledFrom([]verbs.Status{verbs.StatusRemAccessErr, verbs.StatusRetryExcErr, verbs.StatusLocProtErr}).Draw(s.t, "status")
	switch {
	case oneIn(s.t, "receive", 4) && len(l.Waiting()) > 0:
		s.injected = true
		l.FailRecv(s.status)
	case len(l.Posted()) > 0:
		s.injected = true
		if l.Carried() == 0 { // else only its acknowledgement is lost
			s.culprit = s.lostRequest(lane)
		}
		l.Fail(s.status)
	}
}

// lostRequest returns the request whose outgoing bytes are in the oldest physical request of a lane, or -1.
func (s *modelSide) lostRequest(lane int) int {
	wr := &s.lanes[lane].Posted()[0]
	off := wr.RemoteAddr - s.peer.region.Remote().Addr - sideTarget
	if wr.Opcode > verbs.OpRDMAWriteWithImm || wr.Length() == 0 || off >= modelSpace {
		return -1
	}
	return int(off / modelSlot)
}

// drain carries, completes, receives and polls on both sides until both are idle.
func drainPair(t *rapid.T, sides [2]*modelSide, late bool) {
	idle := 0
	for range 20_000 {
		busy := false
		for _, s := range sides {
			for lane, l := range s.lanes {
				l.RefuseAt(-1, nil)
				busy = late && l.CarryLate() || busy
				busy = s.carry(lane, 1<<20) || l.Carried() > 0 || busy
				l.Complete(l.Carried())
			}
			s.receive(notes, min(max(len(s.peer.notified)+2-s.posted[notes], 0), 8))
			s.receive(inbox, min(max(len(s.peer.sends)+2-s.posted[inbox], 0), 8))
			busy = s.poll(s.pollAll(8)) > 0 || busy
		}
		if busy {
			idle = 0
		} else if idle++; idle == 4 {
			return
		}
	}
	t.Fatal("the two sides do not come to rest")
}

// TestModelPair runs two VirtualQPs that exchange requests of every kind. The wire carries one physical
// request at a time, in any order that RC allows, with refusals and at most one failure. It checks the
// contract:
//   - Each request completes exactly once, in order.
//   - A notification or message arrives after its own bytes and all earlier bytes.
//   - Buffers are not touched after their completion.
//   - A lost request is never notified.
//   - Data reported as sent by one side is in the other side's memory.
//   - Both sides make progress.
func TestModelPair(t *testing.T) {
	forSchemes(t, func(rt *rapid.T, scheme ibverbx.Scheme) {
		sides := newModelPair(rt, scheme)
		trouble := oneIn(rt, "with a failure", 3) && sides[0].cfg.Control == nil
		side := func() *modelSide { return sides[drawOf(rt, "side", 2)] }
		post := func() { side().post() }
		carry := func() {
			s := side()
			s.carry(s.drawLane(), drawInt(rt, "count", 1, 6))
		}
		poll := func() {
			s := side()
			s.poll(s.pollSome(drawInt(rt, "room", 0, 6)))
		}
		modelSteps(rt, map[string]func(){
			"carry": carry, "carry again": carry, "carry once more": carry,
			"complete": func() {
				s := side()
				if l := s.lanes[s.drawLane()]; l.Carried() > 0 {
					l.Complete(drawInt(rt, "count", 1, l.Carried()))
				}
			},
			"fail": func() {
				if trouble && oneIn(rt, "now", 4) {
					side().fail()
				}
			},
			"late": func() { s := side(); s.lanes[s.drawLane()].CarryLate() },
			"poll": poll, "poll again": poll,
			"post": post, "post again": post,
			"receive": func() { side().receive(drawOf(rt, "kind", 2), drawInt(rt, "count", 1, 5)) },
			"refuse":  func() { side().refuse() },
		})
		drainPair(rt, sides, oneIn(rt, "late arrivals", 2))
		for _, s := range sides {
			s.verify()
		}
	})
}
