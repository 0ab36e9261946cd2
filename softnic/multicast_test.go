//go:build linux

package softnic_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// multicaster is a QP that can be attached to groups.
type multicaster interface {
	AttachMulticast(mgid verbs.GID) error
	DetachMulticast(mgid verbs.GID) error
}

// listener is a UD QP with receives, on a NIC with its own link or next to another NIC.
type listener struct {
	t   *testing.T
	nic *softnic.NIC
	ctx verbs.Context
	pd  verbs.PD
	cq  verbs.CQ
	qp  verbs.QP
	mem *verbs.Memory
	mr  verbs.MR
}

const (
	listenerReceives = 8
	listenerBytes    = verbs.GRHLen + 64
)

// newListener returns a listener on a NIC at addr, as another process has it.
func newListener(t *testing.T, addr netip.Addr) *listener {
	t.Helper()
	link, err := softnic.NewUDPLink(&softnic.UDPConfig{Addrs: []netip.Addr{addr}, AssumeSoftNICs: true})
	must(t, err)
	l := &listener{t: t}
	l.nic, l.ctx, l.pd = plug(t, link)
	return l.another()
}

// another returns a listener on the same NIC.
func (l *listener) another() *listener {
	l.t.Helper()
	o := &listener{t: l.t, nic: l.nic, ctx: l.ctx, pd: l.pd, cq: newCQ(l.t, l.ctx, 64)}
	o.mem, o.mr = memory(l.t, o.pd, listenerReceives*listenerBytes)
	var err error
	o.qp, err = o.pd.CreateQP(verbs.QPConfig{Type: verbs.UD, MaxSendWR: 16, MaxRecvWR: listenerReceives, SendCQ: o.cq, RecvCQ: o.cq})
	must(l.t, err)
	must(l.t, o.qp.Connect(verbs.Endpoint{}))
	for i := range listenerReceives {
		wr := verbs.RecvWR{WRID: uint64(i)}
		wr.SetSGE(verbs.SGE{Addr: o.mem.Addr() + uint64(i*listenerBytes), Length: listenerBytes, LKey: o.mr.LKey()})
		postRecv(l.t, o.qp, []verbs.RecvWR{wr})
	}
	return o
}

func (l *listener) attach(mgid verbs.GID) error { return l.qp.(multicaster).AttachMulticast(mgid) }
func (l *listener) detach(mgid verbs.GID) error { return l.qp.(multicaster).DetachMulticast(mgid) }

// send sends a datagram of one byte to a group, with an immediate.
func (l *listener) send(mgid verbs.GID, imm uint32) {
	l.t.Helper()
	ah, err := l.pd.CreateAH(verbs.AHAttr{DGID: mgid, HopLimit: 1, DLID: 0xbfff}) // the LID is ignored
	must(l.t, err)
	wr := verbs.SendWR{Opcode: verbs.OpSendWithImm, Imm: imm, AH: ah.Handle(), RemoteQPN: 0xffffff, RemoteQKey: verbs.DefaultQKey}
	wr.SetSGE(verbs.SGE{Addr: l.mem.Addr(), Length: 1, LKey: l.mr.LKey()})
	if _, err := l.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		l.t.Fatal(err)
	}
	must(l.t, ah.Close())
}

// gets waits for the next datagram, which must have an immediate, and returns its GRH.
func (l *listener) gets(imm uint32) []byte {
	l.t.Helper()
	wcs := make([]verbs.WC, 1)
	for {
		n, err := l.cq.Poll(wcs)
		must(l.t, err)
		if n == 1 && wcs[0].Imm != imm {
			l.t.Fatalf("%s: the next completion is %+v, want a datagram with immediate %d", l.nic.Name(), wcs[0], imm)
		}
		if n == 1 {
			return l.mem.Bytes()[wcs[0].WRID*listenerBytes:][:verbs.GRHLen]
		}
	}
}

// multicastAddr returns an interface address with IPv6 multicast, and a group that stays on the host.
func multicastAddr(t *testing.T) (addr netip.Addr, group string) {
	t.Helper()
	interfaces, _ := net.Interfaces() // without interfaces the test is skipped
	for _, in := range interfaces {
		addrs, _ := in.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && in.Flags&net.FlagMulticast != 0 && in.Flags&net.FlagUp != 0 && p.Addr().Is6() && p.Addr().IsGlobalUnicast() {
				return p.Addr(), "ff01::5eed:1"
			}
		}
	}
	t.Skip("no interface has an IPv6 address and multicast")
	return addr, ""
}

// TestMulticast: every QP attached to a group gets one copy of each message, in order: on other NICs,
// on the sender's NIC, and the sender itself. Other QPs do not receive any.
func TestMulticast(t *testing.T) {
	noRaces(t)
	local := netip.MustParseAddr("127.0.0.21")
	for name, groups := range map[string][2]string{
		"ipv4":    {"::ffff:239.77.1.1", "::ffff:239.77.1.2"},
		"on ipv4": {"ff12:401b:ffff::4d:103", "ff12:401b:ffff::4d:104"},
		"ipv6":    {"", "ff01::5eed:2"},
	} {
		t.Run(name, func(t *testing.T) {
			addr := local
			if groups[0] == "" {
				addr, groups[0] = multicastAddr(t)
			}
			group, other := verbs.GID(netip.MustParseAddr(groups[0]).As16()), verbs.GID(netip.MustParseAddr(groups[1]).As16())
			a, b, c := newListener(t, addr), newListener(t, addr), newListener(t, addr)
			a2, b2, stranger := a.another(), b.another(), b.another()
			members := []*listener{a, a2, b, c}
			for _, l := range members {
				must(t, l.attach(group))
				must(t, l.attach(group)) // attaching twice has no effect
			}
			must(t, b2.attach(other))
			must(t, stranger.qp.Modify(verbs.QPAttr{QKey: 5}, verbs.AttrQKey))
			must(t, stranger.attach(group))
			a.send(other, 1)
			for imm := uint32(2); imm < 5; imm++ {
				a.send(group, imm)
			}
			b2.gets(1)
			for imm := uint32(2); imm < 5; imm++ {
				for _, l := range members { // including the sender
					l.gets(imm)
				}
			}
			if n := b.nic.Stats().BadQKey; n != 3 {
				t.Errorf("%d datagrams had another Q_Key, want 3", n)
			}
			must(t, b.detach(group))
			must(t, b2.attach(group))
			a.send(group, 5)
			b2.gets(5)
			must(t, b.attach(group))
			a.send(group, 6)
			b.gets(6) // and not 5
			grh := b2.gets(6)
			wire := verbs.GID(grh[24:40])
			if addr.Is4() {
				wire = verbs.GIDFromAddr(netip.AddrFrom4([4]byte(grh[36:40])))
			}
			if want := group; name != "on ipv4" && wire != want {
				t.Errorf("the GRH names %s, want %s", wire, want)
			} else if name == "on ipv4" && wire.Addr() != netip.MustParseAddr("239.77.1.3") {
				t.Errorf("the GRH names %s, want 239.77.1.3", wire)
			}
		})
	}
}

// joined reports whether the kernel has joined an IPv4 group.
func joined(t *testing.T, group netip.Addr) bool {
	t.Helper()
	table, err := os.ReadFile("/proc/net/igmp")
	must(t, err)
	b := group.As4()
	return strings.Contains(string(table), fmt.Sprintf("%02X%02X%02X%02X", b[3], b[2], b[1], b[0]))
}

// TestMulticastClose: when the last member leaves, the NIC leaves the group, whether the member is detached
// or its context or NIC is closed.
func TestMulticastClose(t *testing.T) {
	noRaces(t)
	addr := netip.MustParseAddr("239.77.2.1")
	group := verbs.GIDFromAddr(addr)
	for name, leave := range map[string]func(l, second *listener) error{
		"detach":  func(l, second *listener) error { return errors.Join(second.detach(group), l.detach(group)) },
		"context": func(l, _ *listener) error { return l.ctx.Close() },
		"NIC":     func(l, _ *listener) error { return l.nic.Close() },
	} {
		l := newListener(t, netip.MustParseAddr("127.0.0.21"))
		second := l.another()
		must(t, l.attach(group))
		must(t, second.attach(group))
		l.send(group, 7)
		l.gets(7)
		second.gets(7)
		if !joined(t, addr) {
			t.Fatalf("the kernel has not joined %s", addr)
		}
		must(t, leave(l, second))
		if joined(t, addr) {
			t.Errorf("%s: the kernel has not left %s", name, addr)
		}
	}
}

// TestMulticastRefused: invalid group operations are refused with a descriptive error. A sealed QP never
// sends plain packets.
func TestMulticastRefused(t *testing.T) {
	noRaces(t)
	group := verbs.GIDFromAddr(netip.MustParseAddr("239.77.3.1"))
	l := newListener(t, netip.MustParseAddr("127.0.0.21"))
	same := group
	same[0], same[1] = 0xff, 0x0e // the same last bytes
	six := newListener(t, netip.IPv6Loopback())
	seal, _ := newSeals(t)
	cfg := verbs.QPConfig{Type: verbs.UD, SendCQ: l.cq, RecvCQ: l.cq, MaxSendWR: 1}
	cfg.Path.Seal = seal
	sealed, err := l.pd.CreateQP(cfg)
	must(t, err)
	rc, err := l.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: l.cq, RecvCQ: l.cq, MaxSendWR: 1})
	must(t, err)
	_, ctx, pd := plug(t, softnic.NewMemoryLink(nil))
	cq := newCQ(t, ctx, 1)
	inside, err := pd.CreateQP(verbs.QPConfig{Type: verbs.UD, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1})
	must(t, err)
	must(t, l.attach(group))
	_, toGroup := l.pd.CreateAH(verbs.AHAttr{DGID: group, Seal: seal})
	for _, tt := range []struct {
		name string
		err  error
		want error
	}{
		{"an RC QP", rc.(multicaster).AttachMulticast(group), verbs.ErrInvalid},
		{"a sealed QP", sealed.(multicaster).AttachMulticast(group), verbs.ErrNotSupported},
		{"a sealed AH", toGroup, verbs.ErrNotSupported},
		{"a memory link", inside.(multicaster).AttachMulticast(group), verbs.ErrNotSupported},
		{"an address of a host", l.attach(verbs.GIDFromAddr(netip.MustParseAddr("127.0.0.1"))), verbs.ErrInvalid},
		{"a second group with the address of the first", l.another().attach(same), verbs.ErrInvalid},
		{"a group of IPv4 on IPv6", six.attach(group), verbs.ErrInvalid},
		{"a group that was not joined", l.detach(same), verbs.ErrInvalid},
		{"closing a member", l.qp.Close(), verbs.ErrBusy},
		{"a connection to a group", rc.Connect(verbs.Endpoint{QPN: 5, GID: group, MTU: verbs.MTU1024}), verbs.ErrInvalid},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s: the error is %v, want one with %v", tt.name, tt.err, tt.want)
		}
	}
	must(t, l.detach(group))
	must(t, l.qp.Close())
}
