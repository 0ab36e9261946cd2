package core

import (
	"encoding/binary"
	"hash/maphash"
	"reflect"
	"testing"

	"ibverbx/reliable/wire"
)

// fingerprint returns a hash of all state that affects a model's future. Times are relative to now, and stale
// entries outside the windows are excluded.
func (m *model) fingerprint(seed maphash.Seed, withBounds bool) uint64 {
	b := make([]byte, 0, 2048)
	for i := range m.ends {
		b = m.ends[i].fingerprint(b, m.now)
		// Control packets arrive in any order: the sum of their hashes does not know one.
		var sum uint64
		for j := range m.ctrl[i] {
			sum += maphash.Bytes(seed, m.ctrl[i][j].fingerprint(nil))
		}
		b = putInts(b, sum)
		for _, q := range m.paths[i] {
			b = putInts(b, len(q))
			for j := range q {
				b = q[j].fingerprint(b)
			}
		}
	}
	b = putInts(b, int(m.dead))
	if withBounds {
		b = putInts(b, m.left.faults, m.left.ticks)
	}
	return maphash.Bytes(seed, b)
}

type integer interface {
	~int | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

func putInts[T integer](b []byte, vs ...T) []byte {
	for _, v := range vs {
		b = binary.AppendUvarint(b, uint64(v))
	}
	return b
}

func putBools(b []byte, vs ...bool) []byte {
	for _, v := range vs {
		if v {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	return b
}

// putTimes appends times relative to now.
func putTimes(b []byte, now int64, vs ...int64) []byte {
	for _, v := range vs {
		switch v {
		case never:
			b = append(b, 0xff, 1)
		case -never:
			b = append(b, 0xff, 2)
		default:
			b = binary.AppendVarint(b, v-now)
		}
	}
	return b
}

func (p *packet) fingerprint(b []byte) []byte {
	b = putInts(b, int(p.route), int(p.qpn), int(p.imm.Encode()), p.at, len(p.data))
	if p.imm.Kind == wire.KindChunk {
		var h [wire.HeaderLen]byte
		p.hdr.Put(h[:])
		b = append(b, h[:]...)
	}
	if p.rec.Type != 0 {
		pkt, _ := wire.AddRecord(wire.StartControl(make([]byte, 0, 64), 0), &p.rec)
		b = append(b, pkt...)
	}
	return b
}

func (e *end) fingerprint(b []byte, now int64) []byte {
	for _, q := range e.qps {
		b = putInts(b, int(q.qpn), int(q.peer), int(q.epoch))
		b = putBools(b, q.dead)
	}
	b = putInts(b, int(e.nextQPN), e.pool, e.turn)
	b = putInts(b, e.word, e.sums) // store never changes
	b = append(b, e.inbox...)
	b = putBools(b, e.settled...)
	for _, f := range e.flows {
		b = putInts(b, len(f.out), len(f.got), len(f.receives), int(f.fault), int(f.wanted))
		b = append(b, f.done...)
		for _, r := range f.receives {
			b = append(b, r...)
		}
		for i := range f.out {
			b = append(b, f.out[i].got...)
		}
		for i := range f.answers {
			b = putInts(b, uint64(f.answers[i].fetch.Kind), f.answers[i].fetch.Addr)
			b = append(b, f.answers[i].bytes...)
		}
	}
	return e.conn.fingerprint(e.fingerprintCopies(b), now)
}

func (c *Conn) fingerprint(b []byte, now int64) []byte {
	// opened and minGiveUp never change here; heap and due derive from the timers; touched is empty.
	b = putInts(b, c.alive, c.ready.Len(), len(c.lossy), len(c.owing))
	for i := c.ready.Head(); i != c.ready.Tail(); i++ {
		b = putInts(b, *c.ready.At(i))
	}
	b = putBools(b, c.control.requestDue)
	b = putInts(b, c.lossy...)
	b = putInts(b, c.owing...)
	for _, f := range c.flows {
		b = f.fingerprint(b, now)
		for i, n := range f.send.acked {
			b = putInts(b, max(n, c.paths[i].low)) // lower values are equivalent
		}
	}
	for i := range c.paths {
		b = c.paths[i].fingerprint(b, now)
	}
	b = putInts(b, c.lost, c.flying, c.flyingBytes, c.timedOut, c.window, c.control.credit)
	b = putInts(b, int(c.last), int(c.lastBytes), int(c.rack.shift))                                                            // calm never gets to its limit here
	b = putInts(b, uint32(c.control.route), c.control.routeTurns%6, min(c.control.lostAckHints, 2), uint32(c.control.ackRoute)) // 6: three routes, up to two paths
	if c.cfg.Adapt {
		b = c.congestion.fingerprint(b, now)
	}
	// No credits here: credits do not count; rtt is fixed.
	return putTimes(b, now, c.rack.at, c.rack.reorderAt)
}

func (a *congestion) fingerprint(b []byte, now int64) []byte {
	d, h := &a.drain, &a.delays
	b = putInts(b, a.window, int(a.phase), a.emptyRounds, d.hold, d.flightBefore)
	b = putInts(b, a.base, d.least, d.last, d.rttBefore, d.rttBeforeJump, int64(d.samples), h.longestNow, h.spread, h.longestBefore, h.constant, int64(h.rounds))
	b = putBools(b, a.noisy, d.deep, d.spike, d.retry)
	for _, r := range []*roundStats{&a.round, &a.before} {
		b = putInts(b, r.least, r.sum, r.samples, int64(r.peak), int64(r.losses))
		b = putBools(b, r.limited)
		b = putTimes(b, now, r.begin)
	}
	return putTimes(b, now, d.fromAt, d.until, d.seenAt, d.endedAt)
}

func (f *flow) fingerprint(b []byte, now int64) []byte {
	b = putBools(b, f.failed, f.suspended, f.inReady, f.inLossy, f.inOwing, f.answers.own)
	b = f.fingerprintFetches(b)
	b = f.send.fingerprint(b, now)
	for i := f.send.reported; i < f.send.posted; i++ {
		m := f.send.message(i)
		b = putInts(b, uint64(m.off), m.end, uint64(m.refs), uint64(m.number))
		b = putInts(b, m.Status)
		b = putBools(b, m.begun, m.waits)
	}
	for csn := f.send.una; csn < f.send.nxt; csn++ {
		b = f.send.chunk(csn).fingerprint(b, now)
	}
	b = f.recv.fingerprint(b, now)
	for csn := f.recv.next; csn < f.recv.next+uint64(len(f.recv.early)); csn++ {
		have, s := f.recv.at(csn)
		b = putBools(b, *have)
		if *have {
			b = putInts(b, uint32(s.op), uint32(s.flags), uint32(s.status), s.message, s.offset, s.imm, s.len)
		}
	}
	return b
}

func (f *flow) fingerprintFetches(b []byte) []byte {
	b = putInts(b, uint32(f.nextStatus), f.fetches.asked, f.fetches.answered, f.fetches.placed, f.answers.taken, f.answers.cut, f.answers.done)
	for i := f.fetches.answered; i != f.fetches.asked; i++ {
		b = putInts(b, *f.fetches.message(i))
	}
	for i := range f.answers.limit { // never changes, and the tables mean the same before the first fetch
		b = putBools(b, f.answers.early != nil && f.answers.early[i])
	}
	for i := f.answers.done; i != f.answers.taken; i++ {
		m := f.answers.message(i)
		b = putInts(b, uint64(m.Length), uint64(m.off), m.end, uint64(m.refs), uint64(m.number))
		b = putBools(b, m.begun)
	}
	return b
}

func (s *sender) fingerprint(b []byte, now int64) []byte {
	b = putInts(b, s.posted, s.cut, s.reported, uint64(s.messageNo), s.una, s.nxt, s.wrote, s.barrier)
	b = putInts(b, s.lostCount, int(s.recvLimit), int(s.nonce), int(s.probed), int(s.recvCredit.reported))
	b = putInts(b, s.probes, s.recvProbes)
	b = putBools(b, s.noRecv, s.busy, s.recvCredit.shared)
	if s.noRecv {
		b = putTimes(b, now, s.recvCredit.resendAt)
	}
	// noRecvAt, acked, nonce and denied count only for RecvPatience, which is forever; progressAt and arrivedAt count only for GiveUp, which is out of reach.
	return putTimes(b, now, s.rackAt, s.probeAt, s.nonceAt)
}

func (ch *chunk) fingerprint(b []byte, now int64) []byte {
	b = putInts(b, ch.msg, uint64(ch.off), uint64(ch.len), uint64(ch.pseq), uint64(ch.path), uint64(ch.epoch),
		uint64(ch.origPath), uint64(ch.origEpoch), uint64(ch.op), uint64(ch.flags), uint64(ch.xmits), uint64(ch.state))
	b = putBools(b, ch.moved)
	return putTimes(b, now, ch.sentAt)
}

func (p *path) fingerprint(b []byte, now int64) []byte {
	b = putInts(b, uint32(p.state), uint32(p.epoch), p.low, p.done, p.next, uint32(p.inflight), uint32(p.flying), uint32(p.loss))
	b = putInts(b, uint32(p.attempts), uint32(p.tries), uint32(p.pongs), p.own.qpn, p.own.psn, p.peer.qpn, p.peer.psn, p.pingNonce)
	b = putBools(b, p.measured, p.havePeer, p.peerHas, p.silent)
	if p.silent {
		b = putInts(b, p.silentFlow)
		b = putTimes(b, now, p.silentAt)
	}
	for i := p.low; i != p.next; i++ {
		e := p.entry(i)
		b = putInts(b, e.csn, e.msg, uint64(e.flow))
		b = putTimes(b, now, e.sentAt)
	}
	// measuredAt affects only MaxAge, which is unreachable, and pingAt only measurements; stats has no
	// effect.
	if p.state == PathSuspect {
		b = putTimes(b, now, p.suspectAt)
	}
	return putTimes(b, now, p.timerAt)
}

func (r *receiver) fingerprint(b []byte, now int64) []byte {
	b = putInts(b, r.next, r.highest, uint64(r.fault), uint64(r.nextRecv), uint64(r.placed), uint64(r.posted), uint64(r.reported))
	b = putInts(b, r.owed, r.owedBytes, r.placement.chunks) // shared never changes
	b = putBools(b, r.faulty, r.faultDue, r.ackNow, r.dup, r.echoing, r.nonceDue)
	if r.echoing {
		b = putInts(b, uint32(r.echoCSN), uint32(r.echoXmit))
	}
	if r.placement.chunks > 0 {
		b = putTimes(b, now, r.placement.until)
	}
	return putTimes(b, now, r.ackAt)
}

// TestFingerprintComplete fails when a struct gains a field, as a reminder to add it to the fingerprints: a
// missing field would make different states look equal.
func TestFingerprintComplete(t *testing.T) {
	for _, tt := range []struct {
		v    any
		want int
	}{
		{Conn{}, 14}, // age belongs to the event
		{sender{}, 26},
		{recvCredit{}, 6},
		{control{}, 7}, // posting belongs to the event
		{traffic{}, 9},
		{congestion{}, 11},
		{drain{}, 14},
		{roundStats{}, 7},
		{delayHistory{}, 5},
		{rack{}, 4},
		{schedule{}, 9},
		{flow{}, 17},
		{fetches{}, 6}, // probedAt counts only for GiveUp
		{answers{}, 7},
		{message{}, 7},
		{chunk{}, 14},
		{path{}, 29},
		{entry{}, 4},
		{receiver{}, 24},
		{placement{}, 2},
		{slot{}, 7},
		{rtt{}, 6},
		{credits{}, 19},
	} {
		if got := reflect.TypeOf(tt.v).NumField(); got != tt.want {
			t.Errorf("%T has %d fields, want %d: add the new one to its fingerprint", tt.v, got, tt.want)
		}
	}
}
