package core

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"ibverbx/reliable/wire"
)

// rig is two ends of a connection with a model of their owners' QPs, memory and receives. The test supplies
// the network. A violated guarantee is a panic with a violation.
type rig struct {
	now  int64
	ends [2]end
	// send transmits a packet from an end.
	send func(from int, p *packet)
	// plant is a fault of the owner, which the test must detect.
	plant plant
	// grant makes owners immediately grant every demand; demandTo, if not nil, receives it instead.
	grant    bool
	demandTo func(*Action)
	// slow makes owners place chunks later, when placed is called. later, if not nil, is called for each.
	slow  bool
	later func(i int)
}

// plant is a mistake of an owner, or of a worse protocol.
type plant uint8

const (
	plantNone plant = iota
	// plantNoFence leaves the QP of a fenced path in service at the receiver.
	plantNoFence
	// plantSilent acknowledges neither duplicates nor questions.
	plantSilent
	// plantSameNumber recovers a path with its old QP number.
	plantSameNumber
	// plantPlacedEarly reports a chunk as placed when its copy has only begun.
	plantPlacedEarly
	// plantCopyGoesOn refuses a chunk while its copy still writes.
	plantCopyGoesOn
)

type violation string

func violatef(format string, args ...any) { panic(violation(fmt.Sprintf(format, args...))) }

// end is one end.
type end struct {
	conn    *Conn
	qps     []modelQP
	nextQPN uint32 // numbers are never used again

	*modelFlow // flow 0
	flows      []*modelFlow

	inbox   []byte // memory that the peer writes
	settled []bool // bytes of inbox that belong to a completed message
	demand  uint64
	store   []byte // memory that the peer reads, which never changes
	word    uint64 // target of the peer's atomics
	sums    uint64 // has a bit for each value that an atomic of this end has fetched
	events  []Event
	landing []byte // the current chunk's bytes
	copies  []copying
	// refuse is the address check's status for a retransmitted WRITE.
	refuse uint8
	sharing
}

// modelFlow is the user's view of a flow.
type modelFlow struct {
	out      []modelMessage // posted messages, by token
	done     []uint8        // statuses of completions, in order
	got      []delivery
	receives [][]byte
	wanted   uint32        // receives that the peer wants, if shared
	answers  []modelAnswer // by token
	fault    uint8
}

// modelAnswer is a peer's fetch and its response: memory, or the value fetched by an atomic.
type modelAnswer struct {
	fetch wire.Fetch
	bytes []byte
}

type modelQP struct {
	qpn, peer uint32
	epoch     uint16
	dead      bool
}

// modelMessage is a posted message; each WRITE has its own range in the peer's inbox.
type modelMessage struct {
	Message
	data   []byte
	target int
	got    []byte // the response to a fetch
}

type delivery struct {
	header wire.Header
	bytes  []byte
	len    uint32
}

// packet is a packet in flight: on a path if route is RoutePath or above, otherwise as a datagram.
type packet struct {
	route Route
	qpn   uint32 // where to, on a path
	imm   wire.Imm
	hdr   wire.Header
	rec   wire.Record
	data  []byte
	at    int // target of a WRITE in the inbox
}

func newRig(a, b Config, inbox int) (*rig, error) {
	r := &rig{}
	for i, cfg := range []Config{a, b} {
		c, err := New(cfg)
		if err != nil {
			return nil, err
		}
		e := &r.ends[i]
		e.conn = c
		for range c.flows {
			e.flows = append(e.flows, &modelFlow{})
		}
		e.modelFlow = e.flows[0]
		for n := range c.flows {
			if len(c.flows) > 1 {
				if err := c.Open(n, FlowConfig{}); err != nil {
					return nil, err
				}
			}
		}
		for _, f := range e.flows {
			f.answers = make([]modelAnswer, c.Answers())
		}
		e.inbox, e.settled = make([]byte, inbox), make([]bool, inbox)
		e.store = bytesOf(2048, uint64(1000+i))
		for j := range c.paths {
			e.qps = append(e.qps, modelQP{qpn: uint32(j + 1), peer: uint32(j + 1)})
		}
		e.nextQPN = uint32(len(c.paths) + 1)
	}
	return r, nil
}

// post posts a message of end i, on flow 0. The bytes of a WRITE go to target of the peer's
// inbox.
func (r *rig) post(i int, m Message, data []byte, target int) { r.postOn(i, 0, m, data, target) }

func (r *rig) postOn(i, flow int, m Message, data []byte, target int) {
	f := r.ends[i].flows[flow]
	m.Token, m.Length = uint32(len(f.out)), uint32(len(data))
	f.out = append(f.out, modelMessage{Message: m, data: data, target: target, got: make([]byte, m.Answer)})
	r.step(i, Event{Kind: EvPost, Flow: uint16(flow), Message: m})
}

// read posts a READ of n bytes at an offset of the peer's store.
func (r *rig) read(i, flow, at, n int, fence bool) {
	r.fetch(i, flow, wire.Fetch{Kind: wire.FetchRead, Addr: uint64(at)}, n, fence)
}

// add posts an atomic that adds one to the peer's word.
func (r *rig) add(i, flow int, fence bool) {
	r.fetch(i, flow, wire.Fetch{Kind: wire.FetchAdd, CompareAdd: 1}, 8, fence)
}

func (r *rig) fetch(i, flow int, f wire.Fetch, n int, fence bool) {
	b := make([]byte, wire.FetchLen)
	f.Put(b)
	r.postOn(i, flow, Message{Kind: MsgFetch, Answer: uint32(n), Fence: fence}, b, 0)
}

// receive posts a receive of size bytes at end i, on flow 0.
func (r *rig) receive(i, size int) { r.receiveOn(i, 0, size) }

func (r *rig) receiveOn(i, flow, size int) {
	f := r.ends[i].flows[flow]
	if e := &r.ends[i]; e.shared {
		e.pool++
		e.poolSize = size
		e.promise()
		r.step(i, Event{Kind: EvFlush})
		return
	}
	f.receives = append(f.receives, make([]byte, size))
	r.step(i, Event{Kind: EvReceives, Flow: uint16(flow), Count: 1})
}

// step steps end i and executes its actions and their consequences. Like the driver, it skips an EvFlush
// without effect.
func (r *rig) step(i int, ev Event) {
	e := &r.ends[i]
	if ev.Kind == EvFlush && !e.conn.Owes() {
		return
	}
	e.events = append(e.events, ev)
	for len(e.events) > 0 {
		next := e.events[0]
		e.events = e.events[1:]
		for _, a := range e.conn.Step(r.now, &next) {
			r.carry(i, &next, &a)
		}
		for k := range e.conn.paths {
			if p := &e.conn.paths[k]; p.state == PathUp && p.timerAt != never {
				violatef("path %d is up and has a timer, which Deadline does not see", k)
			}
		}
	}
}

func (r *rig) carry(i int, ev *Event, a *Action) {
	e := &r.ends[i]
	switch a.Kind {
	case ActSend:
		r.transmit(i, a)
	case ActControl:
		if r.plant == plantSilent && a.Record.Flags&(wire.AckDup|wire.AckNonce) != 0 && a.Record.Type == wire.Ack {
			return
		}
		p := packet{route: a.Route, rec: a.Record}
		if a.Route >= RoutePath {
			q := &e.qps[a.Route-RoutePath]
			if q.dead || q.peer == 0 {
				return
			}
			p.qpn, p.imm = q.peer, wire.Imm{Kind: wire.KindControl}
		}
		r.send(i, &p)
	case ActPlace:
		if ev.Status == StatusPlacing || (r.plant == plantPlacedEarly && ev.Header.Op != wire.OpFetch) {
			r.placeLater(i, ev, a)
			return
		}
		e.place(ev, a)
	case ActDeliver:
		r.deliver(i, a)
	case ActComplete:
		r.complete(i, a)
	case ActReset:
		if q := &e.qps[a.Path]; q.epoch == a.Epoch && (r.plant != plantNoFence || i == 0) && !e.conn.cfg.Carrier.Shared {
			q.dead = true
		}
	case ActRebuild:
		if r.plant == plantSameNumber {
			e.nextQPN = uint32(a.Path)
		}
		e.nextQPN++
		e.qps[a.Path] = modelQP{qpn: e.nextQPN, epoch: a.Epoch}
		e.events = append(e.events, Event{Kind: EvRebuilt, Path: a.Path, Epoch: a.Epoch, QPN: e.nextQPN})
	case ActConnect:
		if q := &e.qps[a.Path]; q.epoch == a.Epoch && !e.conn.cfg.Carrier.Shared {
			q.peer = a.QPN
		}
	case ActAnswer:
		e.answer(&e.flows[a.Flow].answers[a.Token], a.Len)
	case ActDemand:
		e.demand = a.Bytes
		if r.demandTo != nil {
			r.demandTo(a)
		}
		if r.grant {
			e.events = append(e.events, Event{Kind: EvGrant, Count: int(a.Bytes)})
		}
	case ActWant:
		e.want(i, a)
	case ActWrongKey:
	case ActFault:
		e.flows[a.Flow].fault = a.Status
		e.events = append(e.events, Event{Kind: EvClose, Flow: a.Flow, Status: statusFlush})
	}
}

func (r *rig) transmit(i int, a *Action) {
	e := &r.ends[i]
	q := &e.qps[a.Path]
	if q.dead || q.peer == 0 || q.epoch != a.Epoch {
		violatef("end %d: transmission on path %d in epoch %d, whose QP is %+v", i, a.Path, a.Epoch, *q)
	}
	f := e.flows[a.Flow]
	if a.Header.Op == wire.OpAnswer {
		r.sendPacket(i, a, &packet{data: f.answers[a.Token].bytes[a.Offset : a.Offset+a.Len]})
		return
	}
	if int(a.Token) < len(f.done) {
		violatef("end %d: transmission of message %d, which has completed", i, a.Token)
	}
	m := &f.out[a.Token]
	r.sendPacket(i, a, &packet{data: m.data[a.Offset : a.Offset+a.Len], at: m.target + int(a.Offset)})
}

// sendPacket sends the packet of an ActSend, whose bytes are filled in.
func (r *rig) sendPacket(i int, a *Action, p *packet) {
	e := &r.ends[i]
	p.route, p.qpn, p.imm, p.hdr = RoutePath+Route(a.Path), e.qps[a.Path].peer, a.Imm, a.Header
	if p.hdr.Op == wire.OpWrite {
		p.hdr.Addr = uint64(p.at)
	}
	e.events = append(e.events, Event{Kind: EvSent, Path: a.Path, Epoch: a.Epoch, Count: 1})
	r.send(i, p)
}

// answer executes a peer's fetch.
func (e *end) answer(m *modelAnswer, n uint32) {
	if f := &m.fetch; f.Kind == wire.FetchRead {
		m.bytes = e.store[f.Addr : f.Addr+uint64(n)]
		return
	}
	m.bytes = binary.BigEndian.AppendUint64(nil, e.word)
	e.word += m.fetch.CompareAdd
}

// arrive hands a packet to end i.
func (r *rig) arrive(i int, p *packet) {
	e := &r.ends[i]
	if p.route < RoutePath {
		r.step(i, Event{Kind: EvRecord, Route: p.route, Record: p.rec})
		return
	}
	path := int(p.route - RoutePath)
	q := &e.qps[path]
	if q.dead || q.qpn != p.qpn || q.peer == 0 {
		return // unknown number
	}
	ev := Event{Path: uint16(path), Epoch: q.epoch, Imm: p.imm, Header: p.hdr, Route: p.route}
	switch p.imm.Kind {
	case wire.KindData:
		ev.Kind, ev.Count = EvData, len(p.data)
		e.write(p.at, p.data)
	case wire.KindChunk:
		e.landing = p.data
		ev.Kind, ev.Status = EvChunk, e.check(p.imm.Flow, &p.hdr)
		if r.slow && ev.Status == statusSuccess && r.plant != plantPlacedEarly && p.hdr.Op != wire.OpFetch {
			ev.Status = StatusPlacing
		}
	case wire.KindControl:
		ev.Kind, ev.Record = EvRecord, p.rec
	}
	r.step(i, ev)
}

// check is the owner's check of a chunk before it is placed.
func (e *end) check(flow uint16, h *wire.Header) uint8 {
	if h.Op == wire.OpWrite {
		return e.refuse
	}
	switch h.Op {
	case wire.OpFetch:
		if f := e.decode(); f.Kind == wire.FetchRead && f.Addr+uint64(h.Offset) > uint64(len(e.store)) {
			return statusAccess
		}
		return statusSuccess
	case wire.OpAnswer:
		return statusSuccess
	case wire.OpWrite, wire.OpEager, wire.OpNotify:
	}
	switch receives := e.flows[flow].receives; {
	case int(h.Message) >= len(receives):
		return StatusNoRecv
	case h.Op == wire.OpEager && int(h.Offset+h.Len) > len(receives[h.Message]):
		return statusInvalid
	}
	return statusSuccess
}

// decode decodes the fetch that is being stepped.
func (e *end) decode() wire.Fetch {
	f, err := wire.DecodeFetch(e.landing)
	if err != nil {
		violatef("a fetch of a peer is not one: %v", err)
	}
	return f
}

// statusAccess is REM_ACCESS_ERR.
const statusAccess = 10

// place copies the bytes of a chunk.
func (e *end) place(ev *Event, a *Action) {
	switch h := &ev.Header; h.Op {
	case wire.OpWrite:
		e.write(int(h.Addr), e.landing)
	case wire.OpEager:
		copy(e.flows[ev.Imm.Flow].receives[h.Message][h.Offset:], e.landing)
	case wire.OpAnswer:
		f := e.flows[ev.Imm.Flow]
		if int(a.Token) < len(f.done) {
			violatef("late: a piece of the answer to fetch %d is placed although it has completed", a.Token)
		}
		copy(f.out[a.Token].got[h.Offset:h.Offset+h.Len], e.landing)
	case wire.OpFetch:
		e.flows[ev.Imm.Flow].answers[a.Token] = modelAnswer{fetch: e.decode()}
	case wire.OpNotify:
	}
}

// write is a write to the inbox, by the NIC or by software.
func (e *end) write(at int, data []byte) {
	for i, b := range data {
		if e.settled[at+i] {
			violatef("fence: byte %d is written although its message has completed", at+i)
		}
		e.inbox[at+i] = b
	}
}

// deliver completes a receive: all messages up to it must be in memory, permanently.
func (r *rig) deliver(i int, a *Action) {
	f, peer := r.ends[i].flows[a.Flow], r.ends[1-i].flows[a.Flow]
	if int(a.Header.Message) != len(f.got) {
		violatef("end %d: message %d is delivered, want %d", i, a.Header.Message, len(f.got))
	}
	d := delivery{header: a.Header, len: a.Len}
	if a.Header.Op == wire.OpEager {
		d.bytes = f.receives[a.Header.Message][:a.Len]
	}
	f.got = append(f.got, d)
	n := -1
	for t := range peer.out {
		m := &peer.out[t]
		r.settle(i, m)
		if m.Kind == MsgWriteImm || m.Kind == MsgSend {
			if n++; n == int(a.Header.Message) {
				checkDelivery(m, &d)
				return
			}
		}
	}
	violatef("end %d: message %d was never sent", i, a.Header.Message)
}

func checkDelivery(m *modelMessage, d *delivery) {
	switch {
	case d.len != m.Length || d.header.Imm != m.Imm:
		violatef("a message of %d bytes, immediate %#x, arrives with %d and %#x", m.Length, m.Imm, d.len, d.header.Imm)
	case m.Kind == MsgSend && !bytes.Equal(d.bytes, m.data):
		violatef("the bytes of a SEND are wrong: %x, want %x", d.bytes, m.data)
	}
}

// settle checks that a WRITE to end i is in memory, and makes that memory read-only.
func (r *rig) settle(i int, m *modelMessage) {
	if m.Kind != MsgWrite && m.Kind != MsgWriteImm {
		return
	}
	e := &r.ends[i]
	for j, b := range m.data {
		if e.inbox[m.target+j] != b {
			violatef("byte %d of message %d is %#x, want %#x", j, m.Token, e.inbox[m.target+j], b)
		}
		e.settled[m.target+j] = true
	}
}

func (r *rig) complete(i int, a *Action) {
	f := r.ends[i].flows[a.Flow]
	if int(a.Token) != len(f.done) {
		violatef("end %d: completion of message %d of flow %d, want %d", i, a.Token, a.Flow, len(f.done))
	}
	f.done = append(f.done, a.Status)
	if a.Status == statusSuccess {
		r.settle(1-i, &f.out[a.Token])
		r.checkAnswer(i, &f.out[a.Token])
	}
}

// finished reports whether all messages of end i have completed.
func (r *rig) finished(i int) bool {
	for _, f := range r.ends[i].flows {
		if len(f.done) != len(f.out) {
			return false
		}
	}
	return true
}

// answered reports whether every response from end i has arrived.
func (r *rig) answered(i int) bool {
	for _, f := range r.ends[i].conn.flows {
		if f.answers.done != f.answers.taken {
			return false
		}
	}
	return true
}
