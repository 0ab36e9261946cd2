package cm

import (
	"bytes"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"ibverbx/verbs"
)

// rig is a listener and two managers with a file each.
type rig struct {
	t              *testing.T
	net            *network
	clock          *clock
	client, server *File
	clientTokens   count
	serverTokens   count
	listener       uint32
	active         uint32
}

var service = netip.MustParseAddrPort("127.0.0.1:7471")

// UIDs used by a rig's program.
const listenUID, activeUID, passiveUID = 1, 2, 3

func newRig(t *testing.T, backlog int32) *rig {
	r := &rig{t: t, net: newNetwork(), clock: &clock{}}
	r.client = newManager(r.net, r.clock, "127.0.0.2").Open(&r.clientTokens)
	r.server = newManager(r.net, r.clock, "127.0.0.1").Open(&r.serverTokens)
	r.listener = r.must(r.server.Create(listenUID, SpaceTCP))
	r.ok(r.server.Bind(r.listener, service))
	r.ok(r.server.Listen(r.listener, backlog))
	return r
}

func (r *rig) ok(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) must(n uint32, err error) uint32 {
	r.t.Helper()
	r.ok(err)
	return n
}

// want checks that a call fails with an errno.
func (r *rig) want(no syscall.Errno, err error) {
	r.t.Helper()
	if !errors.Is(err, no) {
		r.t.Fatalf("got error %v, want %v", err, no)
	}
}

// next delivers all messages and consumes an event, which must have the given type and status.
func (r *rig) next(f *File, typ EventType, status int32) Event {
	r.t.Helper()
	r.net.drain()
	e, err := f.Event()
	if err != nil || e.Type != typ || e.Status != status {
		r.t.Fatalf("Event = %+v, %v, want type %d with status %d", e, err, typ, status)
	}
	return e
}

// none checks that a file's event queue is empty.
func (r *rig) none(f *File) {
	r.t.Helper()
	r.net.drain()
	if e, err := f.Event(); !errors.Is(err, syscall.EAGAIN) {
		r.t.Fatalf("Event = %+v, %v, want none", e, err)
	}
}

// routed returns an active id whose route is resolved.
func (r *rig) routed() uint32 {
	r.t.Helper()
	n := r.must(r.client.Create(activeUID, SpaceTCP))
	r.ok(r.client.Resolve(n, netip.AddrPort{}, service))
	r.next(r.client, AddrResolved, 0)
	r.ok(r.client.ResolveRoute(n))
	r.next(r.client, RouteResolved, 0)
	return n
}

// request connects an active id and returns the server's request event.
func (r *rig) request() Event {
	r.t.Helper()
	r.active = r.routed()
	r.ok(r.client.Connect(r.active, &Param{QPN: 0x11, ResponderResources: 4, InitiatorDepth: 9, Retry: 15, RNRRetry: 6}, []byte("hello")))
	return r.next(r.server, ConnectRequest, 0)
}

// connected establishes a connection and returns the passive id.
func (r *rig) connected() uint32 {
	r.t.Helper()
	passive := r.request().ID
	r.ok(r.server.Accept(passive, passiveUID, &Param{QPN: 0x22, ResponderResources: 3, InitiatorDepth: 5, RNRRetry: 7}, []byte("welcome")))
	r.next(r.client, ConnectResponse, 0)
	r.ok(r.client.Confirm(r.active))
	r.next(r.server, Established, 0)
	return passive
}

// leave disconnects and destroys a passive id.
func (r *rig) leave(passive uint32) {
	r.t.Helper()
	r.ok(r.server.Disconnect(passive))
	r.next(r.server, Disconnected, 0)
	r.must(r.server.Destroy(passive))
}

// TestDisconnectedLast: a program is notified of its peer's disconnection once it has polled the
// connection's completions, or after pollGrace. After its own disconnection it does not wait. A
// destroyed id does not receive events.
func TestDisconnectedLast(t *testing.T) {
	r := newRig(t, 0)
	unpolled := 3
	r.client.m.cfg.Unreported = func(qpn uint32) bool {
		if qpn != 0x11 {
			t.Errorf("asked for QP %#x, want 0x11", qpn)
		}
		unpolled--
		return unpolled >= 0
	}
	for _, looks := range []int{3, int(pollGrace / pollCheck)} {
		if looks > 3 {
			unpolled = 1 << 30
		}
		r.leave(r.connected())
		for range looks {
			r.none(r.client)
			r.clock.fire()
		}
		r.none(r.client)
		r.clock.fire()
		r.next(r.client, Disconnected, 0)
		r.must(r.client.Destroy(r.active))
	}
	passive := r.connected()
	r.ok(r.client.Disconnect(r.active))
	r.next(r.client, Disconnected, 0)
	r.must(r.client.Destroy(r.active))
	r.next(r.server, Disconnected, 0)
	r.must(r.server.Destroy(passive))
	r.client.m.cfg.Unreported = func(uint32) bool {
		r.must(r.client.Destroy(r.active))
		return false
	}
	r.leave(r.connected())
	r.none(r.client)
	r.clock.fire()
	r.none(r.client)
}

// TestConnection: each side gets the other's parameters, and matching QP attributes.
func TestConnection(t *testing.T) {
	r := newRig(t, 0)
	req := r.request()
	p := req.Param
	if req.UID != listenUID || p.ResponderResources != 9 || p.InitiatorDepth != 4 || p.Retry != 7 || p.RNRRetry != 6 || p.QPN != 0x11 ||
		p.Private.Len != 56 || !bytes.HasPrefix(p.Private.Data[:], []byte("hello\x00")) {
		t.Errorf("request = %+v, want counts crossed, retries limited to 7 and 56 bytes of data", req)
	}
	rtr, _, err := r.server.QPAttr(req.ID, verbs.StateRTR)
	if err != nil || rtr.DestQPN != 0x11 || rtr.AH.DGID != verbs.GIDFromAddr(netip.MustParseAddr("127.0.0.2")) || rtr.AH.DLID != 5000 || rtr.RQPSN != 0x123456 {
		t.Errorf("passive RTR = %+v, %v", rtr, err)
	}
	r.ok(r.server.Accept(req.ID, passiveUID, &Param{QPN: 0x22, ResponderResources: 3, InitiatorDepth: 5, RNRRetry: 2}, []byte("welcome")))
	rep := r.next(r.client, ConnectResponse, 0)
	if p := rep.Param; rep.UID != activeUID || p.ResponderResources != 5 || p.InitiatorDepth != 3 || p.Private.Len != 196 || !bytes.HasPrefix(p.Private.Data[:], []byte("welcome\x00")) {
		t.Errorf("response = %+v, want counts crossed and 196 bytes of data", rep)
	}
	rtr, mask, err := r.client.QPAttr(r.active, verbs.StateRTR)
	if err != nil || rtr.DestQPN != 0x22 || rtr.MaxDestRdAtomic != 5 || rtr.PathMTU != verbs.MTU4096 || mask&verbs.AttrAV == 0 {
		t.Errorf("active RTR = %+v, %v, %v", rtr, mask, err)
	}
	rts, _, err := r.client.QPAttr(r.active, verbs.StateRTS)
	if err != nil || rts.MaxRdAtomic != 3 || rts.RetryCount != 7 || rts.RNRRetry != 2 || rts.SQPSN != 0x123456 || rts.Timeout != ackTimeout {
		t.Errorf("active RTS = %+v, %v", rts, err)
	}
	if rts, _, err := r.server.QPAttr(req.ID, verbs.StateRTS); err != nil || rts.MaxRdAtomic != 5 || rts.RetryCount != 7 || rts.RNRRetry != 6 {
		t.Errorf("passive RTS = %+v, %v", rts, err)
	}
	r.ok(r.client.Confirm(r.active))
	r.next(r.server, Established, 0)
	route, err := r.server.Query(req.ID)
	if err != nil || route.Local != service || route.Device == nil || !route.Path || route.Peer != verbs.GIDFromAddr(netip.MustParseAddr("127.0.0.2")) {
		t.Errorf("route of the passive id = %+v, %v", route, err)
	}
}

// TestDisconnect: both sides get one DISCONNECTED, then TIMEWAIT_EXIT. Further calls have no
// effect.
func TestDisconnect(t *testing.T) {
	for _, both := range []bool{false, true} {
		r := newRig(t, 0)
		passive := r.connected()
		r.ok(r.client.Disconnect(r.active))
		if both {
			r.ok(r.server.Disconnect(passive))
		}
		if e := r.next(r.server, Disconnected, 0); e.UID != passiveUID {
			t.Errorf("the passive side is %d, want %d", e.UID, passiveUID)
		}
		r.next(r.client, Disconnected, 0)
		r.ok(r.client.Disconnect(r.active))
		r.ok(r.server.Disconnect(passive))
		r.none(r.client)
		r.clock.fire()
		r.next(r.client, TimewaitExit, 0)
		r.next(r.server, TimewaitExit, 0)
		r.none(r.server)
		if len(r.net.ends) != 0 {
			t.Errorf("%d ends of connections are open, want none", len(r.net.ends))
		}
	}
}

// TestRejections: programs get the reason and 148 bytes of data.
func TestRejections(t *testing.T) {
	t.Run("by the program", func(t *testing.T) {
		r := newRig(t, 0)
		r.ok(r.server.Reject(r.request().ID, 0, []byte("no")))
		if e := r.next(r.client, Rejected, 28); e.Param.Private.Len != 148 || string(e.Param.Private.Data[:3]) != "no\x00" {
			t.Errorf("rejection %+v, want 148 bytes of data", e)
		}
	})
	t.Run("no listener", func(t *testing.T) {
		r := newRig(t, 0)
		if _, err := r.server.Destroy(r.listener); err != nil {
			t.Fatal(err)
		}
		r.ok(r.client.Connect(r.routed(), &Param{}, nil))
		r.next(r.client, Rejected, 8)
	})
	t.Run("full backlog", func(t *testing.T) {
		r := newRig(t, 2)
		for range 2 {
			r.ok(r.client.Connect(r.routed(), &Param{}, nil))
		}
		r.net.drain()
		third := r.routed()
		r.ok(r.client.Connect(third, &Param{}, nil))
		r.next(r.client, Rejected, 3)
		r.next(r.server, ConnectRequest, 0) // frees a slot
		r.ok(r.client.Connect(r.routed(), &Param{}, nil))
		r.none(r.client)
		r.next(r.server, ConnectRequest, 0)
		r.next(r.server, ConnectRequest, 0)
	})
	t.Run("destroyed request", func(t *testing.T) {
		r := newRig(t, 0)
		if n, err := r.server.Destroy(r.request().ID); n != 0 || err != nil {
			t.Errorf("Destroy = %d, %v, want no delivered events", n, err)
		}
		r.next(r.client, Rejected, 28)
	})
	t.Run("destroyed listener", func(t *testing.T) {
		r := newRig(t, 0)
		r.ok(r.client.Connect(r.routed(), &Param{}, nil))
		r.net.drain()
		if n, err := r.server.Destroy(r.listener); n != 0 || err != nil || r.serverTokens != 0 {
			t.Errorf("Destroy = %d, %v with %d tokens, want no events", n, err, r.serverTokens)
		}
		r.next(r.client, Rejected, 28)
	})
	t.Run("destroyed before the confirmation", func(t *testing.T) {
		r := newRig(t, 0)
		r.ok(r.server.Accept(r.request().ID, passiveUID, &Param{}, nil))
		r.next(r.client, ConnectResponse, 0)
		if n, err := r.client.Destroy(r.active); n != 3 || err != nil {
			t.Errorf("Destroy = %d, %v, want 3 delivered events", n, err)
		}
		r.next(r.server, Rejected, 28)
	})
	t.Run("gone before the acceptance", func(t *testing.T) {
		r := newRig(t, 0)
		passive := r.request().ID
		if _, err := r.client.Destroy(r.active); err != nil {
			t.Fatal(err)
		}
		r.none(r.server) // the program has not assigned a uid
		r.want(syscall.EINVAL, r.server.Accept(passive, passiveUID, &Param{}, nil))
	})
}

// TestLimits: private data, states, numbers and files.
func TestLimits(t *testing.T) {
	r := newRig(t, 0)
	n := r.routed()
	r.want(syscall.EINVAL, r.client.Connect(n, &Param{}, make([]byte, 57)))
	r.ok(r.client.Connect(n, &Param{}, make([]byte, 56)))
	r.want(syscall.EINVAL, r.client.Connect(n, &Param{}, nil))
	passive := r.next(r.server, ConnectRequest, 0).ID
	r.want(syscall.EINVAL, r.server.Reject(passive, 0, make([]byte, 149)))
	r.want(syscall.EINVAL, r.server.Accept(passive, passiveUID, &Param{}, make([]byte, 197)))
	r.ok(r.server.Accept(passive, passiveUID, &Param{}, make([]byte, 196)))

	m := r.must(r.client.Create(9, SpaceTCP))
	r.want(syscall.EINVAL, r.client.ResolveRoute(m))
	r.want(syscall.EINVAL, r.client.Connect(m, &Param{}, nil))
	r.want(syscall.EINVAL, r.client.Disconnect(m))
	r.want(syscall.ENOENT, r.client.Disconnect(1000))
	r.want(syscall.EADDRINUSE, r.client.Bind(m, service))
	if _, _, err := r.client.QPAttr(m, verbs.StateInit); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("attributes without a device: %v, want EINVAL", err)
	}
	other := r.client.m.Open(new(count))
	r.want(syscall.EINVAL, other.Bind(m, service))
	if _, err := r.client.Create(1, 0x013f); err == nil {
		t.Error("an id of an unknown port space was created")
	}
	r.next(r.client, ConnectResponse, 0)
	r.ok(r.client.Resolve(m, netip.AddrPort{}, netip.MustParseAddrPort("203.0.113.1:7471")))
	r.next(r.client, AddrError, -int32(syscall.ENODEV))
}

// TestMigrate: waiting events move to the new file, and delivered ones are counted once.
func TestMigrate(t *testing.T) {
	r := newRig(t, 0)
	passive := r.connected()
	var tokens count
	to := r.server.m.Open(&tokens)
	r.ok(r.client.Disconnect(r.active))
	r.net.drain()
	if n, err := to.Migrate(r.server, passive); n != 1 || err != nil || tokens != 1 {
		t.Errorf("Migrate = %d, %v with %d tokens, want 1 delivered event and 1 token", n, err, tokens)
	}
	r.none(r.server)
	r.next(to, Disconnected, 0)
	if n, err := to.Destroy(passive); n != 2 || err != nil {
		t.Errorf("Destroy = %d, %v, want 2 delivered events", n, err)
	}
	r.want(syscall.ENOENT, func() error { _, err := to.Migrate(r.server, passive); return err }())

	r.next(r.client, Disconnected, 0)

	// A listening id keeps its waiting requests.
	r.ok(r.client.Connect(r.routed(), &Param{}, nil))
	r.net.drain()
	if _, err := to.Migrate(r.server, r.listener); err != nil {
		t.Fatal(err)
	}
	r.none(r.server)
	r.ok(to.Accept(r.next(to, ConnectRequest, 0).ID, passiveUID, &Param{}, nil))
}

// TestKilledPeer: losing the connection closes it, in every state.
func TestKilledPeer(t *testing.T) {
	r := newRig(t, 0)
	passive := r.connected()
	r.server.m.ids[passive].Lost(0)
	r.next(r.server, Disconnected, 0)
	r.net.drain()
	r.next(r.client, Disconnected, 0)

	n := r.routed()
	r.ok(r.client.Connect(n, &Param{}, nil))
	r.client.m.ids[n].Lost(syscall.ETIMEDOUT)
	r.next(r.client, Unreachable, -int32(syscall.ETIMEDOUT))
}

// TestClose: closing a file destroys its ids.
func TestClose(t *testing.T) {
	r := newRig(t, 0)
	r.connected()
	r.server.Close()
	r.next(r.client, Disconnected, 0)
	for n, i := range r.server.m.ids {
		if i != nil {
			t.Errorf("id %d exists after the close", n)
		}
	}
	if _, err := r.server.Create(1, SpaceTCP); !errors.Is(err, syscall.EBADF) {
		t.Errorf("Create on a closed file = %v, want EBADF", err)
	}
}

// TestNumbers: an id gets the lowest free number, up to a limit.
func TestNumbers(t *testing.T) {
	f := newManager(newNetwork(), &clock{}, "127.0.0.1").Open(new(count))
	for want := uint32(1); want < maxIDs; want++ {
		if n, err := f.Create(1, SpaceTCP); n != want || err != nil {
			t.Fatalf("Create = %d, %v, want %d", n, err, want)
		}
	}
	if _, err := f.Create(1, SpaceTCP); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("Create = %v, want ENOMEM", err)
	}
	for _, n := range []uint32{4000, 17} {
		if _, err := f.Destroy(n); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []uint32{17, 4000} {
		if n, err := f.Create(1, SpaceTCP); n != want || err != nil {
			t.Errorf("Create = %d, %v, want %d", n, err, want)
		}
	}
}

// TestDatagrams: one request and one response carry the peer's address, QP and Q_Key, without
// further messages.
func TestDatagrams(t *testing.T) {
	r := newRig(t, 0)
	udp := netip.MustParseAddrPort("127.0.0.1:7174")
	l := r.must(r.server.Create(listenUID, SpaceUDP))
	r.ok(r.server.Bind(l, udp))
	r.ok(r.server.Listen(l, 2))
	to := func(dst netip.AddrPort) uint32 {
		n := r.must(r.client.Create(activeUID, SpaceUDP))
		r.ok(r.client.Resolve(n, netip.AddrPort{}, dst))
		r.next(r.client, AddrResolved, 0)
		r.ok(r.client.ResolveRoute(n))
		r.next(r.client, RouteResolved, 0)
		return n
	}
	n := to(udp)
	a, mask, err := r.client.QPAttr(n, verbs.StateInit)
	if err != nil || a.QKey != 0x01234567 || mask&(verbs.AttrQKey|verbs.AttrAccess) != verbs.AttrQKey {
		t.Errorf("INIT = %+v, %v, %v, want a Q_Key and no access", a, mask, err)
	}
	r.want(syscall.EINVAL, r.client.Connect(n, &Param{}, make([]byte, 181)))
	r.ok(r.client.Connect(n, &Param{}, []byte("hello")))
	req := r.next(r.server, ConnectRequest, 0)
	if req.UID != listenUID || req.AH == nil || req.Param.Private.Len != 180 || !bytes.HasPrefix(req.Param.Private.Data[:], []byte("hello\x00")) {
		t.Errorf("request = %+v, want 180 bytes of data", req)
	}
	r.want(syscall.EINVAL, r.server.Accept(req.ID, passiveUID, &Param{}, make([]byte, 137)))
	r.ok(r.server.Accept(req.ID, passiveUID, &Param{QPN: 0x22, QKey: 5}, []byte("welcome")))
	e := r.next(r.client, Established, 0)
	if e.Param.QPN != 0x22 || e.Param.QKey != 5 || e.AH.DGID != verbs.GIDFromAddr(udp.Addr()) || e.AH.DLID != 5000 || e.Param.Private.Len != 136 {
		t.Errorf("response = %+v, want the peer's QP, Q_Key and address", e)
	}
	r.none(r.server)
	r.none(r.client)

	for _, tt := range []struct {
		answer func(id uint32)
		status int32
	}{
		{func(id uint32) { r.ok(r.server.Reject(id, 0, nil)) }, 2},
		{func(id uint32) { r.must(r.server.Destroy(id)) }, 2},
	} {
		r.ok(r.client.Connect(to(udp), &Param{}, nil))
		tt.answer(r.next(r.server, ConnectRequest, 0).ID)
		r.next(r.client, Unreachable, tt.status)
	}
	r.ok(r.client.Connect(to(service), &Param{}, nil)) // a port for connections
	r.next(r.client, Unreachable, 1)
	r.must(r.client.Destroy(n))
}

// TestGroups: a member gets its group's address. Its events are counted for the membership, and
// dropped with it or its id.
func TestGroups(t *testing.T) {
	r := newRig(t, 0)
	addr := netip.MustParseAddr("239.1.2.3")
	n := r.must(r.client.Create(activeUID, SpaceUDP))
	join := func() (uint32, error) { return r.client.Join(n, 9, addr) }
	if _, err := join(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Join without a device: %v, want EINVAL", err)
	}
	r.ok(r.client.Resolve(n, netip.AddrPort{}, netip.AddrPortFrom(addr, 0)))
	r.next(r.client, AddrResolved, 0)
	if _, err := r.client.Join(n, 9, service.Addr()); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Join of a unicast address: %v, want EINVAL", err)
	}
	g := r.must(join())
	e := r.next(r.client, MulticastJoin, 0)
	if e.UID != 9 || e.ID != g || e.AH.DGID != verbs.GIDFromAddr(addr) || e.AH.DLID != 0 || e.Param.QPN != 0xffffff || e.Param.QKey != 0x01234567 {
		t.Errorf("event %+v, want the address of the group", e)
	}
	if k := r.must(r.client.Leave(g)); k != 1 {
		t.Errorf("Leave = %d delivered events, want 1", k)
	}
	_, err := r.client.Leave(g)
	r.want(syscall.ENOENT, err)
	g = r.must(join())
	if k := r.must(r.client.Leave(g)); k != 0 {
		t.Errorf("Leave = %d delivered events, want 0", k)
	}
	r.none(r.client)
	g = r.must(join())
	if k := r.must(r.client.Destroy(n)); k != 1 {
		t.Errorf("Destroy = %d delivered events, want 1", k)
	}
	r.none(r.client)
	_, err = r.client.Leave(g)
	r.want(syscall.ENOENT, err)
}
