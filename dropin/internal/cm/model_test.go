package cm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"pgregory.net/rapid"
)

// world is up to three parties on one network, with the knowledge of their programs.
type world struct {
	t       *rapid.T
	net     *network
	clock   *clock
	parties []*party
	nextUID uint64
	draws   uint64
	pairs   []*pair
	// polled is set once the programs have polled all completions.
	polled bool
}

// party is a process.
type party struct {
	name  string
	m     *Manager
	files []*modelFile
	ids   []*modelID
	// service is the address of a party's listener for connections, datagrams of its listener for
	// datagrams.
	service, datagrams netip.AddrPort
	killed             bool
}

type modelFile struct {
	*File
	tokens count
	closed bool
}

// modelID is a program's view of one of its ids.
type modelID struct {
	of        *party
	file      *modelFile
	number    uint32
	uid       uint64
	delivered uint32
	listening bool
	// accepted is set in an active id after its confirmation, and in a passive one after its acceptance.
	accepted, requested, destroyed bool
	space                          uint16
	// left is set once the program has disconnected an accepted id, or rejected a request.
	left, rejected bool
	seen           []EventType
	pair           *pair
}

// pair holds the two ids of a request. The passive one is nil until its program has consumed the
// request.
type pair struct{ active, passive *modelID }

var ends = []EventType{Rejected, Unreachable, Disconnected}

// count counts consumed events of some types. For datagrams, Established also counts as an end,
// because it completes the request.
func (i *modelID) count(types ...EventType) (n int) {
	for _, e := range i.seen {
		if slices.Contains(types, e) || (e == Established && i.space == SpaceUDP && slices.Contains(types, Disconnected)) {
			n++
		}
	}
	return n
}

// gone reports whether the program no longer has the id.
func (i *modelID) gone() bool { return i.destroyed || i.of.killed || i.file.closed }

func (w *world) uid() uint64 { w.nextUID++; return w.nextUID }

// pick draws a number below n. rapid prefers small numbers, which would make some actions very
// rare, so the draw is hashed with its sequence number.
func (w *world) pick(label string, n int) int {
	w.draws++
	x := rapid.Uint64().Draw(w.t, label)*0x9e3779b97f4a7c15 + w.draws*0xbf58476d1ce4e5b9
	x = (x ^ x>>31) * 0x94d049bb133111eb
	return int((x ^ x>>29) % uint64(n))
}

// id draws a live id of a party.
func (w *world) id(p *party) *modelID {
	var live []*modelID
	for _, i := range p.ids {
		if !i.gone() {
			live = append(live, i)
		}
	}
	if len(live) == 0 {
		return nil
	}
	return live[w.pick("id", len(live))]
}

func (w *world) file(p *party) *modelFile {
	live := slices.DeleteFunc(slices.Clone(p.files), func(f *modelFile) bool { return f.closed })
	if len(live) == 0 {
		live = append(live, w.open(p))
	}
	return live[w.pick("file", len(live))]
}

func (w *world) open(p *party) *modelFile {
	f := &modelFile{}
	f.File = p.m.Open(&f.tokens)
	p.files = append(p.files, f)
	return f
}

func (w *world) create(p *party, space uint16) *modelID {
	f := w.file(p)
	i := &modelID{of: p, file: f, uid: w.uid(), space: space}
	var err error
	if i.number, err = f.Create(i.uid, space); err != nil {
		w.t.Fatal(err)
	}
	p.ids = append(p.ids, i)
	return i
}

// connect resolves and connects an id as far as its state allows, with its uid as private data.
func (w *world) connect(i *modelID) {
	p := w.parties[w.pick("to", len(w.parties))]
	to := p.service
	if (i.space == SpaceUDP) != (w.pick("wrong space", 10) == 0) {
		to = p.datagrams
	}
	_ = i.file.Resolve(i.number, netip.AddrPort{}, to) // an error means a later state
	_ = i.file.ResolveRoute(i.number)
	if i.file.Connect(i.number, &Param{QPN: 1}, binary.BigEndian.AppendUint64(nil, i.uid)) == nil {
		i.requested = true
		i.pair = &pair{active: i}
		w.pairs = append(w.pairs, i.pair)
	}
}

func (w *world) listen(i *modelID) {
	to := i.of.service
	if i.space == SpaceUDP {
		to = i.of.datagrams
	}
	_ = i.file.Bind(i.number, to)
	if i.file.Listen(i.number, int32(w.pick("backlog", 3))) == nil {
		i.listening = true
	}
}

// event consumes an event of a file, if any, and checks that it is valid for its id.
func (w *world) event(p *party, f *modelFile) bool {
	e, err := f.Event()
	if errors.Is(err, syscall.EAGAIN) {
		return false
	}
	f.tokens.Drop(1)
	n := slices.IndexFunc(p.ids, func(i *modelID) bool { return i.uid == e.UID })
	if n < 0 || e.UID == 0 || p.ids[n].gone() || p.ids[n].file != f {
		w.t.Fatalf("%s has an event of an id that it has not, or no more: %+v", p.name, e.Type)
	}
	i := p.ids[n]
	i.delivered++
	i.seen = append(i.seen, e.Type)
	switch e.Type {
	case ConnectRequest:
		if !i.listening {
			w.t.Fatalf("a request for an id that does not listen")
		}
		r := &modelID{of: p, file: f, number: e.ID, space: i.space}
		tag := binary.BigEndian.Uint64(e.Param.Private.Data[:])
		k := slices.IndexFunc(w.pairs, func(q *pair) bool { return q.active.uid == tag })
		if k < 0 || w.pairs[k].passive != nil {
			w.t.Fatalf("a request that nobody made, or a second one")
		}
		r.pair = w.pairs[k]
		r.pair.passive = r
		p.ids = append(p.ids, r)
		if w.pick("accept", 4) > 0 {
			w.answer(r)
		}
	case ConnectResponse:
		w.check(i.requested && i.space == SpaceTCP && len(i.seen) == 3, "a response out of order: %v", i.seen)
		if w.pick("confirm", 4) > 0 {
			w.answer(i)
		}
	case Established:
		if i.space == SpaceUDP {
			w.check(i.requested && len(i.seen) == 3 && e.AH != nil, "Established out of order: %v", i.seen)
			break
		}
		w.check(i.accepted && i.count(Established) == 1, "Established out of order: %v", i.seen)
	case TimewaitExit:
		w.check(i.count(Disconnected) == 1 && i.count(TimewaitExit) == 1, "TimewaitExit out of order: %v", i.seen)
	default:
	}
	w.check(i.count(ends...) <= 1, "more than one end: %v", i.seen)
	return true
}

func (w *world) check(ok bool, format string, args ...any) {
	if !ok {
		w.t.Fatal(fmt.Sprintf(format, args...))
	}
}

// answer accepts a request, or confirms a response.
func (w *world) answer(i *modelID) {
	if i.uid == 0 {
		uid := w.uid()
		if i.file.Accept(i.number, uid, &Param{QPN: 2}, nil) == nil {
			i.uid, i.accepted = uid, true
		}
		return
	}
	if i.file.Confirm(i.number) == nil {
		w.check(i.count(ConnectResponse) == 1 || w.waiting(i, ConnectResponse), "a confirmation without a response")
		i.accepted = true
	}
}

// waiting reports whether an event waits for the program.
func (w *world) waiting(i *modelID, typ EventType) bool {
	return slices.ContainsFunc(i.file.queue, func(p pending) bool { return p.UID == i.uid && p.Type == typ })
}

func (w *world) destroy(i *modelID) {
	n, err := i.file.Destroy(i.number)
	w.check(err == nil && n == i.delivered, "Destroy = %d, %v, want %d delivered events", n, err, i.delivered)
	i.destroyed = true
}

func (w *world) migrate(i *modelID) {
	to := w.file(i.of)
	n, err := to.Migrate(i.file.File, i.number)
	w.check(err == nil && n == i.delivered, "Migrate = %d, %v, want %d delivered events", n, err, i.delivered)
	i.file = to
}

// kill terminates a process: its queued messages arrive, and its connections are lost.
func (w *world) kill(p *party) {
	p.killed = true
	for _, i := range p.m.ids {
		if i == nil {
			continue
		}
		if i.conn != nil {
			i.conn.Close()
		}
		if i.port != nil {
			i.port.Close()
		}
	}
}

// space draws a port space.
func (w *world) space() uint16 { return []uint16{SpaceTCP, SpaceTCP, SpaceUDP}[w.pick("space", 3)] }

// step draws one action or delivery.
func (w *world) step() {
	if w.pick("what", 2) == 0 {
		busy := slices.DeleteFunc(slices.Clone(w.net.ends), func(c *memConn) bool { return len(c.queue) == 0 })
		if len(busy) > 0 {
			busy[w.pick("end", len(busy))].deliver()
		}
		return
	}
	p := w.parties[w.pick("party", len(w.parties))]
	if p.killed {
		return
	}
	i := w.id(p)
	if i == nil {
		i = w.create(p, w.space())
	}
	switch w.pick("action", 20) {
	case 0, 1, 2, 3, 17, 18, 19:
		w.event(p, w.file(p))
	case 4, 5:
		w.answer(i)
	case 6, 7, 8:
		if i.uid == 0 || i.listening || i.requested {
			i = w.create(p, w.space())
		}
		w.connect(i)
	case 9, 10:
		if i.uid != 0 && !i.requested {
			w.listen(i)
		}
	case 11:
		w.net.drain()
	case 12:
		if i.file.Disconnect(i.number) == nil && i.accepted {
			i.left = true
		}
	case 13:
		if i.file.Reject(i.number, 0, nil) == nil {
			i.rejected = true
		}
	case 14:
		if !i.listening || w.pick("listener", 5) == 0 {
			w.destroy(i)
		}
	case 15:
		w.migrate(i)
	case 16:
		w.rare(p)
	}
}

// rare draws an infrequent action.
func (w *world) rare(p *party) {
	switch w.pick("rare", 30) {
	case 0:
		w.kill(p)
	case 1, 2, 3:
		w.open(p)
	case 4:
		f := w.file(p)
		f.Close()
		f.closed = true
	default:
		w.clock.fire()
	}
}

// tokens checks that each file has as many tokens as events.
func (w *world) tokens() {
	for _, p := range w.parties {
		for _, f := range p.files {
			if !p.killed && int(f.tokens) != len(f.queue) {
				w.t.Fatalf("%d tokens for %d events", f.tokens, len(f.queue))
			}
		}
	}
}

// settle delivers all messages, and lets the programs poll all completions and consume all events.
func (w *world) settle() {
	w.polled = true
	w.net.drain()
	w.clock.fire()
	w.net.drain()
	for _, p := range w.parties {
		for _, f := range p.files {
			for !p.killed && !f.closed && w.event(p, f) {
			}
		}
	}
}

// ended checks that a side has received exactly one end event if its peer has left or does not
// exist.
func (w *world) ended(i, peer *modelID) {
	if i == nil || i.gone() || i.rejected || i.uid == 0 {
		return
	}
	over := peer == nil || peer.gone() || peer.rejected || (peer.left && peer.count(Disconnected) > 0) || i.count(ends...) > 0
	if peer == nil { // refused, or dropped with the listener
		w.check(i.count(ends...) == 1, "a request that nobody has taken ended %d times: %v", i.count(ends...), i.seen)
		return
	}
	if i.space == SpaceUDP && i.accepted {
		return // the response completes it
	}
	if over && (i.accepted || i.requested) {
		w.check(i.count(ends...) == 1, "%v: %d ends, want 1", i.seen, i.count(ends...))
	}
}

// TestModel: for any actions of two or three processes, an id receives only valid events, each
// connection ends once on each side, counts match, and all ids are released.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{t: t, net: newNetwork(), clock: &clock{}}
		for n := range rapid.IntRange(2, 3).Draw(t, "parties") {
			addr := netip.AddrFrom4([4]byte{127, 0, 0, byte(n + 1)})
			p := &party{name: fmt.Sprint("party ", n), service: netip.AddrPortFrom(addr, 7471), datagrams: netip.AddrPortFrom(addr, 7174)}
			p.m = newManager(w.net, w.clock, p.service.Addr().String())
			p.m.cfg.Unreported = func(uint32) bool { return !w.polled && w.pick("unreported", 3) > 0 }
			w.parties = append(w.parties, p)
			w.open(p)
			w.listen(w.create(p, SpaceTCP))
			w.listen(w.create(p, SpaceUDP))
		}
		for range 10 + w.pick("steps", 300) {
			w.step()
			w.tokens()
		}
		w.settle()
		w.settle() // requests consumed in the first pass
		for _, q := range w.pairs {
			w.ended(q.active, q.passive)
			w.ended(q.passive, q.active)
		}
		for _, p := range w.parties {
			for _, i := range p.ids {
				if !i.gone() {
					w.destroy(i)
				}
			}
			for n, i := range p.m.ids {
				if i != nil && !p.killed {
					t.Fatalf("id %d of %s remains, in state %d", n, p.name, i.state)
				}
			}
		}
		w.net.drain()
		w.tokens()
		killed := slices.ContainsFunc(w.parties, func(p *party) bool { return p.killed })
		if len(w.net.ends) > 0 || (len(w.clock.calls) > 0 && !killed) {
			t.Fatalf("%d ends of connections and %d timers remain", len(w.net.ends), len(w.clock.calls))
		}
	})
}
