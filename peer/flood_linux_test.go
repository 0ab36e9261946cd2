package peer_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/roce"
	"ibverbx/peer"
	"ibverbx/reliable"
	"ibverbx/softnic"
)

// attacker sends packets to two sealed Sessions. It sees all packets, and knows the QP numbers, PSNs, addresses and keys.
type attacker struct {
	t     testing.TB
	rng   *rand.Rand
	spies [2]*spy
	// paths are the lanes of each side, targets where it receives plain packets.
	paths   [2][]ibverbx.LanePath
	targets [2]netip.AddrPort
	conn    *net.UDPConn
	// key and addr belong to unused memory on each side.
	key  [2]uint32
	addr [2]uint64
	sent int
}

// run sends up to 100,000 packets per second until stop is closed.
func (a *attacker) run(stop chan struct{}, next func() (netip.AddrPort, []byte)) {
	for begin, before := time.Now(), a.sent; ; {
		select {
		case <-stop:
			return
		case <-time.After(100 * time.Microsecond):
		}
		for due := before + int(time.Since(begin).Seconds()*100_000); a.sent < due; a.sent++ {
			to, b := next()
			_, _ = a.conn.WriteToUDPAddrPort(b, to) // a full socket buffer drops it
		}
	}
}

// next returns a packet for one of the sides.
func (a *attacker) next() (netip.AddrPort, []byte) {
	side := a.rng.IntN(2)
	s, ok := a.spies[1-side].last(a.rng.IntN(200))
	kind := a.rng.IntN(6)
	if !ok || kind == 0 {
		return a.targets[side], a.plain(side)
	}
	switch kind {
	case 1: // a replay
	case 2:
		s.packet[a.rng.IntN(len(s.packet))] ^= 1 << a.rng.IntN(8)
	case 3:
		s.packet = s.packet[:a.rng.IntN(len(s.packet))]
	case 4:
		return a.forged()
	case 5:
		return a.noise()
	}
	return s.to, s.packet
}

// forged returns a packet of 128 bytes with the right index, a new counter and one of several epochs.
func (a *attacker) forged() (netip.AddrPort, []byte) {
	s, _ := a.spies[a.rng.IntN(2)].last(0) // it exists
	b := append(s.packet[:16:16], make([]byte, 112)...)
	binary.BigEndian.PutUint64(b[8:], binary.BigEndian.Uint64(b[8:])+1+uint64(a.rng.IntN(1<<20)))
	binary.BigEndian.PutUint16(b[6:], uint16(a.rng.IntN(3)))
	return s.to, b
}

// noise returns 128 random bytes, which have the version of a sealed packet.
func (a *attacker) noise() (netip.AddrPort, []byte) {
	s, _ := a.spies[a.rng.IntN(2)].last(0)
	b := make([]byte, 128)
	for i := range b {
		b[i] = byte(a.rng.Uint32())
	}
	b[4] = 1
	return s.to, b
}

// plain returns a NAK, an ACK, a WRITE or a READ for a QP of a side, with the right checksum.
func (a *attacker) plain(side int) []byte {
	p := a.paths[side][a.rng.IntN(len(a.paths[side]))]
	h := roce.Header{
		DestQPN: p.Endpoint.QPN, PSN: roce.PSN(p.QP.RQPSN).Add(uint32(a.rng.IntN(1000))), PKey: roce.PKeyDefault, Migrated: true,
		VA: a.addr[side], RKey: a.key[side], DMALen: 64,
	}
	n := 0
	switch a.rng.IntN(4) {
	case 0:
		h.Opcode, h.Syndrome = roce.RC|roce.OpAck, roce.NAKRemoteAccess
	case 1:
		h.Opcode, h.Syndrome = roce.RC|roce.OpAck, roce.SyndromeAck
	case 2:
		h.Opcode = roce.RC | roce.OpReadRequest
	case 3:
		h.Opcode, n = roce.RC|roce.OpWriteOnly, 64
	}
	b := bytes.Repeat([]byte{0xee}, roce.DatagramLen(h.Opcode, n))
	h.Encode(b, n)
	from := netip.MustParseAddrPort(a.conn.LocalAddr().String())
	flow, err := roce.NewFlow(from, a.targets[side])
	if err != nil {
		a.t.Error(err)
	}
	flow.Seal(b, 0)
	return b
}

// siege is two sealed Sessions with four lanes, and their attacker.
type siege struct {
	attacker
	nics     [2]*softnic.NIC
	sessions [2]*peer.Session
}

// newSiege creates a siege over "RC" or "UC" on the addresses from 127.0.0.first on.
func newSiege(t testing.TB, transport string, first byte) *siege {
	t.Helper()
	s := &siege{attacker: attacker{t: t, rng: rand.New(rand.NewPCG(1, 2))}}
	var cfgs [2]peer.Config
	for side := range s.nics {
		s.spies[side] = &spy{}
		var open func() (peer.NICs, error)
		s.nics[side], open = spied(t, first+byte(side), s.spies[side])
		if transport == "UC" {
			open = wrapped(open, reliable.Config{Paths: 4})
		}
		cfgs[side] = tokenConfig(open)
		cfgs[side].QP.Lanes = 4
		cfgs[side].Regions = append(cfgs[side].Regions, peer.RegionConfig{Name: "spare", Size: 4096})
		s.targets[side] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, first + byte(side)}), plainPort(t, s.nics[side]))
	}
	s.sessions[0], s.sessions[1] = mustMeet(t, cfgs[0], cfgs[1])
	for side, one := range s.sessions {
		var err error
		if s.paths[side], err = one.QP.Paths(); err != nil || !one.Agreed.Sealed {
			t.Fatalf("Paths: got %v, sealed %v, want sealed paths", err, one.Agreed.Sealed)
		}
		spare := s.sessions[1-side].Remote("spare")
		s.key[side], s.addr[side] = spare.RKeys[0], spare.Addr
	}
	var err error
	if s.conn, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		t.Fatalf("ListenUDP: got %v, want no error", err)
	}
	t.Cleanup(func() { _ = s.conn.Close() })
	write(t, s.sessions[0], s.sessions[1], 0)
	return s
}

// plainPort returns a NIC's port for plain packets.
func plainPort(t testing.TB, nic *softnic.NIC) uint16 {
	t.Helper()
	ctx, err := nic.Open()
	if err != nil {
		t.Fatalf("Open: got %v, want no error", err)
	}
	defer func() { _ = ctx.Close() }()
	port, err := ctx.QueryPort(1)
	if err != nil {
		t.Fatalf("QueryPort: got %v, want no error", err)
	}
	return cmp.Or(port.LID, roce.Port)
}

// transfers moves and compares data for some time, at least four times, while next supplies attack packets.
// It returns the number of transfers per second.
func (s *siege) transfers(next func() (netip.AddrPort, []byte), took time.Duration) float64 {
	stop := make(chan struct{})
	var attack sync.WaitGroup
	attack.Go(func() { s.run(stop, next) })
	begin, n := time.Now(), 0
	for ; n < 4 || time.Since(begin) < took; n++ {
		write(s.t, s.sessions[n%2], s.sessions[1-n%2], byte(n))
	}
	rate := float64(n) / time.Since(begin).Seconds()
	close(stop)
	attack.Wait()
	return rate
}

// check fails if a lane was lost or an attacker's packet accepted, and returns the dropped packets.
func (s *siege) check() (dropped softnic.SealStats) {
	s.t.Helper()
	for side, one := range s.sessions {
		for _, lane := range one.QP.Stats().Lanes {
			if lane.State != "up" || lane.Deaths > 0 || lane.Generation > 0 {
				s.t.Errorf("lane %d of side %d: %s, %d deaths: %v, want none", lane.Lane, side, lane.State, lane.Deaths, lane.Cause)
			}
		}
		if bytes.Contains(one.Local("spare").Bytes(), []byte{0xee}) {
			s.t.Errorf("the attacker's bytes are in memory of side %d", side)
		}
		got := s.nics[side].Stats()
		dropped.Bad += got.Seals.Bad
		dropped.Replayed += got.Seals.Replayed
		dropped.Unknown += got.Seals.Unknown
		dropped.Plain += got.Seals.Plain
		if got.WrongKeys > 0 {
			s.t.Errorf("side %d has looked at %d keys of the attacker, want none", side, got.WrongKeys)
		}
	}
	return dropped
}

// TestSealedFlood: an attacker who knows everything but the secret sends up to 100,000 packets per second to
// both ends of Sessions with several lanes, on RC and on UC, while data is transferred and compared. Every
// lane survives, the data is intact, and no packet is accepted.
func TestSealedFlood(t *testing.T) {
	for i, transport := range []string{"RC", "UC"} {
		t.Run(transport, func(t *testing.T) {
			s := newSiege(t, transport, byte(53+2*i))
			rate := s.transfers(s.next, 250*time.Millisecond)
			write(t, s.sessions[0], s.sessions[1], 99)
			dropped := s.check()
			if dropped.Bad == 0 || dropped.Replayed == 0 || dropped.Plain == 0 {
				t.Errorf("dropped %+v of %d packets, want forged, replayed and plain ones", dropped, s.sent)
			}
			t.Logf("%.0f transfers of 1 MiB per second beside %d packets of an attacker, dropped %+v", rate, s.sent, dropped)
		})
	}
}

// BenchmarkSealedFlood: transfers of 1 MiB on four lanes with compared data, under 100,000 packets per
// second, which alternate between packets forged with the right index and random bytes of the same length.
// ratio is the median of the rate with forged packets to the rate with random ones.
func BenchmarkSealedFlood(b *testing.B) {
	for i, transport := range []string{"RC", "UC"} {
		b.Run(transport, func(b *testing.B) {
			s := newSiege(b, transport, byte(57+2*i))
			var ratios []float64
			for b.Loop() {
				forged := s.transfers(s.forged, 200*time.Millisecond)
				ratios = append(ratios, forged/s.transfers(s.noise, 200*time.Millisecond))
			}
			if dropped := s.check(); dropped.Bad == 0 || dropped.Unknown == 0 {
				b.Errorf("dropped %+v of %d packets, want forged and random ones", dropped, s.sent)
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}
