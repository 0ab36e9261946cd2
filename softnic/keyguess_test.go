//go:build linux

package softnic

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// forge returns a datagram of the peer's: headers, then n bytes of payload.
func (s *besieged) forge(h roce.Header, n int) []byte {
	length := map[uint8]int{roce.OpReadRequest: 28, roce.OpWriteOnly: 28, roce.OpAck: 16}[h.Opcode&roce.OperationMask]
	h.PKey = roce.PKeyDefault
	b := make([]byte, length+n+4)
	h.Encode(b, 0)
	for i := range n {
		b[length+i] = 0xee
	}
	s.flow.Seal(b, 0)
	return b
}

// TestKeyGuessingRC: a forger that knows addresses, QP numbers and PSNs cannot guess keys with
// duplicate READs. Only READs executed before are answered again, so even the right key gets no
// response. The QP survives.
func TestKeyGuessingRC(t *testing.T) {
	s := newBesieged(t)
	q := s.qps[0]
	read := roce.Header{Opcode: roce.RC | roce.OpReadRequest, DestQPN: q.num, PSN: q.epsn, VA: s.mem.Addr() + guardBytes, RKey: s.key, DMALen: 600}
	s.strike(s.forge(read, 0))
	if got := s.nic.Stats().PacketsSent; got != 3 {
		t.Fatalf("a READ of 600 bytes is answered with %d packets, want 3", got)
	}
	again := read
	again.PSN, again.VA, again.DMALen = read.PSN.Add(1), read.VA+256, 344
	s.strike(s.forge(again, 0))
	if got := s.nic.Stats().PacketsSent; got != 5 {
		t.Fatalf("the rest of a READ, asked for again, is answered with %d packets, want 2 more than 3", got)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	const guesses = 100_000
	for i := range guesses {
		guess := read
		guess.PSN = read.PSN.Add(uint32(roce.PSNMask) - uint32(i%1000))
		switch i % 4 {
		case 0: // the right key, for bytes not read before
		case 1:
			guess.PSN, guess.VA = read.PSN, read.VA+1000
		case 2:
			guess.PSN, guess.RKey = read.PSN, rng.Uint32()
		case 3:
			guess.RKey, guess.DMALen = rng.Uint32(), 8
		}
		s.strike(s.forge(guess, 0))
	}
	if got := s.nic.Stats(); got.PacketsSent != 5 || got.Duplicates != guesses+1 || q.state != verbs.StateRTS {
		t.Errorf("after %d guesses: %d packets sent, %d duplicates, state %s, want 5, %d and %s", guesses, got.PacketsSent, got.Duplicates, q.state, guesses+1, verbs.StateRTS)
	}
}

// TestKeyGuessingUC: a forger that knows everything but the key can try 16 keys per 100 ms on the UC
// QPs of a PD, regardless of its packet rate. Even the right key is dropped meanwhile. The QP survives
// and recovers.
func TestKeyGuessingUC(t *testing.T) {
	s := newBesieged(t)
	q := s.qps[1]
	write := roce.Header{Opcode: roce.UC | roce.OpWriteOnly, DestQPN: q.num, VA: s.mem.Addr() + guardBytes, DMALen: 8}
	rng := rand.New(rand.NewPCG(1, 2))
	const guesses = 100_000
	begin := time.Now()
	for range guesses {
		for write.RKey = s.key; write.RKey == s.key; {
			write.RKey = rng.Uint32()
		}
		s.strike(s.forge(write, 8))
	}
	windows := uint64(time.Since(begin)/time.Duration(keyGuessInterval)) + 1
	got := s.nic.Stats()
	if got.WrongKeys < maxKeyGuesses || got.WrongKeys > windows*maxKeyGuesses || got.WrongKeys+got.WritesBlocked != guesses || q.state != verbs.StateRTS {
		t.Errorf("%d of %d keys were tried and %d not, state %s, want at most %d tried and %s", got.WrongKeys, guesses, got.WritesBlocked, q.state, windows*maxKeyGuesses, verbs.StateRTS)
	}
	perSecond := maxKeyGuesses * int64(time.Second) / keyGuessInterval
	days := (1 << 31) / perSecond / int64(24*time.Hour/time.Second)
	if days < 100 {
		t.Errorf("half of all keys are tried in %d days, want more than 100", days)
	}
	t.Logf("%d keys tried per second: half of all take %d days", perSecond, days)

	for i := 0; i < maxKeyGuesses && q.pd.keyGuesses.wrong < maxKeyGuesses; i++ { // a new window may have started
		s.strike(s.forge(write, 8))
	}
	write.RKey = s.key
	target := s.mem.Bytes()[guardBytes : guardBytes+8]
	blocked := s.nic.Stats().WritesBlocked
	s.strike(s.forge(write, 8))
	if hit := target[0] == 0xee; hit == (s.nic.Stats().WritesBlocked > blocked) {
		t.Errorf("a right key while WRITEs are blocked: placed %v, want it dropped", hit)
	}
	for begin := time.Now(); target[0] != 0xee; s.strike(s.forge(write, 8)) {
		if time.Since(begin) > time.Minute {
			t.Fatalf("a right key was not accepted for a minute, want it after %v", time.Duration(keyGuessInterval))
		}
	}
}

// strike serves one datagram.
func (s *besieged) strike(b []byte) { s.attack(b, len(b)) }

// TestAnnouncedPorts: a NIC announces its source ports, and a QP accepts its peer's packets only from
// these. Peers without an announcement may use any port.
func TestAnnouncedPorts(t *testing.T) {
	s := newBesieged(t)
	own := s.nic.udp.extra(nil)
	e := verbs.Endpoint{GID: verbs.GID{15: 1}, LID: 4792, Extra: own}
	_, err := s.nic.udp.learn(&e)
	check(t, err)
	if got := s.nic.udp.peers[udpAddr{verbs.GID{15: 1}, 4792}].ports; len(got) != s.nic.udp.conn.Sockets()+1 || got[0] != s.nic.udp.conn.SourcePort(0) {
		t.Errorf("learned ports %v, want the %d of the NIC", got, s.nic.udp.conn.Sockets()+1)
	}
	for name, tt := range map[string]struct {
		extra []byte
		wrong uint64
	}{
		"none":             {own[:extraLen-1], 0},
		"without ports":    {[]byte{'s', 'n', extraVersion, extraRuns, 0, 0, 1, 0}, 0},
		"this port":        {[]byte{'s', 'n', extraVersion, extraPorts, 0, 0, 1, 0, 0x12, 0x34, 0xc3, 0x50}, 0}, // 50000
		"other ports":      {[]byte{'s', 'n', extraVersion, extraPorts, 0, 0, 1, 0, 0x12, 0x34, 0xc3, 0x51}, 1},
		"last of many":     {slices.Concat([]byte{'s', 'n', extraVersion, extraPorts, 0, 0, 1, 0}, make([]byte, 2*1024), []byte{0xc3, 0x50}), 0},
		"half of the port": {[]byte{'s', 'n', extraVersion, extraPorts, 0, 0, 1, 0, 0x12, 0x34, 0xc3}, 1},
	} {
		s := newBesieged(t)
		q := s.qps[0]
		check(t, q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
		check(t, q.Connect(verbs.Endpoint{QPN: 0x99, GID: s.from.From, MTU: verbs.MTU256, MaxRdAtomic: 2, MaxDestRdAtomic: 2, Extra: tt.extra}))
		s.strike(s.forge(roce.Header{Opcode: roce.RC | roce.OpAck, DestQPN: q.num, Syndrome: roce.SyndromeAck}, 0))
		if got := s.nic.Stats(); got.WrongSource != tt.wrong || got.PacketsReceived != 1 {
			t.Errorf("%s: %d packets from a wrong source of %d, want %d of 1", name, got.WrongSource, got.PacketsReceived, tt.wrong)
		}
	}
}
