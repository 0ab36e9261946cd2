package reliable

import (
	"errors"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// handshakePair is two wrapped contexts on a stopped clock, with the QPs of one leader and one follower, connected by
// Connect. A context acts only when a test steps it.
type handshakePair struct {
	ctx      [2]*pathContext
	qps      [2]*qp
	leader   *qp
	follower *qp
}

func newHandshakePair(tb testing.TB) *handshakePair {
	tb.Helper()
	b, link := &handshakePair{}, softnic.NewMemoryLink(nil)
	for i := range b.ctx {
		b.qps[i], _ = newQP(tb, link, NICConfig(), 0, Config{Paths: 2, Flows: 4, RecvBytes: 64 * 256, ChunkBytes: 256})
		b.ctx[i] = b.qps[i].ctx
	}
	for i, q := range b.qps {
		q.connectTo(tb, b.qps[1-i])
	}
	b.leader, b.follower = b.qps[0], b.qps[1]
	if !b.leader.flowHandshake.leader {
		b.leader, b.follower = b.follower, b.leader
	}
	if !b.leader.flowHandshake.leader || b.follower.flowHandshake.leader {
		tb.Fatalf("both ends lead or neither does, want one")
	}
	return b
}

// proposal returns a proposal of the leader.
func (b *handshakePair) proposal() *card {
	c := b.leader.card()
	c.kind = cardPropose
	return c
}

// settle completes the handshake.
func (b *handshakePair) settle(tb testing.TB) {
	tb.Helper()
	b.leader.handshake.sendFirstCard()
	for range 1000 {
		for _, ctx := range b.ctx {
			ctx.Step()
		}
	}
	if !b.leader.ready || !b.follower.ready {
		tb.Fatalf("the leader is ready: %v, the follower: %v, want both", b.leader.ready, b.follower.ready)
	}
}

// TestStaleAccept: the leader ignores an accept that does not echo the current proposal.
func TestStaleAccept(t *testing.T) {
	b := newHandshakePair(t)
	b.follower.flowHandshake.receive(b.proposal())
	answer := *b.follower.flowHandshake.phaseCard()
	if answer.kind != cardAccept || answer.echo != b.leader.conn.id || answer.flow != b.leader.flow {
		t.Fatalf("the follower answers %+v, want that it accepts", answer)
	}
	for name, change := range map[string]func(*card){
		"another connection": func(c *card) { c.echo ^= 1 << indexBits },
		"another flow":       func(c *card) { c.flow++ },
		"another kind":       func(c *card) { c.kind = cardConfirm },
	} {
		stale := answer
		change(&stale)
		if b.leader.flowHandshake.receive(&stale); b.leader.ready || b.leader.conn.peer != nil {
			t.Fatalf("the leader took an accept with %s", name)
		}
	}
	if b.leader.flowHandshake.receive(&answer); !b.leader.ready {
		t.Fatalf("the leader did not take the accept")
	}
}

// TestStaleConfirm: a confirm that does not echo the accepted proposal does not allow the follower to send.
func TestStaleConfirm(t *testing.T) {
	b := newHandshakePair(t)
	confirm := card{kind: cardConfirm, qkey: verbs.DefaultQKey, conn: b.leader.conn.id, flow: b.leader.flow}
	if b.follower.flowHandshake.receive(&confirm); b.follower.ready {
		t.Fatalf("the follower took a confirm without a proposal")
	}
	b.follower.flowHandshake.receive(b.proposal())
	confirm.echo = b.follower.conn.id
	for name, change := range map[string]func(*card){
		"another connection of the leader":   func(c *card) { c.conn ^= 1 << indexBits },
		"another connection of the follower": func(c *card) { c.echo ^= 1 << indexBits },
		"another flow":                       func(c *card) { c.flow++ },
	} {
		stale := confirm
		change(&stale)
		if b.follower.flowHandshake.receive(&stale); b.follower.ready || !b.follower.conn.unconfirmed {
			t.Fatalf("the follower took a confirm of %s", name)
		}
	}
	if b.follower.flowHandshake.receive(&confirm); !b.follower.ready || b.follower.conn.unconfirmed {
		t.Fatalf("the follower did not take the confirm")
	}
}

// TestNewProposal: a new proposal replaces the accepted one. Repeating the same proposal has no effect. After
// the confirm no further proposal is accepted.
func TestNewProposal(t *testing.T) {
	b := newHandshakePair(t)
	p := b.proposal()
	b.follower.flowHandshake.receive(p)
	first := b.follower.conn
	if b.follower.flowHandshake.receive(p); b.follower.conn != first {
		t.Fatalf("the same proposal made another connection")
	}
	reborn := *p
	reborn.firstAddr.psn ^= 1 // another connection with the same number
	if b.follower.flowHandshake.receive(&reborn); b.follower.conn == first || b.follower.engine.resources.connections != 1 {
		t.Fatalf("the follower has %d connections after a new proposal, want a new one", b.follower.engine.resources.connections)
	}
	b = newHandshakePair(t)
	b.settle(t)
	last := b.follower.conn
	if b.follower.flowHandshake.receive(&reborn); b.follower.conn != last || !b.follower.ready {
		t.Fatalf("a proposal after the confirm changed the connection")
	}
}

// TestProposalOnUsedFlow: a follower never assigns a connection's flow to a second QP, even after the first
// has left. It creates another connection.
func TestProposalOnUsedFlow(t *testing.T) {
	b := newHandshakePair(t)
	b.settle(t)
	old := b.follower.conn
	p := b.proposal()
	v, err := b.follower.ctx.pds[0].CreateQP(b.follower.cfg)
	fatal(t, err)
	q := v.(*qp)
	fatal(t, q.Modify(verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessAll}, verbs.AttrState|verbs.AttrPort|verbs.AttrPKeyIndex|verbs.AttrAccess))
	q.flowHandshake, q.state = b.follower.flowHandshake, verbs.StateRTS
	q.flowHandshake.qp = q
	q.flowHandshake.offer, q.flowHandshake.sending = nil, true // suppresses sending
	attr, err := b.follower.handshake.Query()
	fatal(t, err)
	if c := q.engine.connectionOf(q, p, &attr); c != nil {
		t.Errorf("a second QP is to have the flow of the first")
	}
	next := *p
	next.flow++
	if c := q.engine.connectionOf(q, &next, &attr); c != old {
		t.Errorf("a QP with the next flow is to have connection %p, want %p", c, old)
	}
	q.joinConnection(old, int(next.flow)) // holds the connection
	b.follower.leaveConnection()
	if c := q.engine.connectionOf(b.follower, p, &attr); c != nil {
		t.Errorf("a flow whose QP has left is to be used again")
	}
}

// TestOnlyTheLeaderProposes: cards that the other end should send are ignored.
func TestOnlyTheLeaderProposes(t *testing.T) {
	b := newHandshakePair(t)
	b.follower.flowHandshake.receive(b.proposal())
	accept, propose := b.follower.flowHandshake.phaseCard(), b.proposal()
	propose.conn, propose.firstAddr = b.follower.conn.id, b.follower.conn.firstAddr
	before := b.leader.conn
	if b.leader.flowHandshake.receive(propose); b.leader.conn != before || b.leader.flowHandshake.offer != nil {
		t.Errorf("the leader follows a proposal")
	}
	held := b.follower.conn
	if b.follower.flowHandshake.receive(accept); b.follower.ready || b.follower.conn != held {
		t.Errorf("the follower takes an accept")
	}
}

// TestFollowerAtConnectionLimit: a follower whose PD has reached its connection limit fails and raises an event.
func TestFollowerAtConnectionLimit(t *testing.T) {
	b := newHandshakePair(t)
	for range b.follower.ctx.recvs.connections() {
		_, err := b.follower.engine.newConnection(&b.follower.cfg)
		fatal(t, err)
	}
	if _, err := b.follower.engine.newConnection(&b.follower.cfg); !errors.Is(err, verbs.ErrLimit) {
		t.Fatalf("newConnection = %v, want ErrLimit", err)
	}
	b.follower.flowHandshake.receive(b.proposal())
	var evs [4]verbs.Event
	n, err := b.follower.ctx.Events(evs[:])
	if b.follower.state != verbs.StateErr || n != 1 || evs[0].Type != verbs.EventQPFatal {
		t.Fatalf("the follower is %v with the events %v, %v, want ERR and %v", b.follower.state, evs[:n], err, verbs.EventQPFatal)
	}
	for _, c := range b.follower.engine.conns {
		if c != nil && c.users == 0 {
			c.destroy()
		}
	}
}

// FuzzFlowHandshake: a hostile peer sends cards in any order, to either end, before and after the handshake. The
// number of connections stays bounded, and a QP sends only on a connection known to both ends.
func FuzzFlowHandshake(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7}, false)
	f.Add([]byte{0x12, 0x13, 0x14, 0x22, 0x23, 0x24}, true)
	f.Fuzz(func(t *testing.T, script []byte, settled bool) {
		b := newHandshakePair(t)
		if settled {
			b.settle(t)
		}
		for _, op := range script[:min(len(script), 64)] {
			q, peer := b.leader, b.follower
			if op&8 != 0 {
				q, peer = peer, q
			}
			c := peer.bareCard()
			if peer.conn != nil {
				c = peer.card()
			}
			c.kind = cardKind(1 + op&7%4)
			if q.conn != nil && op&16 != 0 {
				c.echo, c.flow = q.conn.id, q.flow
			}
			if op&32 != 0 {
				c.conn, c.firstAddr.psn = c.conn^1<<indexBits, c.firstAddr.psn^1
			}
			if c.kind.hasPaths() != (len(c.paths) > 0) {
				continue // the decoder refuses it
			}
			if op&64 != 0 {
				c.flow = (c.flow + 1) % 4
			}
			q.flowHandshake.receive(c)
			for _, ctx := range b.ctx {
				ctx.Step()
			}
		}
		for _, q := range b.qps {
			if q.engine.resources.connections > 1 || (q.ready && (q.conn == nil || q.conn.core == nil)) {
				t.Fatalf("a QP has %d connections and is ready: %v", q.engine.resources.connections, q.ready)
			}
		}
	})
}

// TestConfirmAfterFailure: a follower that fails in RTR, after it has accepted a proposal, does not open its flow when the confirm
// arrives.
func TestConfirmAfterFailure(t *testing.T) {
	b := newHandshakePair(t)
	fatal(t, b.leader.flowHandshake.propose())
	q := b.follower
	q.state, q.handshake.earlyRTS = verbs.StateRTR, true // as if a card had arrived between two calls of Modify
	fatal(t, q.flowHandshake.accept(b.proposal()))
	fatal(t, q.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState))
	if q.conn.confirm(); q.connected {
		t.Error("a QP in the error state accepts data, want none")
	}
}

// noAHs is a PD that cannot create address handles.
type noAHs struct{ verbs.PD }

func (noAHs) CreateAH(verbs.AHAttr) (verbs.AH, error) { return nil, verbs.ErrLimit }

// TestFailedConnection: a follower fails because its device does not connect the paths. No other QP joins that connection, which never
// carries data.
func TestFailedConnection(t *testing.T) {
	b := newHandshakePair(t)
	q, p := b.follower, b.proposal()
	res := &q.engine.resources
	pd := res.pd
	res.pd = noAHs{pd}
	q.flowHandshake.receive(p)
	res.pd = pd
	if q.state != verbs.StateErr || q.conn == nil || q.conn.core != nil {
		t.Fatalf("the follower is %v without address handles, want ERR and a connection that is not started", q.state)
	}
	attr, err := q.handshake.Query()
	fatal(t, err)
	next := *p
	next.flow++
	if c := q.engine.connectionOf(q, &next, &attr); c != nil {
		t.Error("another QP is to join the connection that could not be connected")
	}
}

// TestWaitingCardEnds: a follower that repeats its card, because it has a request and no proposal, stops with its reset and its Close.
func TestWaitingCardEnds(t *testing.T) {
	for name, end := range map[string]func(*qp) error{
		"reset": func(q *qp) error { return q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState) },
		"close": (*qp).Close,
	} {
		b := newHandshakePair(t)
		q := b.follower
		q.handshake.sendFirstCard()
		q.flowHandshake.cardSent() // the leader does not answer
		if q.conn != nil || q.engine.cardTimers != 1 {
			t.Fatalf("%s: %d timers of cards run before a proposal, want 1", name, q.engine.cardTimers)
		}
		fatal(t, end(q))
		if q.handshake.resendAt != 0 || q.engine.cardTimers != 0 {
			t.Errorf("%s: %d timers of cards run afterwards, want none", name, q.engine.cardTimers)
		}
	}
}
