package seal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
)

// nonce returns a nonce whose bytes are all b.
func nonce(b byte) (n [NonceLen]byte) {
	for i := range n {
		n[i] = b
	}
	return n
}

// ends returns the two ends of an association: the dialer's and the listener's.
func ends(t testing.TB) (dialer, listener *Association) {
	t.Helper()
	secret := bytes.Repeat([]byte{7}, 32)
	d, l := NewGreeting(0x123456, 3, nonce(1)), NewGreeting(0xabcdef, 9, nonce(2))
	return associate(t, secret, true, d, l), associate(t, secret, false, l, d)
}

func associate(t testing.TB, secret []byte, dialer bool, own, peer Greeting) *Association {
	t.Helper()
	s, err := NewSession(secret, dialer)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Associate(&own, &peer)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// sealed returns a packet that carries text.
func sealed(a *Association, socket uint8, text string) []byte {
	b := make([]byte, HeaderLen+len(text)+TagLen)
	copy(b[HeaderLen:], text)
	a.Seal(b, socket)
	return b
}

// expect opens a copy of a packet.
func expect(t *testing.T, a *Association, b []byte, want Verdict, what string) {
	t.Helper()
	if _, got := a.Open(bytes.Clone(b)); got != want {
		t.Errorf("%s: verdict %d, want %d", what, got, want)
	}
}

// TestSealOpen: each end opens the other's packets. Every packet is different.
func TestSealOpen(t *testing.T) {
	d, l := ends(t)
	const text = "the bytes of a packet, from the BTH on"
	for i, way := range []struct {
		from, to *Association
		index    uint32
	}{{d, l, 0xabcdef03}, {l, d, 0x12345609}} {
		first, second := sealed(way.from, 5, text), sealed(way.from, 5, text)
		if index, ok := Index(first); !ok || index != way.index {
			t.Errorf("direction %d: Index = %#x, %v, want %#x: the receiver's number and the sender's seat", i, index, ok, way.index)
		}
		if bytes.Equal(first[HeaderLen:], second[HeaderLen:]) || bytes.Contains(first, []byte(text)[:8]) {
			t.Errorf("direction %d: a packet shows what it carries", i)
		}
		for _, b := range [][]byte{first, second} {
			if plain, v := way.to.Open(b); v != Opened || string(plain) != text {
				t.Errorf("direction %d: Open = %q, %d, want %q, %d", i, plain, v, text, Opened)
			}
		}
	}
}

// TestEveryBitIsAuthenticated: a packet with a flipped bit, truncated or extended is rejected, and
// the original is still accepted.
func TestEveryBitIsAuthenticated(t *testing.T) {
	d, l := ends(t)
	b := sealed(d, 0, "0123456789abcdef")
	for i := range 8 * len(b) {
		c := bytes.Clone(b)
		c[i/8] ^= 1 << (i % 8)
		if plain, v := l.Open(c); v == Opened {
			t.Errorf("bit %d changed: opened as %q", i, plain)
		}
	}
	for n := Overhead; n < len(b); n++ {
		expect(t, l, b[:n], Bad, "truncated")
	}
	expect(t, l, append(bytes.Clone(b), 0), Bad, "extended")
	for n := range Overhead {
		if _, ok := Index(b[:n]); ok {
			t.Errorf("Index accepts %d bytes, want at least %d", n, Overhead)
		}
	}
	expect(t, l, b, Opened, "original")
}

// TestKeySeparation: packets of other directions, sessions, NICs and secrets are rejected.
func TestKeySeparation(t *testing.T) {
	d, l := ends(t)
	secret := bytes.Repeat([]byte{7}, 32)
	own, peer := NewGreeting(0xabcdef, 9, nonce(2)), NewGreeting(0x123456, 3, nonce(1))
	other := func(secret []byte, dialer bool, own, peer Greeting) []byte {
		return sealed(associate(t, secret, dialer, own, peer), 0, "x")
	}
	expect(t, d, sealed(d, 0, "x"), Bad, "reflected")
	for name, b := range map[string][]byte{
		"other role":       other(secret, false, peer, own),
		"other secret":     other(bytes.Repeat([]byte{8}, 32), true, peer, own),
		"other nonce":      other(secret, true, NewGreeting(0x123456, 3, nonce(9)), own),
		"peer's old nonce": other(secret, true, peer, NewGreeting(0xabcdef, 9, nonce(9))),
		"other number":     other(secret, true, peer, NewGreeting(0xabcdee, 9, nonce(2))),
		"other seat":       other(secret, true, NewGreeting(0x123456, 4, nonce(1)), own),
	} {
		expect(t, l, b, Bad, name)
	}
	expect(t, l, sealed(d, 0, "x"), Opened, "own")
	s, err := NewSession(secret, true)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Associate(&own, &own); !errors.Is(err, ErrReflected) {
		t.Errorf("Associate with the own greeting = %v, want %v", err, ErrReflected)
	}
	if _, err := NewSession(make([]byte, MinSecret-1), true); !errors.Is(err, ErrSecret) {
		t.Errorf("NewSession with %d bytes = %v, want %v", MinSecret-1, err, ErrSecret)
	}
}

// TestReplay: a packet is opened once, even if it is repeated from another socket. Reordering
// within the window is accepted, older packets are not.
func TestReplay(t *testing.T) {
	d, l := ends(t)
	var all [][]byte
	for range WindowLen + 1 {
		all = append(all, sealed(d, 1, "x"))
	}
	newest := all[WindowLen]
	expect(t, l, newest, Opened, "newest")
	expect(t, l, all[0], Old, "older than the window")
	order := rand.New(rand.NewPCG(1, 1)).Perm(WindowLen - 1)
	for _, i := range order {
		if _, v := l.Open(bytes.Clone(all[i+1])); v != Opened {
			t.Fatalf("packet %d after packet %d: verdict %d, want %d", i+1, WindowLen, v, Opened)
		}
	}
	for _, i := range order {
		if _, v := l.Open(all[i+1]); v != Replayed {
			t.Fatalf("packet %d again: verdict %d, want %d", i+1, v, Replayed)
		}
	}
	moved := bytes.Clone(newest)
	moved[headSocket] = 2
	expect(t, l, moved, Bad, "from another socket")
	slow := sealed(d, 3, "x")
	for range 2 * WindowLen {
		expect(t, l, sealed(d, 1, "x"), Opened, "next")
	}
	expect(t, l, slow, Opened, "of a slower socket")
}

// TestForgedCounter: a forged packet with a high counter or epoch does not move the window or the keys.
func TestForgedCounter(t *testing.T) {
	d, l := ends(t)
	expect(t, l, sealed(d, 0, "x"), Opened, "first")
	late := sealed(d, 0, "x")
	forged := bytes.Clone(late)
	for _, high := range []uint64{1 << 20, 1 << 40, 1<<64 - 1} {
		binary.BigEndian.PutUint64(forged[headCounter:], high)
		for _, epoch := range []uint16{0, 1, maxAhead, maxAhead + 1, 0x7fff} {
			binary.BigEndian.PutUint16(forged[headEpoch:], epoch)
			expect(t, l, forged, Bad, "forged")
		}
	}
	if n := len(l.in.ahead); n != maxAhead {
		t.Errorf("forged epochs made %d keys, want %d at most", n, maxAhead)
	}
	expect(t, l, late, Opened, "genuine")
}

// TestRekey: after 2^26 packets, or an hour with traffic, a sender switches to the next key. The
// receiver opens packets of both keys until the overlap has expired.
func TestRekey(t *testing.T) {
	d, l := ends(t)
	early, spare := sealed(d, 0, "early"), sealed(d, 0, "spare")
	d.out.counter = d.out.first + maxPackets - 1
	last := sealed(d, 0, "last")
	if d.out.epoch != 0 {
		t.Errorf("epoch %d after 2^26 packets, want 0", d.out.epoch)
	}
	next := sealed(d, 0, "next")
	if d.out.epoch != 1 || d.out.counter != maxPackets+1 {
		t.Errorf("epoch %d, counter %d after one more, want 1 and %d", d.out.epoch, d.out.counter, maxPackets+1)
	}
	expect(t, l, early, Opened, "first key")
	expect(t, l, next, Opened, "next key")
	expect(t, l, last, Opened, "first key, after the next")
	expect(t, l, spare, Old, "first key, older than the window")
	rest := sealed(d, 1, "x") // on a socket without a window: only its key can be too old
	l.Tick()
	d.Tick()
	for range ticksPerKey - 1 {
		d.Tick()
	}
	if d.out.epoch != 2 {
		t.Errorf("epoch %d after an hour, want 2", d.out.epoch)
	}
	expect(t, l, sealed(d, 0, "x"), Opened, "third key")
	l.Tick()
	expect(t, l, rest, Opened, "second key during the overlap")
	rest[headSocket] = 2
	l.Tick()
	expect(t, l, rest, Old, "second key after the overlap")
	for range 10 * ticksPerKey {
		d.Tick()
	}
	if d.out.epoch != 3 {
		t.Errorf("epoch %d after ten idle hours, want 3: an unused key is not replaced", d.out.epoch)
	}
}

// TestLostEpochs: a receiver finds the present key although all packets of many keys were lost and
// the epoch number wrapped around.
func TestLostEpochs(t *testing.T) {
	d, l := ends(t)
	for range 1100 {
		for range maxAhead {
			d.out.rekey()
		}
		if _, v := l.Open(sealed(d, 0, "x")); v != Opened {
			t.Fatalf("epoch %d: verdict %d, want %d", d.out.epoch, v, Opened)
		}
		l.Tick()
	}
	if d.out.epoch < 1<<16 || l.in.epoch != d.out.epoch {
		t.Errorf("epochs %d and %d, want the same above 2^16", d.out.epoch, l.in.epoch)
	}
	for range maxAhead + 1 {
		d.out.rekey()
	}
	expect(t, l, sealed(d, 0, "x"), Bad, "too far ahead")
}

// TestDerivedKeysPerMinute: a peer that rekeys with every packet makes the receiver derive at most
// 64 keys per minute.
func TestDerivedKeysPerMinute(t *testing.T) {
	d, l := ends(t)
	for i := range 2 * maxAhead {
		d.out.rekey()
		want := Opened
		if i >= maxAhead {
			want = Bad
		}
		expect(t, l, sealed(d, 0, "x"), want, "new key")
	}
	l.Tick()
	expect(t, l, sealed(d, 0, "x"), Opened, "after a minute")
}

// TestSilentPeer: a sender without responses for weeks does not outrun the receiver. It resumes
// rekeying by time when the peer responds.
func TestSilentPeer(t *testing.T) {
	d, l := ends(t)
	for range 1000 * ticksPerKey {
		sealed(d, 0, "lost")
		d.Tick()
		l.Tick()
	}
	if d.out.epoch < 1 || d.out.epoch > maxAhead {
		t.Errorf("epoch %d after 1,000 hours without an answer, want 1 to %d", d.out.epoch, maxAhead)
	}
	expect(t, l, sealed(d, 0, "x"), Opened, "after 1,000 hours")
	expect(t, d, sealed(l, 0, "x"), Opened, "answer")
	before := d.out.epoch
	for range ticksPerKey {
		d.Tick()
	}
	if d.out.epoch != before+1 {
		t.Errorf("epoch %d an hour after the answer, want %d", d.out.epoch, before+1)
	}
}

// TestLastCounter: a peer cannot restart its replay window with the highest counters.
func TestLastCounter(t *testing.T) {
	d, l := ends(t)
	b := sealed(d, 0, "x")
	expect(t, l, b, Opened, "first")
	for _, counter := range []uint64{1<<64 - 1, 1<<64 - 2} {
		d.out.counter, d.out.first = counter, counter
		last := sealed(d, 0, "x")
		if _, v := l.Open(bytes.Clone(last)); v == Opened {
			expect(t, l, last, Replayed, "high counter again")
		}
		if _, v := l.Open(bytes.Clone(b)); v == Opened {
			t.Errorf("a packet was opened twice, with counter %#x in between", counter)
		}
	}
}

// TestWindowsAreBounded: a peer that uses many sockets does not make the receiver keep a window for
// each. No packet is opened twice.
func TestWindowsAreBounded(t *testing.T) {
	d, l := ends(t)
	for socket := range 256 {
		b := sealed(d, uint8(socket), "x")
		expect(t, l, b, Opened, "first")
		expect(t, l, b, Replayed, "again")
	}
	n := 0
	for _, w := range l.in.windows {
		if w != nil {
			n++
		}
	}
	if n > 16 {
		t.Errorf("%d windows, want at most 16", n)
	}
}

// TestNoAllocations: sealing and opening do not allocate.
func TestNoAllocations(t *testing.T) {
	d, l := ends(t)
	b := make([]byte, Overhead+4096)
	run := func() {
		d.Seal(b, 0)
		if _, v := l.Open(b); v != Opened {
			t.Errorf("verdict %d, want %d", v, Opened)
		}
	}
	run() // allocates the window
	if n := testing.AllocsPerRun(100, run); n != 0 {
		t.Errorf("%v allocations per packet, want 0", n)
	}
}

// FuzzOpen: only sealed packets are opened, and no input panics.
func FuzzOpen(f *testing.F) {
	d, l := ends(f)
	genuine := make(map[string]bool)
	for i, text := range []string{"", "0", "0123456789", "next key"} {
		if i == 3 {
			d.out.rekey()
		}
		b := sealed(d, uint8(i), text)
		genuine[string(b)] = true
		f.Add(b)
	}
	f.Add([]byte("short"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if index, ok := Index(b); ok != (len(b) >= Overhead && b[headVersion] == version) {
			t.Errorf("Index = %#x, %v for %d bytes", index, ok, len(b))
		} else if !ok {
			return
		}
		for range 2 {
			if plain, v := l.Open(bytes.Clone(b)); v == Opened && !genuine[string(b)] {
				t.Errorf("opened %d bytes as %q, which nobody sealed", len(b), plain)
			}
		}
	})
}

// BenchmarkSealOpen measures the minimum cost of sealing and opening a packet.
func BenchmarkSealOpen(b *testing.B) {
	for _, size := range []struct {
		name  string
		bytes int
	}{{"24B", 24}, {"36B", 36}, {"1KiB", 1052}, {"4KiB", 4124}} {
		b.Run("size="+size.name, func(b *testing.B) {
			d, l := ends(b)
			p := make([]byte, Overhead+size.bytes)
			b.SetBytes(int64(size.bytes))
			b.ReportAllocs()
			for b.Loop() {
				d.Seal(p, 0)
				if _, v := l.Open(p); v != Opened {
					b.Fatalf("verdict %d, want %d", v, Opened)
				}
			}
		})
	}
}
