//go:build linux

package softnic_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// udpRig is two loopback NICs on separate links.
type udpRig struct {
	*rig
	links [2]*softnic.UDPLink
	addrs [2]netip.Addr
}

func newUDPRig(tb testing.TB, cfg softnic.UDPConfig) *udpRig {
	tb.Helper()
	u := &udpRig{rig: &rig{tb: tb}}
	for i := range 2 {
		link, err := softnic.NewUDPLink(&cfg)
		must(tb, err)
		u.links[i], u.addrs[i] = link, netip.AddrFrom4([4]byte{127, 0, 0, byte(11 + i)})
		nic, err := softnic.New(link, softnic.Config{Addr: u.addrs[i]})
		must(tb, err)
		tb.Cleanup(func() { must(tb, nic.Close()) })
		ctx, err := nic.Open()
		must(tb, err)
		pd, err := ctx.AllocPD()
		must(tb, err)
		if i == 0 {
			u.a, u.ca, u.pa = nic, ctx, pd
		} else {
			u.b, u.cb, u.pb = nic, ctx, pd
		}
	}
	return u
}

// await polls for n completions and returns them.
func await(tb testing.TB, cq verbs.CQ, n int) []verbs.WC {
	tb.Helper()
	var all []verbs.WC
	wcs := make([]verbs.WC, 16)
	for deadline := time.Now().Add(2 * time.Minute); len(all) < n; {
		k, err := cq.Poll(wcs)
		must(tb, err)
		all = append(all, wcs[:k]...)
		if k > 0 {
			continue
		}
		if runtime.Gosched(); time.Now().After(deadline) {
			tb.Fatalf("%d completions after 2 minutes, want %d", len(all), n)
		}
	}
	return all
}

func succeeded(tb testing.TB, wcs []verbs.WC) {
	tb.Helper()
	for i := range wcs {
		if err := wcs[i].Err(); err != nil {
			tb.Fatalf("completion %d: %v, want success", i, err)
		}
	}
}

// A READ of many megabytes is split and arrives intact, although READ responses are not acknowledged;
// concurrent READs share the outstanding limit.
func TestUDPLargeReads(t *testing.T) {
	u := newUDPRig(t, softnic.UDPConfig{})
	const size, count = 8*mib + 12345, 4
	dst, dstMR := memory(t, u.pa, size*count)
	src, srcMR := memory(t, u.pb, size*count)
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i ^ i>>8 ^ i>>16)
	}
	clear(dst.Bytes())
	cq := newCQ(t, u.ca, 16)
	qa, _ := u.pair(verbs.RC, cq, newCQ(t, u.cb, 16), 16)
	for i := range count {
		wr := verbs.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, RemoteAddr: srcMR.Addr() + uint64(i*size), RKey: srcMR.RKey()}
		wr.SetSGE(verbs.SGE{Addr: dstMR.Addr() + uint64(i*size), Length: size, LKey: dstMR.LKey()})
		if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
			t.Fatalf("PostSend: %v", err)
		}
	}
	succeeded(t, await(t, cq, count))
	if !bytes.Equal(dst.Bytes(), src.Bytes()) {
		t.Error("the bytes that were read are not those of the peer")
	}
}

// On a cut path requests fail as RC specifies; a restored path carries traffic again.
func TestUDPCut(t *testing.T) {
	u := newUDPRig(t, softnic.UDPConfig{})
	_, src := memory(t, u.pa, 64)
	_, dst := memory(t, u.pb, 64)
	cq := newCQ(t, u.ca, 64)
	qa, _ := u.pair(verbs.RC, cq, newCQ(t, u.cb, 16), 4)
	u.links[0].Cut(u.a, u.addrs[1])
	if _, err := qa.PostSend([]verbs.SendWR{writeWR(src, dst, 64)}); err != nil {
		t.Fatalf("PostSend: %v", err)
	}
	if wc := await(t, cq, 1)[0]; wc.Status != verbs.StatusRetryExcErr {
		t.Errorf("write over a cut way = %v, want %v", wc.Status, verbs.StatusRetryExcErr)
	}
	if s := u.links[0].FaultStats(u.a, u.addrs[1]); s.Cut == 0 || s.Delivered != 0 {
		t.Errorf("fault stats %+v, want packets that were cut and none delivered", s)
	}
	u.links[0].Restore(u.a, u.addrs[1])
	must(t, u.links[0].Impair(u.a, u.addrs[1], softnic.Impairment{Loss: 0.2, Corrupt: 0.1}))
	qb, _ := u.pair(verbs.RC, cq, newCQ(t, u.cb, 16), 64)
	for range 50 {
		if _, err := qb.PostSend([]verbs.SendWR{writeWR(src, dst, 64)}); err != nil {
			t.Fatalf("PostSend: %v", err)
		}
	}
	succeeded(t, await(t, cq, 50))
	if s := u.b.Stats(); s.BadICRC == 0 {
		t.Error("no packet with a bad ICRC, want those that were corrupted")
	}
}

// recorder is a Capture that checks every packet.
type recorder struct {
	tb      testing.TB
	mu      sync.Mutex
	opcodes []uint8
	ids     int
}

func (r *recorder) Packet(at int64, src, dst netip.AddrPort, id uint16, _, _ uint8, parts ...[]byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := bytes.Join(parts, nil)
	var h roce.Header
	if _, reason := h.Decode(b); reason != roce.OK || h.HeaderICRC || at <= 0 {
		r.tb.Errorf("captured at %d something of %d bytes from %v to %v: %v", at, len(b), src, dst, reason)
		return
	}
	flow, err := roce.NewFlow(src, dst)
	if err != nil || flow.ICRC(b, id) != roce.Received(b) {
		r.tb.Errorf("captured %v to %v, identification %d: the ICRC is not that of the packet (%v)", src, dst, id, err)
	}
	r.opcodes = append(r.opcodes, h.Opcode)
	if id > 0 {
		r.ids++
	}
}

// Captured packets match the wire in both directions, including the IP identification covered by the
// ICRC. Their ICRCs are always full.
func TestUDPCapture(t *testing.T) {
	for icrc := range softnic.ICRCHeaders + 1 {
		rec, plain := &recorder{tb: t}, &recorder{tb: t}
		captureWrites(t, softnic.UDPConfig{ICRC: icrc, Capture: rec, CapturePlain: plain})
		for _, want := range []uint8{roce.OpWriteFirst, roce.OpWriteMiddle, roce.OpWriteLast, roce.OpWriteOnly, roce.OpAck} {
			if !slices.Contains(rec.opcodes, want) {
				t.Errorf("captured %v, want opcode %#x among them", rec.opcodes, want)
			}
		}
		if rec.ids == 0 || !slices.Equal(rec.opcodes, plain.opcodes) {
			t.Errorf("captured %d packets of runs, and plain %v, want some, and %v", rec.ids, plain.opcodes, rec.opcodes)
		}
	}
}

// captureWrites lets a NIC on a link with captures write to another.
func captureWrites(t *testing.T, cfg softnic.UDPConfig) {
	t.Helper()
	link, err := softnic.NewUDPLink(&cfg)
	must(t, err)
	u := newUDPRig(t, softnic.UDPConfig{})
	nic, err := softnic.New(link, softnic.Config{Addr: netip.MustParseAddr("127.0.0.13")})
	must(t, err)
	ctx, err := nic.Open()
	must(t, err)
	u.ca = ctx
	u.pa, err = ctx.AllocPD()
	must(t, err)
	_, src := memory(t, u.pa, 64*kib)
	_, dst := memory(t, u.pb, 64*kib)
	cq := newCQ(t, u.ca, 16)
	qa, _ := u.pair(verbs.RC, cq, newCQ(t, u.cb, 16), 16)
	if _, err := qa.PostSend([]verbs.SendWR{writeWR(src, dst, 64*kib), writeWR(src, dst, 5)}); err != nil {
		t.Fatalf("PostSend: %v", err)
	}
	succeeded(t, await(t, cq, 2))
	must(t, src.Close())
	must(t, nic.Close())
}

// Garbage is counted and dropped, whatever its source, and the NIC keeps working.
func TestUDPGarbage(t *testing.T) {
	u := newUDPRig(t, softnic.UDPConfig{})
	_, src := memory(t, u.pa, 4096)
	_, dst := memory(t, u.pb, 4096)
	cq := newCQ(t, u.ca, 16)
	qa, qb := u.pair(verbs.RC, cq, newCQ(t, u.cb, 16), 16)
	at, err := qb.Endpoint()
	must(t, err)
	port := roce.Port
	if at.LID != 0 {
		port = int(at.LID)
	}
	conn, err := net.DialUDP("udp4", nil, &net.UDPAddr{IP: net.IPv4(127, 0, 0, 12), Port: port})
	must(t, err)
	defer func() { must(t, conn.Close()) }()
	good := make([]byte, 20) // an acknowledgement with a wrong ICRC
	good[0] = roce.OpAck
	spoil(t, good, conn.LocalAddr(), conn.RemoteAddr())
	for _, b := range [][]byte{{}, {1}, make([]byte, 15), make([]byte, 16), make([]byte, 9000), bytes.Repeat([]byte{0xff}, 64), good} {
		_, err := conn.Write(b)
		must(t, err)
	}
	if _, err := qa.PostSend([]verbs.SendWR{writeWR(src, dst, 4096)}); err != nil {
		t.Fatalf("PostSend: %v", err)
	}
	succeeded(t, await(t, cq, 1))
	if s := u.b.Stats(); s.Malformed < 4 || s.BadICRC != 1 {
		t.Errorf("malformed %d, bad ICRC %d, want at least 4, and 1", s.Malformed, s.BadICRC)
	}
}

// spoil gives a datagram an ICRC that is wrong for every IPv4 identification. A random one is right for some
// identification once in 65,536 times.
func spoil(t *testing.T, datagram []byte, from, to net.Addr) {
	t.Helper()
	flow, err := roce.NewFlow(from.(*net.UDPAddr).AddrPort(), to.(*net.UDPAddr).AddrPort())
	must(t, err)
	var e roce.Explainer
	for bit := range 32 {
		flow.Seal(datagram, 0)
		datagram[len(datagram)-1-bit/8] ^= 1 << (bit % 8)
		if _, ok := flow.Check(datagram, &e); !ok {
			return
		}
	}
	t.Fatalf("an ICRC with any one bit changed is right, want at least one that is not")
}

// An invalid configuration is refused, with the reason.
func TestUDPRefusals(t *testing.T) {
	for name, cfg := range map[string]softnic.UDPConfig{
		"sockets":    {Sockets: -1},
		"buffer":     {Buffer: -1},
		"window":     {Window: 1 << 24},
		"nic window": {NICWindow: -1},
		"icrc":       {ICRC: softnic.ICRCHeaders + 1},
		"impairment": {Impairment: softnic.Impairment{Loss: 2}},
	} {
		if _, err := softnic.NewUDPLink(&cfg); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: NewUDPLink = %v, want ErrInvalid", name, err)
		}
	}
	link, err := softnic.NewUDPLink(&softnic.UDPConfig{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.14")}})
	must(t, err)
	nic, err := softnic.New(link, softnic.Config{})
	must(t, err)
	defer func() { must(t, nic.Close()) }()
	if _, err := softnic.New(link, softnic.Config{}); err == nil {
		t.Error("a second NIC on a link with one address = nil, want an error")
	}
	if _, err := softnic.New(link, softnic.Config{Addr: netip.MustParseAddr("192.0.2.1")}); err == nil {
		t.Error("a NIC on a foreign address = nil, want an error")
	}
	ctx, err := nic.Open()
	must(t, err)
	pd, err := ctx.AllocPD()
	must(t, err)
	if _, err := pd.CreateAH(verbs.AHAttr{DGID: verbs.GIDFromAddr(netip.MustParseAddr("2001:db8::1"))}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a way from IPv4 to IPv6 = %v, want ErrInvalid", err)
	}
}

// TestUDPOnCaller: on loopback, posting moves the data, because there is no separate wire. Injected
// faults delay packets and so count as a wire.
func TestUDPOnCaller(t *testing.T) {
	for _, tt := range []struct {
		name string
		imp  softnic.Impairment
		want bool
	}{{"loopback", softnic.Impairment{}, true}, {"impaired", softnic.Impairment{Rate: 1e9}, false}} {
		t.Run(tt.name, func(t *testing.T) {
			r := newUDPRig(t, softnic.UDPConfig{Impairment: tt.imp})
			if p, err := r.ca.QueryPort(1); err != nil || p.OnCaller != tt.want {
				t.Errorf("QueryPort: OnCaller %v, %v, want %v", p.OnCaller, err, tt.want)
			}
		})
	}
}
