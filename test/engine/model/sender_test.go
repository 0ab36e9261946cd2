package model_test

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"ibverbx"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// modelSender is a sending VirtualQP, with the state of its NICs and its receiver.
type modelSender struct {
	*modelEnd
	decoder  *modelDecoder
	requests []*sentRequest
	notified []*sentRequest
	messages []*sentRequest // SENDs and atomics
	done     []ibverbx.WC
	reported int // requests up to the last reported one

	logs     [][]physicalLog // requests accepted by each lane
	executed []int           // of each log
	complete []int           // of each log

	injected *physicalLog // the request with the injected failure
	status   verbs.Status // of the injected failure
	broken   bool         // a NIC was set to refuse permanently
	lane     int          // which
	taken    int          // messages accepted by the message lane
}

// sentRequest is a request and its progress.
type sentRequest struct {
	*modelRequest
	covered                      []bool // bytes posted to a lane
	executed, completed          int    // bytes
	taken                        bool   // a message: by its lane
	messageExecuted, messageDone bool
}

// physicalLog is a physical request accepted by a lane.
type physicalLog struct {
	request *sentRequest // nil if it carries no data
	bytes   int
	element *modelElement
}

func newModelSender(t *rapid.T, scheme ibverbx.Scheme) *modelSender {
	nics := modelNICs("null", drawInt(t, "rails", 1, 3))
	nullnic.Join(nics...) // gives each NIC distinct keys
	cfg := drawModelConfig(t, scheme, drawInt(t, "lanes", 1, 9))
	s := &modelSender{modelEnd: newModelEnd(t, nics, cfg, 0, modelSpace), decoder: newModelDecoder(t, scheme)}
	s.connect(s.card())
	s.logs = make([][]physicalLog, len(s.lanes))
	s.executed, s.complete = make([]int, len(s.lanes)), make([]int, len(s.lanes))
	return s
}

// post posts a chain of requests, occasionally with an illegal one.
func (s *modelSender) post() {
	if len(s.requests) == modelRequests {
		return
	}
	var chain []*sentRequest
	var wrs []ibverbx.SendWR
	count := s.drawChain(modelRequests - len(s.requests))
	bad := count
	if oneIn(s.t, "with a bad request", 12) {
		bad = drawInt(s.t, "bad request", 0, count)
	}
	for i := range count {
		r := &sentRequest{modelRequest: s.drawRequest(len(s.requests)+i, 0, s.region.Remote(), 0)}
		r.covered = make([]bool, r.length)
		chain, wrs = append(chain, r), append(wrs, r.wr)
		if i == bad {
			wrs[i] = spoilRequest(s.t, r.wr)
		}
	}
	n, err := s.qp.PostSend(wrs)
	checkRefusal(s.t, n, count, bad, s.cfg.SendDepth, len(s.requests)-s.reported, err)
	for _, r := range chain[:n] {
		s.requests = append(s.requests, r)
		if r.notified {
			r.ordinal = len(s.notified)
			s.notified = append(s.notified, r)
		}
		if r.message {
			s.messages = append(s.messages, r)
		}
		if r.wr.Flags&verbs.SendInline != 0 {
			s.scribble(r.modelRequest)
		}
	}
	s.checkPosted()
}

// checkPosted checks the requests that the lanes accepted since the last call.
func (s *modelSender) checkPosted() {
	for i, l := range s.lanes {
		for k := len(s.logs[i]); k < len(l.Taken); k++ {
			p := s.classify(i, &l.Taken[k], l.Inline(k))
			s.logs[i] = append(s.logs[i], p)
			s.checkStart(i, &p)
		}
		if l.Overruns > 0 && s.qp.Err() == nil {
			s.t.Fatalf("lane %d was given more than its depth of %d", i, s.cfg.LaneDepth)
		}
	}
}

// classify determines the role of a physical request and checks it.
func (s *modelSender) classify(lane int, wr *verbs.SendWR, inline []byte) physicalLog {
	p := physicalLog{bytes: int(wr.Length()), element: s.decoder.decode(lane, s.roles[lane], wr, inline)}
	if s.roles[lane] == "message" {
		return s.classifyMessage(wr, inline)
	}
	if p.element != nil && (p.bytes == 0 || wr.Opcode == verbs.OpSend) {
		p.bytes = 0
		return p
	}
	if wr.Opcode == verbs.OpSend && p.bytes == 0 {
		return p // a marker
	}
	off := wr.RemoteAddr - s.region.Remote().Addr
	if off/modelSlot >= uint64(len(s.requests)) {
		s.t.Fatalf("lane %d took a %s to %d, which belongs to no request", lane, wr.Opcode, off)
	}
	p.request = s.requests[off/modelSlot]
	want := p.request.wr.Opcode
	if want == verbs.OpRDMAWriteWithImm && p.element == nil {
		want = verbs.OpRDMAWrite
	}
	if wr.Opcode != want || s.roles[lane] != "data" || p.request.message {
		s.t.Fatalf("a %s lane took a %s of request %d, want %s on a data lane", s.roles[lane], wr.Opcode, p.request.index, want)
	}
	if f := s.cfg.FragmentSize; f > 0 && p.bytes > int(f) {
		s.t.Fatalf("a fragment of %d bytes, Config.FragmentSize is %d", p.bytes, f)
	}
	s.checkBytes(p.request, int(off%modelSlot), wr, inline)
	s.checkKeys(lane, wr, inline != nil)
	return p
}

// classifyMessage matches a request on the message lane with the messages, in order.
func (s *modelSender) classifyMessage(wr *verbs.SendWR, inline []byte) physicalLog {
	var r *sentRequest
	if s.taken < len(s.messages) {
		r = s.messages[s.taken]
	}
	if r == nil || wr.Opcode != r.wr.Opcode || int(wr.Length()) != r.length {
		if wr.Opcode == verbs.OpSend && wr.Length() == 0 {
			return physicalLog{} // a marker
		}
		s.t.Fatalf("the message lane took a %s of %d bytes out of turn", wr.Opcode, wr.Length())
	}
	s.taken++
	r.taken = true
	s.checkBytes(r, 0, wr, inline)
	if wr.Opcode == verbs.OpSendWithImm && wr.Imm != r.wr.Imm {
		s.t.Fatalf("SEND of request %d has the immediate %d, want %d", r.index, wr.Imm, r.wr.Imm)
	}
	if wr.Opcode >= verbs.OpAtomicCmpAndSwp && wr.RemoteAddr != r.wr.Remote.Addr+r.wr.RemoteOffset {
		s.t.Fatalf("atomic of request %d goes to %#x, want %#x", r.index, wr.RemoteAddr, r.wr.Remote.Addr+r.wr.RemoteOffset)
	}
	return physicalLog{request: r, bytes: r.length}
}

// checkBytes checks that a physical request carries the bytes of a request from off on, from the right
// addresses, and that no earlier one carried them.
func (s *modelSender) checkBytes(r *sentRequest, off int, wr *verbs.SendWR, inline []byte) {
	at := off
	place := func(local uint64, inlined byte) {
		if at >= r.length || r.covered[at] {
			s.t.Fatalf("byte %d of request %d (%d bytes) was handed over twice, or is not there", at, r.index, r.length)
		}
		r.covered[at] = true
		if inline != nil && inlined != modelByte(r.index, at) {
			s.t.Fatalf("inline byte %d of request %d is %d, want %d", at, r.index, inlined, modelByte(r.index, at))
		}
		if want := s.localPlace(r, at); inline == nil && local != want {
			s.t.Fatalf("byte %d of request %d comes from %d, want %d", at, r.index, local, want)
		}
		at++
	}
	for _, b := range inline {
		place(0, b)
	}
	if inline != nil {
		return
	}
	for _, e := range wr.SGE[:wr.NumSGE] {
		for i := range uint64(e.Length) {
			place(e.Addr+i-s.region.Remote().Addr, 0)
		}
	}
}

// localPlace returns the address of byte off of a request in the region.
func (s *modelSender) localPlace(r *sentRequest, off int) uint64 {
	left := uint64(off)
	for _, e := range r.wr.SGE[:r.wr.NumSGE] {
		if left < uint64(e.Length) {
			return e.Offset + left
		}
		left -= uint64(e.Length)
	}
	return 1 << 62
}

// checkKeys checks that a request uses the keys of its lane's rail.
func (s *modelSender) checkKeys(lane int, wr *verbs.SendWR, inline bool) {
	rail := s.qp.Stats().Lanes[lane].Rail
	want := s.region.Remote().RKeys[rail]
	if wr.RKey != want {
		s.t.Fatalf("a request on lane %d has the key %#x, want %#x of rail %d", lane, wr.RKey, want, rail)
	}
	for _, e := range wr.SGE[:wr.NumSGE] {
		if !inline && e.LKey != want&^(1<<31) { // nullnic's key format
			s.t.Fatalf("a request on lane %d has the local key %#x, want %#x of rail %d", lane, e.LKey, want&^(1<<31), rail)
		}
	}
}

// owner returns the request that a physical request belongs to, or nil if unknown.
func (s *modelSender) owner(p *physicalLog) *sentRequest {
	if p.request != nil {
		return p.request
	}
	if p.element == nil {
		return nil
	}
	m := s.decoder.message(p.element)
	if m < 0 {
		return nil
	}
	if m >= len(s.notified) {
		s.t.Fatalf("a lane took news of message %d, only %d were posted", m, len(s.notified))
	}
	return s.notified[m]
}

// checkStart checks what must have completed before a physical request starts: everything, if its request is
// fenced; all data, if it is a message. DQPLB's numbers must stay in the window.
func (s *modelSender) checkStart(lane int, p *physicalLog) {
	r := s.owner(p)
	if r == nil {
		return
	}
	fenced := r.wr.Flags&verbs.SendFence != 0
	for _, before := range s.requests[:r.index] {
		if (fenced || r.message && !before.message) && !s.allCompleted(before) {
			s.t.Fatalf("request %d (%s, fence %v) began on lane %d while request %d (%s) was outstanding",
				r.index, r.wr.Opcode, fenced, lane, before.index, before.wr.Opcode)
		}
	}
	if p.element != nil && s.cfg.Scheme == ibverbx.DQPLB {
		oldest := uint32(0)
		for s.decoder.allArrived(oldest, func(e *modelElement) bool { return e.completed }) {
			oldest++
		}
		if window := s.card().Window; p.element.number-oldest >= window {
			s.t.Fatalf("number %d was sent while %d was not acknowledged, the window is %d", p.element.number, oldest, window)
		}
	}
}

// allCompleted reports whether the NICs have completed a whole request.
func (s *modelSender) allCompleted(r *sentRequest) bool {
	switch {
	case r.message:
		return r.messageDone
	case r.completed < r.length:
		return false
	}
	return !r.notified || s.decoder.completed(r.ordinal)
}

// mayHaveEnded is ended for a request reported as completed. After a failure, the DQPLB numbers behind a lost
// one cannot be assigned to requests; completed bytes then suffice.
func (s *modelSender) mayHaveEnded(r *sentRequest) bool {
	if r.notified && r.completed == r.length && s.qp.Err() != nil && !s.decoder.canIdentify(r.ordinal) {
		return true
	}
	return s.allCompleted(r)
}

// alive returns the number of requests in a lane's log that were not flushed.
func (s *modelSender) alive(lane int) int { return s.complete[lane] + len(s.lanes[lane].Posted()) }

// execute lets the peer execute up to n more requests of a lane.
func (s *modelSender) execute(lane, n int) {
	for ; n > 0 && s.executed[lane] < s.alive(lane); n-- {
		p := &s.logs[lane][s.executed[lane]]
		s.executed[lane]++
		if p.element != nil {
			p.element.executed = true
		}
		if p.request == nil {
			continue
		}
		p.request.executed += p.bytes
		if p.request.message {
			p.request.messageExecuted = true
			s.checkArrival(p.request)
		}
	}
	s.decoder.advance(s.checkMetadata)
}

// checkMetadata checks the metadata the receiver gets with a message.
func (s *modelSender) checkMetadata(m int, imm, length uint32) {
	if m >= len(s.notified) {
		s.t.Fatalf("the receiver got message %d, only %d were posted", m, len(s.notified))
	}
	r := s.notified[m]
	carries := schemeCarries(s.cfg.Scheme)
	if carries&ibverbx.WCHasImm != 0 && imm != r.wr.Imm {
		s.t.Fatalf("message %d has the immediate %d, want %d of request %d", m, imm, r.wr.Imm, r.index)
	}
	if carries&ibverbx.WCHasLength != 0 && int(length) != r.length {
		s.t.Fatalf("message %d has %d bytes, want %d of request %d", m, length, r.length, r.index)
	}
	s.checkArrival(r)
}

// checkArrival checks that the bytes of r and of every earlier request are in the receiver's memory.
func (s *modelSender) checkArrival(r *sentRequest) {
	for _, before := range s.requests[:r.index+1] {
		there := before.executed == before.length
		if before.message {
			there = before.messageExecuted
		}
		if before.wr.Opcode != verbs.OpRDMARead && !there {
			s.t.Fatalf("the receiver learns of request %d when request %d (%s) has %d of %d bytes at its side",
				r.index, before.index, before.wr.Opcode, before.executed, before.length)
		}
	}
}

// end completes the oldest n requests of a lane.
func (s *modelSender) end(lane, n int) {
	s.execute(lane, s.complete[lane]+n-s.executed[lane])
	for range n {
		p := &s.logs[lane][s.complete[lane]]
		s.complete[lane]++
		if p.element != nil {
			p.element.completed = true
		}
		if p.request != nil {
			p.request.completed += p.bytes
			p.request.messageDone = p.request.message
		}
	}
	s.lanes[lane].Complete(n)
}

// completeUnsignaled completes everything on lanes whose NIC accepted only unsignaled requests and refused the signaled
// ones, so that no completion is generated.
func (s *modelSender) completeUnsignaled() {
	for lane, l := range s.lanes {
		if n := len(l.Posted()); n > 0 && l.Posted()[n-1].Flags&verbs.SendSignaled == 0 {
			s.end(lane, n)
		}
	}
}

// fail fails the oldest request of a lane, once.
func (s *modelSender) fail() {
	if oneIn(s.t, "in silence", 2) {
		s.completeUnsignaled()
	}
	lane := s.drawLane()
	if s.injected != nil || len(s.lanes[lane].Posted()) == 0 {
		return
	}
	s.injected = &s.logs[lane][s.complete[lane]]
	s.status = rapid.SampledFrom([]verbs.Status{verbs.StatusRemAccessErr, verbs.StatusRetryExcErr, verbs.StatusRNRRetryExcErr}).Draw(s.t, "status")
	s.lanes[lane].Fail(s.status)
}

// refuseForever makes a lane refuse permanently.
func (s *modelSender) refuseForever() {
	if !s.broken && s.injected == nil {
		s.broken, s.lane = true, s.drawLane()
		s.lanes[s.lane].RefuseAt(drawInt(s.t, "position", 0, 3), errors.New("the device says no"))
		s.lanes[s.lane].RefuseMore(1 << 30)
	}
}

// poll checks completions.
func (s *modelSender) poll(wcs []ibverbx.WC) int {
	for i := range wcs {
		wc := &wcs[i]
		if wc.WRID >= uint64(len(s.requests)) || wc.QP != s.qp {
			s.t.Fatalf("completion %s belongs to no request", describeWC(wc))
		}
		r := s.requests[wc.WRID]
		if wc.Status == verbs.StatusSuccess && !s.mayHaveEnded(r) {
			s.t.Fatalf("request %d (%s) was reported with %d of %d bytes complete", r.index, r.wr.Opcode, r.completed, r.length)
		}
		s.reported = r.index + 1
	}
	s.done = append(s.done, wcs...)
	if s.injected != nil && s.seen() && s.qp.Err() == nil {
		s.t.Fatal("a request failed and was polled, and Err = nil")
	}
	s.checkPosted()
	return len(wcs)
}

// drain completes everything and polls until the sender is idle.
func (s *modelSender) drain() {
	idle := 0
	for range 20_000 {
		busy := false
		for i, l := range s.lanes {
			if !s.broken || i != s.lane {
				l.RefuseAt(-1, nil)
			}
			if n := len(l.Posted()); n > 0 {
				busy = true
				s.end(i, n)
			}
		}
		if n := s.poll(s.pollAll(8)); n > 0 || busy {
			idle = 0
		} else if idle++; idle == 10 {
			return
		}
	}
	s.t.Fatal("the sender does not come to rest")
}

// TestModelSender runs random posts, completions, refusals and at most one failure. It checks these
// properties:
//   - Each signaled or failed request completes exactly once, in posting order.
//   - Every byte is posted to a lane exactly once, from the right address.
//   - Requests complete only after all their fragments have, and fences hold.
//   - The receiver is notified of a request only after all earlier data has arrived.
//   - After an error all later requests are flushed and never notified.
//   - The sender makes progress.
func TestModelSender(t *testing.T) {
	forSchemes(t, func(rt *rapid.T, scheme ibverbx.Scheme) {
		s := newModelSender(rt, scheme)
		trouble := drawOf(rt, "trouble", 3)
		if s.cfg.Control != nil {
			trouble = 0 // see drawModelConfig
		}
		complete := func() {
			if lane := s.drawLane(); len(s.lanes[lane].Posted()) > 0 {
				s.end(lane, drawInt(rt, "count", 1, len(s.lanes[lane].Posted())))
			}
		}
		poll := func() { s.poll(s.pollSome(drawInt(rt, "room", 0, 6))) }
		modelSteps(rt, map[string]func(){
			"complete": complete, "complete again": complete,
			"execute": func() { s.execute(s.drawLane(), drawInt(rt, "count", 1, 4)) },
			"poll":    poll, "poll again": poll,
			"post": s.post, "post again": s.post,
			"refuse": s.refuse,
			"trouble": func() {
				switch {
				case trouble == 1 && oneIn(rt, "now", 2):
					s.fail()
				case trouble == 2 && oneIn(rt, "now", 2):
					s.refuseForever()
				}
			},
		})
		s.drain()
		s.verify()
	})
}
