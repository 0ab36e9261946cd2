package ibverbx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"ibverbx/internal/debugcheck"
	"ibverbx/internal/nullnic"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

func TestLaneSet(t *testing.T) {
	s, other := newLaneSet(130), newLaneSet(130)
	if s.first() != -1 {
		t.Errorf("first of an empty set = %d, want -1", s.first())
	}
	for _, lane := range []uint16{129, 64, 63, 0} {
		s.add(lane)
		if s.first() != int(lane) || !s.has(lane) {
			t.Errorf("after add(%d): first = %d, has = %v", lane, s.first(), s.has(lane))
		}
	}
	s.remove(0)
	if n := s.moveTo(other); n != 3 || s.first() != -1 || other.first() != 63 || other.has(0) || !other.has(129) {
		t.Errorf("moveTo = %d, leaves %v and gives %v", n, s, other)
	}
}

// TestBarrier: a barrier is passed after two empty polls of its rail.
func TestBarrier(t *testing.T) {
	c := newTestCQ(t, 2)
	c.idle = [MaxRails]uint64{7, 9}
	all, one := c.barriers(), c.barrier(0)
	for want := range 3 {
		if got := c.passed(0, one); got != (want == 2) {
			t.Errorf("after %d empty polls passed = %v", want, got)
		}
		if c.passedAll(&all) {
			t.Errorf("barriers are passed, and rail 1 was not polled")
		}
		c.idle[0]++
	}
	c.idle[1] += 2
	if !c.passedAll(&all) {
		t.Error("barriers are not passed")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newTestCQ returns a VirtualCQ on null NICs.
func newTestCQ(t *testing.T, rails int) *VirtualCQ {
	t.Helper()
	var cfgs []RailConfig
	for i := range rails {
		cfgs = append(cfgs, RailConfig{Context: nullnic.New("null", uint32(i+1))})
	}
	r, err := NewRails(cfgs...)
	must(t, err)
	c, err := r.NewCQ(CQConfig{})
	must(t, err)
	return c
}

// TestWatchdog: a silent peer is probed every half second while the oldest request stays the same. A deadline
// applies once the CQs were found empty, or after a grace time.
func TestWatchdog(t *testing.T) {
	c, now := newTestCQ(t, 1), cachedClock{}
	w := watchdog{setup: &setup{cq: c}, clock: &now}
	for _, step := range []struct {
		at      int64
		oldest  uint32
		waiting bool
		want    bool
	}{
		{0, 0, false, false},
		{1, 5, true, false},
		{probeTime, 5, true, false},
		{probeTime + 1, 5, true, true},
		{probeTime + 2, 5, true, false},
		{2*probeTime + 1, 6, true, false}, // another request: the time starts over
		{3*probeTime + 1, 6, true, true},
	} {
		now.now = step.at
		if got := w.probeDue(step.oldest, step.waiting); got != step.want {
			t.Errorf("at %d: probeDue(%d, %v) = %v, want %v", step.at, step.oldest, step.waiting, got, step.want)
		}
	}
	const deadline = int64(10)
	if now.now = deadline; w.expired(deadline) {
		t.Error("expired at the deadline")
	}
	if now.now++; w.expired(deadline) {
		t.Error("expired before the CQs were found empty")
	}
	c.idle[0] += 2
	if !w.expired(deadline) {
		t.Error("not expired after the CQs were found empty")
	}
	w.late = false
	w.expired(deadline)
	if now.now += lateGrace + 1; !w.expired(deadline) {
		t.Error("not expired after the grace time")
	}
}

// TestFailureWithoutLane: when the peer is lost, neither the error, nor the event, nor the log blames a lane.
func TestFailureWithoutLane(t *testing.T) {
	c := newTestCQ(t, 1)
	var log bytes.Buffer
	q, err := c.NewQP(Config{Lanes: 2, Log: slog.New(slog.NewTextHandler(&log, nil))})
	must(t, err)
	q.failover.fail(nil, ErrPeerGone)
	var events [2]Event
	if n := c.Events(events[:]); n != 1 || events[0].Kind != EventFailed || events[0].Lane != -1 || events[0].Rail != -1 {
		t.Errorf("events = %+v, want one failure without a lane", events[:n])
	}
	for _, text := range []string{q.Err().Error(), log.String()} {
		if !errors.Is(q.Err(), ErrPeerGone) || strings.Contains(text, "lane") || !strings.Contains(text, "the peer is gone") {
			t.Errorf("%q blames a lane, or does not name the cause", text)
		}
	}
}

// brokenEndpoint is a QP that can no longer report its address.
type brokenEndpoint struct{ verbs.QP }

func (brokenEndpoint) Endpoint() (verbs.Endpoint, error) { return verbs.Endpoint{}, verbs.ErrClosed }
func (brokenEndpoint) Connect(verbs.Endpoint) error      { return nil }

// TestOfferFailsWhileReconnecting: a lane whose QP fails between its connection and its probe goes out of
// service and is not probed.
func TestOfferFailsWhileReconnecting(t *testing.T) {
	here, _ := ControlPair()
	q, err := newTestCQ(t, 1).NewQP(Config{Lanes: 2, Control: here})
	must(t, err)
	q.failover.state = stateConnected
	l := q.setup.all[0]
	l.recovery.state, l.qp = laneOffered, brokenEndpoint{l.qp}
	l.recovery.reconnect.offer = &ctlMessage{kind: ctlOffer, flags: ctlConnected}
	q.failover.connectOffered(l)
	if l.recovery.state != laneDying {
		t.Errorf("the lane is %s, want it %s", l.recovery.state, laneDying)
	}
}

// TestOfferElsewhere: a peer cannot move a lane to an address that was not in its card.
func TestOfferElsewhere(t *testing.T) {
	known, other := verbs.GID{15: 1}, verbs.GID{15: 2}
	for gid, want := range map[verbs.GID]string{known: "", other: "not in the card"} {
		here, _ := ControlPair()
		q, err := newTestCQ(t, 1).NewQP(Config{Lanes: 2, Control: here})
		if err != nil {
			t.Fatal(err)
		}
		q.failover.state, q.setup.remoteRails, q.setup.remoteGIDs = stateConnected, 1, []verbs.GID{known}
		q.failover.handleOffer(q.setup.all[0], &ctlMessage{kind: ctlOffer, endpoint: verbs.Endpoint{GID: gid}})
		if err := q.Err(); (err != nil) != (want != "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("an offer at %v: Err = %v, want %q", gid, err, want)
		}
	}
}

// connectedQP records that it was connected.
type connectedQP struct {
	verbs.QP
	connects *int
}

func (q connectedQP) Connect(verbs.Endpoint) error { *q.connects++; return nil }

// TestOfferAtAddressWithoutLane: a lane moves to an address in the peer's card that had no lane only if Config.CheckGID accepts the address. The
// VirtualQP stays up otherwise, because the peer does not know the addresses that this side accepts.
func TestOfferAtAddressWithoutLane(t *testing.T) {
	card := Card{Rails: 2, Lanes: []CardLane{{GID: verbs.GID{15: 1}}}, Addresses: []verbs.GID{{15: 1}, {15: 2}}}
	for _, tt := range []struct {
		gid             verbs.GID
		refuse          error
		checks, connect int
	}{
		{card.Lanes[0].GID, nil, 0, 1},
		{card.Lanes[0].GID, verbs.ErrInvalid, 0, 1}, // the caller of Connect has accepted the lanes' addresses
		{card.Addresses[1], nil, 1, 1},
		{card.Addresses[1], verbs.ErrInvalid, 1, 0},
	} {
		here, _ := ControlPair()
		checks, connects := 0, 0
		q, err := newTestCQ(t, 1).NewQP(Config{Lanes: 2, Control: here, CheckGID: func(int, verbs.GID) error { checks++; return tt.refuse }})
		must(t, err)
		q.failover.state, q.setup.remoteRails, q.setup.remoteAddresses = stateConnected, card.Rails, card.Addresses
		q.setup.remoteGIDs, q.failover.railsWithoutGID = card.gids()
		l := q.setup.all[0]
		l.recovery.state, l.qp = laneOffered, connectedQP{l.qp, &connects}
		q.failover.handleOffer(l, &ctlMessage{kind: ctlOffer, endpoint: verbs.Endpoint{GID: tt.gid}})
		if q.Err() != nil || checks != tt.checks || connects != tt.connect || (l.recovery.state == laneIdle) != (tt.connect == 0) {
			t.Errorf("an offer at %v, CheckGID returns %v: Err = %v, lane %s, %d checks and %d connections, want %d and %d",
				tt.gid, tt.refuse, q.Err(), l.recovery.state, checks, connects, tt.checks, tt.connect)
		}
	}
}

// TestFlushOfMarker: a marker that no NIC holds is not mistaken for a request.
func TestFlushOfMarker(t *testing.T) {
	q, err := newTestCQ(t, 1).NewQP(Config{Lanes: 2})
	must(t, err)
	l, slot := q.setup.all[0], &q.send.sends.slots[0]
	slot.pending = 1
	l.put(entryHead(0, kindControl, 0), 0, 0, 0)
	q.send.inflight = 1
	q.send.flush()
	if slot.pending != 1 || q.send.messages != 0 || q.send.inflight != 0 {
		t.Errorf("pending %d, messages %d, in flight %d, want 1, 0, 0", slot.pending, q.send.messages, q.send.inflight)
	}
}

// TestGuard: with checks compiled in, concurrent calls on the same VirtualCQ panic.
func TestGuard(t *testing.T) {
	c := &VirtualCQ{}
	c.guard.Enter("Poll", misuse)
	defer func() {
		if got := recover() != nil; got != debugcheck.On {
			t.Errorf("a second call panics: %v, want %v", got, debugcheck.On)
		}
		c.guard.Leave()
		c.guard.Enter("Poll", misuse) // and one after it is fine
		c.guard.Leave()
	}()
	_, _ = c.Poll(nil)
}

// TestTransitions: a lane passes through all states of its recovery and cannot skip one.
func TestTransitions(t *testing.T) {
	l := &lane{owner: &VirtualQP{}}
	for _, next := range []laneState{laneDying, laneGone, laneIdle, laneOffered, laneProbing, laneUp} {
		l.become(next, 0, nil)
	}
	defer func() {
		if got := recover() != nil; got != debugcheck.On {
			t.Errorf("a lane moves from up to offered: panic %v, want %v", got, debugcheck.On)
		}
	}()
	l.become(laneOffered, 0, nil)
}

// controlRoundTrip decodes a control message and encodes it again, for the fuzzer.
func controlRoundTrip(b []byte) ([]byte, error) {
	m, err := decodeControl(b)
	if err != nil {
		return nil, err
	}
	out := make([]byte, MaxControl)
	n, err := m.encode(out)
	return out[:n], err
}

// TestTallyWindowGrows: messages arrive in any order within the largest window, which starts small. They
// complete in order, and one beyond the window fails the VirtualQP.
func TestTallyWindowGrows(t *testing.T) {
	q, err := newTestCQ(t, 1).NewQP(Config{Lanes: 2})
	must(t, err)
	card, err := q.Card()
	must(t, err)
	must(t, q.Connect(card))
	s, l := q.setup.scheme.(*tally), q.setup.all[0]
	if s.window.Len() != initialDepth || s.window.Limit() < 4*initialDepth {
		t.Fatalf("the window has %d places and grows to %d", s.window.Len(), s.window.Limit())
	}
	for round := range uint32(3) { // the second and third start in the middle of the ring
		first, n := s.next, 2*initialDepth*(round+1)-5
		for i := n - 1; i > 0; i-- {
			s.count(l, first+i, messageRecords{want: 1, imm: first + i})
		}
		if s.next != first || q.recv.early.Len() != 0 {
			t.Fatalf("message %d is complete before %d", s.next-1, first)
		}
		s.count(l, first, messageRecords{want: 1, imm: first})
		for i := range n {
			if m := q.recv.early.Pop(); m.imm != first+i {
				t.Fatalf("message %d is complete after %d", m.imm, first+i-1)
			}
		}
	}
	if s.count(l, s.next+s.window.Limit(), messageRecords{want: 1}); q.Err() == nil {
		t.Error("a record beyond the window is taken")
	}
}

// TestVirtualQPsShareAClock: the VirtualQPs of a VirtualCQ share one clock, because their timers are in one
// heap. With separate epochs, a younger one would hide the deadlines of an older one.
func TestVirtualQPsShareAClock(t *testing.T) {
	c := newTestCQ(t, 1)
	var qps [2]*VirtualQP
	for i := range qps {
		q, err := c.NewQP(Config{Lanes: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = q.Close() }()
		qps[i] = q
	}
	older := qps[0].setup.cfg.Now()
	if younger := qps[1].setup.cfg.Now(); younger < older {
		t.Errorf("the clock of the younger VirtualQP says %d after the older's said %d", younger, older)
	}
}

// goodControl returns a control message of a kind, laid out by hand.
func goodControl(kind byte, extra int) []byte {
	b := make([]byte, 32)
	copy(b, "ibvx")
	b[4], b[5] = 1, kind
	binary.LittleEndian.PutUint16(b[6:], 3)
	binary.LittleEndian.PutUint16(b[8:], 7)
	binary.LittleEndian.PutUint32(b[12:], 99)
	binary.LittleEndian.PutUint64(b[16:], 1234)
	binary.LittleEndian.PutUint64(b[24:], 5678)
	if kind != 2 {
		return b
	}
	b = append(b, make([]byte, 32+extra)...)
	binary.LittleEndian.PutUint32(b[32:], 17)
	b[42] = byte(verbs.MTU4096)
	binary.LittleEndian.PutUint16(b[46:], uint16(extra))
	b[48] = 0xfe // a GID
	return b
}

// TestControlMessages: a correct message is decoded and encoded again unchanged; any other is
// refused.
func TestControlMessages(t *testing.T) {
	for name, b := range map[string][]byte{"down": goodControl(1, 0), "offer": goodControl(2, 0), "offer with more": goodControl(2, 5), "reset": goodControl(3, 0)} {
		again, err := controlRoundTrip(b)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%s: %x becomes %x, %v", name, b, again, err)
		}
		for cut := range len(b) {
			if _, err := controlRoundTrip(b[:cut]); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s cut to %d bytes: %v, want %v", name, cut, err, verbs.ErrInvalid)
			}
		}
		if _, err := controlRoundTrip(append(bytes.Clone(b), 0)); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s with a byte too many: %v, want %v", name, err, verbs.ErrInvalid)
		}
	}
	for name, change := range map[string]func(b []byte){
		"magic":   func(b []byte) { b[0] = 'x' },
		"version": func(b []byte) { b[4] = 2 },
		"kind 0":  func(b []byte) { b[5] = 0 },
		"kind 9":  func(b []byte) { b[5] = 9 },
		"QPN 0":   func(b []byte) { b[32] = 0 },
		"MTU":     func(b []byte) { b[42] = 77 },
		"extra":   func(b []byte) { b[46] = 9 },
	} {
		b := goodControl(2, 5)
		change(b)
		if _, err := controlRoundTrip(b); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v, want %v", name, err, verbs.ErrInvalid)
		}
	}
}

// TestFailoverUnknownFlags: a message with flags that this version does not know is refused.
func TestFailoverUnknownFlags(t *testing.T) {
	for kind := byte(1); kind <= 3; kind++ {
		b := goodControl(kind, 0)
		b[11] = 0x80
		if _, err := controlRoundTrip(b); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("kind %d with unknown flags: %v, want %v", kind, err, verbs.ErrInvalid)
		}
	}
}

// TestControlPair: datagrams arrive in order and wake their receiver, and a full queue drops the oldest.
func TestControlPair(t *testing.T) {
	a, b := ControlPair()
	woken := 0
	b.Notify(func() { woken++ })
	const sent, kept = 1000, 256
	for i := range sent {
		if err := a.Send([]byte{byte(i)}); err != nil {
			t.Fatalf("Send %d = %v", i, err)
		}
	}
	if woken != sent {
		t.Errorf("%d datagrams woke the receiver %d times", sent, woken)
	}
	buf := make([]byte, MaxControl)
	for i := sent - kept; i < sent; i++ {
		if n, err := b.Recv(buf); n != 1 || err != nil || buf[0] != byte(i) {
			t.Fatalf("Recv %d = %d, %v: %x", i, n, err, buf[:1])
		}
	}
	if n, err := b.Recv(buf); n != 0 || err != nil {
		t.Errorf("Recv of nothing = %d, %v", n, err)
	}
}

func FuzzControl(f *testing.F) {
	f.Add(goodControl(1, 0))
	f.Add(goodControl(2, 5))
	f.Add(goodControl(3, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		again, err := controlRoundTrip(b)
		if err != nil {
			return
		}
		if _, err := controlRoundTrip(again); err != nil {
			t.Fatalf("%x was read, and %x, which was written of it, is not: %v", b, again, err)
		}
	})
}

// fastPort is a context whose ports report a speed.
type fastPort struct {
	verbs.Context
	mbps uint32
}

func (f fastPort) QueryPort(port int) (verbs.PortAttr, error) {
	attr, err := f.Context.QueryPort(port)
	attr.SpeedMbps = f.mbps
	return attr, err
}

// TestAutoPolicy: AutoPolicy is RoundRobin if all ports have one speed and TwoChoices if not. An
// explicit policy is kept.
func TestAutoPolicy(t *testing.T) {
	for _, tt := range []struct {
		speeds []uint32
		asked  Policy
		want   Policy
	}{
		{[]uint32{0, 0}, AutoPolicy, RoundRobin},
		{[]uint32{100_000}, AutoPolicy, RoundRobin},
		{[]uint32{400_000, 400_000}, AutoPolicy, RoundRobin},
		{[]uint32{400_000, 100_000}, AutoPolicy, TwoChoices},
		{[]uint32{400_000, 400_000, 0}, AutoPolicy, TwoChoices},
		{[]uint32{400_000, 100_000}, RoundRobin, RoundRobin},
	} {
		link := softnic.NewMemoryLink(nil)
		var cfgs []RailConfig
		for _, mbps := range tt.speeds {
			nic, err := softnic.New(link, softnic.Config{})
			must(t, err)
			t.Cleanup(func() { must(t, nic.Close()) })
			ctx, err := nic.Open()
			must(t, err)
			cfgs = append(cfgs, RailConfig{Context: fastPort{ctx, mbps}})
		}
		rails, err := NewRails(cfgs...)
		must(t, err)
		cq, err := rails.NewCQ(CQConfig{})
		must(t, err)
		qp, err := cq.NewQP(Config{Policy: tt.asked})
		must(t, err)
		if got := qp.send.picker.policy; got != tt.want {
			t.Errorf("policy %v on ports of %v Mb/s is %v, want %v", tt.asked, tt.speeds, got, tt.want)
		}
		must(t, qp.Close())
		must(t, cq.Close())
		must(t, rails.Close())
	}
}
