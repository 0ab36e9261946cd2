//go:build linux

package softnic

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/internal/seal"
	"ibverbx/verbs"
)

// drops returns the NIC's counters of dropped hostile packets.
func drops(s Stats) [7]uint64 {
	return [7]uint64{s.Malformed, s.Seals.Unknown, s.Seals.Bad, s.Seals.Replayed, s.Seals.Old, s.Seals.Wrong, s.Seals.Plain}
}

// TestSealedDrops: each kind of attack packet is dropped without a response or side effect, and counted once.
// The attacker may be a legitimate peer of another session.
func TestSealedDrops(t *testing.T) {
	f := newSealAttack(t)
	for k := range 2 {
		f.write(f.qps[0][k], f.qps[1][k], 5000)
	}
	a := f.qps[0][0].assoc
	sealed, unsealed := f.nics[1].sealed, f.nics[1].udp
	for _, v := range []struct {
		name  string
		count int // the index of the counter in drops
		make  func(q *qp) (*udpPort, []byte)
	}{
		{"plain", 6, func(q *qp) (*udpPort, []byte) { return unsealed, f.unsealed(f.header(q)) }},
		{"plain, to the sealed port", 0, func(q *qp) (*udpPort, []byte) { return sealed, f.unsealed(f.header(q)) }},
		{"forged", 2, func(q *qp) (*udpPort, []byte) { return sealed, f.forged(q, f.header(q)) }},
		{"of another session", 5, func(q *qp) (*udpPort, []byte) {
			return sealed, sealedBy(f.others[0][0].assoc, plain(f.header(q)))
		}},
		{"replayed", 3, func(*qp) (*udpPort, []byte) { return sealed, f.old(true) }},
		{"truncated", 2, func(q *qp) (*udpPort, []byte) {
			b := sealedBy(a, plain(f.header(q)))
			return sealed, b[:len(b)-4]
		}},
		{"reflected", 2, func(q *qp) (*udpPort, []byte) {
			b := sealedBy(f.qps[1][0].assoc, plain(f.header(q)))
			binary.BigEndian.PutUint32(b, q.sealing.greeting.Number()<<8)
			b[5] = 9 // a socket without a window
			return sealed, b
		}},
		{"of no session", 1, func(q *qp) (*udpPort, []byte) {
			b := sealedBy(a, plain(f.header(q)))
			b[0] ^= 0x80
			return sealed, b
		}},
		{"no packet inside", 0, func(*qp) (*udpPort, []byte) { return sealed, sealedBy(a, []byte("hello")) }},
		{"short", 0, func(*qp) (*udpPort, []byte) { return sealed, make([]byte, 31) }},
	} {
		for _, q := range f.qps[1] {
			before := f.nics[1].Stats()
			u, b := v.make(q)
			f.serve(u, b)
			got, want := drops(f.nics[1].Stats()), drops(before)
			want[v.count]++
			if got != want {
				t.Errorf("%s for %v: counters %v, want %v", v.name, q.typ, got, want)
			}
			if s := f.nics[1].Stats(); s.PacketsSent != before.PacketsSent || q.state != verbs.StateRTS {
				t.Errorf("%s for %v: answered with %d packets, state %v, want none and %v", v.name, q.typ, s.PacketsSent-before.PacketsSent, q.state, verbs.StateRTS)
			}
		}
	}
	if bytes.Contains(f.mem[1].Bytes()[fortressBytes:], []byte{0xee, 0xee}) {
		t.Error("an attacker's bytes are in memory")
	}
}

// TestSealedTooOld: packets older than the replay window, or under a key whose overlap has expired, are
// dropped and counted. The QPs continue with the next key.
func TestSealedTooOld(t *testing.T) {
	f := newSealAttack(t)
	f.write(f.qps[0][1], f.qps[1][1], 5000)
	first, sealed, a := f.old(true), f.nics[1].sealed, f.qps[0][0].assoc
	for range seal.WindowLen { // the others of its socket are newer than the first now
		f.serve(sealed, sealedBy(a, []byte("hello")))
	}
	before := f.nics[1].Stats().Seals.Old
	f.serve(sealed, first)
	if got := f.nics[1].Stats().Seals.Old; got != before+1 {
		t.Errorf("a packet older than the window: %d counted, want %d", got, before+1)
	}
	late := sealedBy(a, plain(f.header(f.qps[1][1])))
	for range 60 {
		f.nics[0].sealed.tick() // an hour of the sender
	}
	f.serve(sealed, sealedBy(a, []byte("hello")))
	for range 2 { // two minutes of the receiver
		f.nics[1].sealed.tick()
	}
	f.serve(sealed, late)
	if got := f.nics[1].Stats().Seals.Old; got != before+2 {
		t.Errorf("a packet under a key whose overlap has ended: %d counted, want %d", got, before+2)
	}
	for k := range 2 {
		f.write(f.qps[0][k], f.qps[1][k], 5000)
	}
}

// TestSealedForger: while data is written and compared on RC and UC, an attacker sends tens of thousands of
// packets of all kinds. All are rejected, the data stays intact and every QP survives.
func TestSealedForger(t *testing.T) {
	for k, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
		t.Run(typ.String(), func(t *testing.T) {
			f := newSealAttack(t)
			victim := f.qps[1][k]
			stop := make(chan struct{})
			var forged atomic.Uint64
			var done sync.WaitGroup
			done.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						f.strike(victim)
						forged.Add(1)
					}
				}
			})
			buf := f.mem[0].Bytes()[:fortressBytes]
			source := rand.NewChaCha8([32]byte{1})
			most := uint64(256 << 10)
			if typ == verbs.UC {
				most = 32 << 10 // any socket buffer holds it
			}
			for begin := time.Now(); time.Since(begin) < time.Second/2 || forged.Load() < 1000; {
				n := 1 + int(source.Uint64()%most)
				_, _ = source.Read(buf[:n])
				f.write(f.qps[0][k], victim, n)
				if !bytes.Equal(f.mem[1].Bytes()[:n], buf[:n]) {
					t.Fatal("the bytes that arrived are not those that were sent")
				}
			}
			close(stop)
			done.Wait()
			s := f.nics[1].Stats()
			dropped := uint64(0)
			for _, n := range drops(s) {
				dropped += n
			}
			repeated := f.nics[0].Stats().Retransmits + f.nics[0].Stats().Probes // the first copy may not have arrived
			if n := forged.Load(); dropped != n && repeated == 0 {
				t.Errorf("%d packets of the attacker, %d dropped, want all", n, dropped)
			}
			if bytes.Contains(f.mem[1].Bytes()[fortressBytes:], []byte{0xee, 0xee}) {
				t.Error("an attacker's bytes are in memory")
			}
			for _, q := range []*qp{victim, f.qps[0][k]} {
				if got := q.State(); got != verbs.StateRTS {
					t.Errorf("QP in %v, want %v", got, verbs.StateRTS)
				}
			}
			t.Logf("%d packets of the attacker; dropped, by reason: %v", forged.Load(), drops(s))
		})
	}
}

// strike sends the victim one packet of an attack.
func (f *sealAttack) strike(victim *qp) {
	h := f.header(victim)
	sealed := f.nics[1].sealed
	switch f.rng.IntN(6) {
	case 0:
		f.serve(f.nics[1].udp, f.unsealed(h))
	case 1:
		f.serve(sealed, f.forged(victim, h))
	case 2:
		b := make([]byte, 20+4*f.rng.IntN(500))
		for i := range b {
			b[i] = byte(f.rng.Uint32())
		}
		if len(b) > seal.HeaderLen {
			binary.BigEndian.PutUint32(b, victim.sealing.greeting.Number()<<8)
			b[4] = 1
		}
		f.serve(sealed, b)
	case 3:
		b := f.old(false)
		f.serve(sealed, b[:f.rng.IntN(len(b))])
	case 4:
		f.serve(sealed, f.old(false))
	case 5:
		f.others[0][0].core.mu.Lock() // the attacker's own session
		b := sealedBy(f.others[0][0].assoc, plain(h))
		f.others[0][0].core.mu.Unlock()
		f.serve(sealed, b)
	}
}

// TestSealedMTU: the seal's overhead reduces the MTU of sealed QPs if the interface MTU cannot absorb
// it.
func TestSealedMTU(t *testing.T) {
	for _, v := range []struct {
		mtu           int
		ipv6          bool
		plain, sealed verbs.MTU
	}{
		{65536, false, verbs.MTU4096, verbs.MTU4096},
		{9000, true, verbs.MTU4096, verbs.MTU4096},
		{4096 + 76, false, verbs.MTU4096, verbs.MTU2048},
		{4096 + 76 + 28, false, verbs.MTU4096, verbs.MTU4096},
		{1500, false, verbs.MTU1024, verbs.MTU1024},
		{256 + 96, true, verbs.MTU256, 0},
	} {
		if got := [2]verbs.MTU{largestMTU(v.mtu, v.ipv6), largestMTU(v.mtu-sealOverhead, v.ipv6)}; got != [2]verbs.MTU{v.plain, v.sealed} {
			t.Errorf("interface MTU %d, IPv6 %v: %v, want %v and %v", v.mtu, v.ipv6, got, v.plain, v.sealed)
		}
	}
	f := newSealAttack(t)
	f.nics[1].sealed.mtu = verbs.MTU2048
	if e, err := f.qps[1][0].Endpoint(); err != nil || e.MTU != verbs.MTU2048 {
		t.Errorf("endpoint of a sealed QP has MTU %v, %v, want %v", e.MTU, err, verbs.MTU2048)
	}
	if err := f.qps[1][0].checkAttr(&verbs.QPAttr{PathMTU: verbs.MTU4096}, verbs.AttrPathMTU); err == nil {
		t.Error("a sealed QP takes a path MTU that does not fit, want an error")
	}
}

// FuzzSealedContents: an admitted peer seals arbitrary bytes. They are decoded strictly and can only touch
// memory in the region. Unsealed, they are all rejected.
func FuzzSealedContents(f *testing.F) {
	f.Add([]byte(nil), false)
	f.Add(plain(roce.Header{Opcode: roce.RC | roce.OpWriteOnly, PKey: roce.PKeyDefault, DMALen: 64}), true)
	f.Add(plain(roce.Header{Opcode: roce.UD | roce.OpSendOnly, PKey: roce.PKeyDefault, Fill: 9}), true)
	f.Add(plain(roce.Header{Opcode: roce.RC | roce.OpAck, PKey: roce.PKeyDefault, Syndrome: roce.SyndromeAck}), false)
	s := newSealAttack(f)
	f.Fuzz(func(t *testing.T, b []byte, genuine bool) {
		if len(b) > 9000 {
			return
		}
		before := s.nics[1].Stats().PacketsReceived
		for _, q := range s.qps[1] { // otherwise wrong keys fail the session
			q.sealing.seal.mu.Lock()
			q.sealing.seal.wrongKeys = 0
			q.sealing.seal.mu.Unlock()
		}
		if len(b) >= 12 { // most bytes should reach a QP
			q := s.qps[1][int(b[5])%3]
			if q.State() != verbs.StateRTS {
				check(t, q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
				check(t, q.Connect(s.eps[int(b[5])%3]))
			}
			binary.BigEndian.PutUint32(b[4:], q.num|uint32(b[4])<<24)
			binary.BigEndian.PutUint32(b[8:], uint32(q.epsn)|uint32(b[8])<<24)
		}
		if genuine {
			b = sealedBy(s.qps[0][0].assoc, b)
		}
		s.serve(s.nics[1].sealed, b)
		if got := s.nics[1].Stats().PacketsReceived - before; got > 0 && !genuine {
			t.Errorf("%d packets received that nobody sealed", got)
		}
	})
}

// BenchmarkSealedDrop measures the cost of an attacker's packet without system calls: random bytes, and
// forged packets with the right index.
func BenchmarkSealedDrop(b *testing.B) {
	for _, size := range []int{48, 4156} {
		for _, forged := range []bool{false, true} {
			b.Run(fmt.Sprintf("size=%d/forged=%v", size, forged), func(b *testing.B) {
				f := newSealAttack(b)
				p := make([]byte, size)
				p[4] = 1
				if forged {
					binary.BigEndian.PutUint32(p, f.qps[1][0].sealing.greeting.Number()<<8)
				}
				for b.Loop() {
					f.serve(f.nics[1].sealed, p)
				}
				if got := drops(f.nics[1].Stats()); forged != (got[2] > 0) || forged == (got[1] > 0) {
					b.Errorf("dropped, by reason: %v", got)
				}
			})
		}
	}
}
