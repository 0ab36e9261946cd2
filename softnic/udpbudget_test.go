//go:build linux

package softnic

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// lastOf is a Capture that keeps the last packet to every QP, and counts them.
type lastOf struct {
	mu    sync.Mutex
	count map[uint32]int
	last  map[uint32]roce.Header
}

func (l *lastOf) Packet(_ int64, _, _ netip.AddrPort, _ uint16, _, _ uint8, parts ...[]byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var h roce.Header
	if _, r := h.Decode(bytes.Join(parts, nil)); r != roce.OK {
		return
	}
	l.count[h.DestQPN]++
	l.last[h.DestQPN] = h
}

// silentPeers returns QPs on one NIC, connected to QPs on another that never respond. buffer is the other
// NIC's socket buffer in bytes. The sending NIC's window is large.
func silentPeers(t *testing.T, capture Capture, qps int, buffer int) []*qp {
	t.Helper()
	link, err := NewUDPLink(&UDPConfig{Capture: capture, NICWindow: 1 << 20})
	check(t, err)
	nic, err := New(link, Config{Addr: netip.AddrFrom4([4]byte{127, 0, 0, 61})})
	check(t, err)
	t.Cleanup(func() { check(t, nic.Close()) })
	ctx, err := nic.Open()
	check(t, err)
	pd, err := ctx.AllocPD()
	check(t, err)
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 16})
	check(t, err)
	mem, err := verbs.AllocMemory(1<<20, nil)
	check(t, err)
	mr, err := pd.RegisterMemory(mem, 0)
	check(t, err)
	extra := []byte{'s', 'n', extraVersion, extraRuns, 0, 0, byte(buffer >> 18), byte(buffer >> 10)}
	all := make([]*qp, qps)
	for i := range all {
		v, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4})
		check(t, err)
		to := verbs.Endpoint{
			QPN: uint32(100 + i), GID: verbs.GIDFromAddr(netip.AddrFrom4([4]byte{127, 0, 0, 62})), LID: 9,
			MTU: verbs.MTU4096, MaxRdAtomic: 1, MaxDestRdAtomic: 1, Extra: extra,
		}
		check(t, v.Connect(to))
		all[i] = v.(*qp)
	}
	for _, q := range all {
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
		wr.SetSGE(verbs.SGE{Addr: mem.Addr(), Length: 1 << 20, LKey: mr.LKey()})
		_, err := q.PostSend([]verbs.SendWR{wr})
		check(t, err)
	}
	return all
}

// TestUDPPeerBudget: however many QPs write to QPs on one NIC, together they send at most its buffer size
// plus one packet each. The last packet that a QP may send requests an acknowledgement; otherwise the peer
// would never report free space.
func TestUDPPeerBudget(t *testing.T) {
	const qps, buffer = 12, 400 << 10
	seen := &lastOf{count: make(map[uint32]int), last: make(map[uint32]roce.Header)}
	all := silentPeers(t, seen, qps, buffer)
	c := all[0].core
	c.mu.Lock()
	defer c.mu.Unlock()
	seen.mu.Lock()
	defer seen.mu.Unlock()
	b := all[0].to
	if b == nil || b.limit != buffer/2/(4096+udpSlack) {
		t.Fatalf("the budget of the peer is %+v, want a limit of %d", b, buffer/2/(4096+udpSlack))
	}
	total := uint32(0)
	for _, q := range all {
		if q.to != b {
			t.Fatalf("QP %#x has a budget of its own, want that of its peer's NIC", q.num)
		}
		total += q.inFlight()
		if n, h := seen.count[q.attr.DestQPN], seen.last[q.attr.DestQPN]; n == 0 || !h.AckReq {
			t.Errorf("QP %#x has sent %d packets, the last asks for an acknowledgement: %v; want some, and true", q.num, n, h.AckReq)
		}
	}
	if total != b.inFlight || total < b.limit || total > b.limit+qps*peerShare {
		t.Errorf("%d packets in flight, %d in the budget, want the same, and %d to %d", total, b.inFlight, b.limit, b.limit+qps*peerShare)
	}
	// The first gets a response, and the others resume.
	first := all[0]
	first.ackTo(first.snd.Add(1<<24 - 1))
	first.charge()
	scheduled := 0
	for _, q := range all[1:] {
		if q.lists&onTx != 0 {
			scheduled++
		}
	}
	if scheduled != qps-1 {
		t.Errorf("%d QPs go on when there is room, want %d", scheduled, qps-1)
	}
	for _, q := range all {
		q.enterError()
	}
	if b.inFlight != 0 {
		t.Errorf("%d packets in the budget after all QPs have failed, want 0", b.inFlight)
	}
}

// TestUDPPeerBudgetMoves: a reconnected QP counts toward its new peer only.
func TestUDPPeerBudgetMoves(t *testing.T) {
	seen := &lastOf{count: make(map[uint32]int), last: make(map[uint32]roce.Header)}
	q := silentPeers(t, seen, 1, 1<<20)[0]
	c := q.core
	c.mu.Lock()
	defer c.mu.Unlock()
	before, sent := q.to, q.charged
	b := newBudget()
	b.set(1000, 1000)
	after := &b
	q.switchBudget(&path{route: &udpRoute{budget: after}})
	if before.inFlight != 0 || after.inFlight != sent || sent == 0 {
		t.Errorf("%d packets count toward the old peer and %d toward the new, want 0 and %d", before.inFlight, after.inFlight, sent)
	}
	q.reset()
	if after.inFlight != 0 || q.to != nil {
		t.Errorf("%d packets count after a reset, want 0", after.inFlight)
	}
}

// TestUDPLoopbackBudget: QPs to one loopback NIC together have as many full packets in flight as a single QP,
// although the peer's buffer holds more. This keeps the data in flight in the caches.
func TestUDPLoopbackBudget(t *testing.T) {
	const qps = 4
	seen := &lastOf{count: make(map[uint32]int), last: make(map[uint32]roce.Header)}
	all := silentPeers(t, seen, qps, 16<<20)
	c := all[0].core
	c.mu.Lock()
	defer c.mu.Unlock()
	want := uint32(defaultUDPInFlight / 4096)
	if b := all[0].to; b.inFlight < want || b.inFlight > want+qps*peerShare || b.limit <= 2*want {
		t.Errorf("%d packets under way, %d may be, want %d to %d, and more than %d", b.inFlight, b.limit, want, want+qps*peerShare, 2*want)
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for _, q := range all {
		if h := seen.last[q.attr.DestQPN]; !h.AckReq || !q.mayAdd(q.inFlight(), false) {
			t.Errorf("QP %#x asks for an acknowledgement: %v, may send short packets: %v; want both", q.num, h.AckReq, q.mayAdd(q.inFlight(), false))
		}
	}
	for _, q := range all {
		q.enterError()
	}
}

// TestUDPPeerBudgetLeftWaiting: a QP that waits for one peer's budget and is reconnected to another then
// waits only for the new peer's.
func TestUDPPeerBudgetLeftWaiting(t *testing.T) {
	seen := &lastOf{count: make(map[uint32]int), last: make(map[uint32]roce.Header)}
	all := silentPeers(t, seen, 4, 400<<10)
	c := all[0].core
	c.mu.Lock()
	defer c.mu.Unlock()
	q := all[len(all)-1]
	if q.lists&onStarved == 0 {
		t.Fatalf("QP %#x does not wait although its peer's budget is used up: %+v", q.num, q.to)
	}
	b := newBudget()
	b.set(1, 1)
	before, after := q.to, &b
	q.switchBudget(&path{route: &udpRoute{budget: after}})
	if before.inFlight <= before.limit-before.limit/4 {
		t.Fatalf("%d packets of %d in flight to the old peer: too few for the test", before.inFlight, before.limit)
	}
	if q.lists&onStarved != 0 {
		t.Error("the QP still waits for its old peer, want it to go on")
	}
	if q.mayAdd(peerShare, false) || q.lists&onStarved == 0 || after.starved.empty() {
		t.Errorf("may add: %v, waits: %v, want the QP to wait for its new peer", q.mayAdd(peerShare, false), q.lists&onStarved != 0)
	}
	if after.add(c, 0); after.inFlight < after.limit || q.lists&onStarved == 0 {
		t.Errorf("%d packets of %d in flight, waits: %v, want the QP to wait while the window is full", after.inFlight, after.limit, q.lists&onStarved != 0)
	}
}

// TestUDPWindow: by default a QP has up to 1 MiB of full packets in flight, and a larger number of short
// ones.
func TestUDPWindow(t *testing.T) {
	for _, c := range []struct {
		window   int
		seg      uint32
		n, long  uint32
		peerSays uint32
	}{
		{0, 4096, 512, 256, maxWindow},
		{0, 1024, 512, 512, maxWindow},
		{0, 4096, 100, 100, 100},
		{300, 4096, 300, 300, maxWindow},
		{300, 256, 300, 300, maxWindow},
	} {
		link, err := NewUDPLink(&UDPConfig{Window: c.window})
		check(t, err)
		if n, long := link.newUDPNIC(nil).traits.windows(&path{route: &udpRoute{window: c.peerSays}}, c.seg); n != c.n || long != c.long {
			t.Errorf("Window %d, packets of %d bytes, %d for the peer: got %d and %d, want %d and %d", c.window, c.seg, c.peerSays, n, long, c.n, c.long)
		}
	}
	seen := &lastOf{count: make(map[uint32]int), last: make(map[uint32]roce.Header)}
	q := silentPeers(t, seen, 1, 16<<20)[0] // a MiB is posted and waits for a response
	c := q.core
	c.mu.Lock()
	defer c.mu.Unlock()
	long := &sendWQE{opcode: verbs.OpRDMAWrite, length: 1 << 20}
	if f := q.inFlight(); f != 256 || q.hasRoom(long) {
		t.Errorf("%d packets under way, room for a full one: %v; want 256 and none", f, q.hasRoom(long))
	}
	if short := (&sendWQE{opcode: verbs.OpRDMAWrite, length: 8}); !q.hasRoom(short) {
		t.Error("no room for a short packet, want some")
	}
}
