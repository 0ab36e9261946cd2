package model_test

import (
	"encoding/binary"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// hostileLanes is the number of data lanes in the fuzz targets of receivers.
const hostileLanes = 3

// delivery is one message from a hostile peer; it consumes a lane's receive.
type delivery struct {
	lane int
	wc   verbs.WC
	seq  uint32 // message number of a record, or number of DQPLB
	want uint16 // records of the message
}

// record returns the record of Tally.
func (d *delivery) record() []byte {
	var b [16]byte
	binary.LittleEndian.PutUint32(b[0:], d.seq)
	binary.LittleEndian.PutUint16(b[4:], d.want)
	binary.LittleEndian.PutUint32(b[8:], d.wc.Imm)
	binary.LittleEndian.PutUint32(b[12:], ^d.seq)
	return b[:]
}

// outcome classifies a delivery: it must, may or must not fail the VirtualQP.
type outcome uint8

const (
	accepted outcome = iota
	doubtful
	refused
)

// referee is a second, simple receiver. It counts the messages that are complete.
type referee interface {
	deliver(d *delivery) outcome
	// complete returns the expected completions of all complete messages, in order.
	complete() []ibverbx.WC
}

// far is a distance that no window reaches, and near one that every window of these tests has.
const far, near = 1 << 16, 16

// tallyReferee counts records.
type tallyReferee struct {
	next uint32
	open map[uint32]*[2]uint16 // records received and records expected, by message
	last map[uint32]*delivery
	// latest holds the last number received on each lane.
	latest map[int]uint32
	done   []ibverbx.WC
}

func (r *tallyReferee) complete() []ibverbx.WC { return r.done }

func (r *tallyReferee) deliver(d *delivery) outcome {
	length := uint32(16)
	if d.wc.Opcode == verbs.WCRecvRDMAWithImm {
		if _, ok := r.latest[d.lane]; !ok {
			return refused
		}
		d.seq, d.want, length = r.latest[d.lane]+1, 1, d.wc.ByteLen
	}
	ahead := d.seq - r.next
	m := r.open[d.seq]
	switch {
	case d.wc.ByteLen != length || ahead >= far || d.want == 0 || d.want > hostileLanes:
		return refused
	case m != nil && (m[1] != d.want || m[0] == d.want):
		return refused
	case m == nil:
		m = &[2]uint16{0, d.want}
		r.open[d.seq] = m
	}
	m[0]++
	r.last[d.seq], r.latest[d.lane] = d, d.seq
	for m = r.open[r.next]; m != nil && m[0] == m[1]; m = r.open[r.next] {
		last := r.last[r.next]
		wc := ibverbx.WC{Imm: last.wc.Imm, ByteLen: ^r.next, Flags: ibverbx.WCHasImm | ibverbx.WCHasLength}
		if last.wc.Opcode == verbs.WCRecvRDMAWithImm {
			wc.ByteLen = last.wc.ByteLen
		}
		r.done = append(r.done, wc)
		delete(r.open, r.next)
		r.next++
	}
	if ahead >= near {
		return doubtful
	}
	return accepted
}

// dqplbReferee puts numbers in order.
type dqplbReferee struct {
	cxx    bool
	next   uint32
	held   map[uint32]*delivery
	latest [hostileLanes]int64 // last number received on each lane, unwrapped; -1 before the first
	length uint32
	done   []ibverbx.WC
}

func (r *dqplbReferee) complete() []ibverbx.WC { return r.done }

func (r *dqplbReferee) deliver(d *delivery) outcome {
	const numbers = 1<<24 - 1
	v, last := enginetest.DQPLBNumber(d.wc.Imm)
	if d.wc.Opcode != verbs.WCRecvRDMAWithImm || d.wc.Flags&verbs.WCWithImm == 0 || v == numbers || v < r.next || v-r.next >= far || r.held[v] != nil {
		return refused // the tests are too short for numbers to wrap
	}
	ahead := v - r.next
	d.want = 0
	if last {
		d.want = 1
	}
	r.held[v], r.latest[d.lane] = d, int64(v)
	for m := r.held[r.next]; m != nil; m = r.held[r.next] {
		delete(r.held, r.next)
		r.next++
		if r.length += m.wc.ByteLen; m.want == 1 {
			r.done = append(r.done, ibverbx.WC{ByteLen: r.length, Flags: ibverbx.WCHasLength})
			r.length = 0
		}
	}
	later := true
	for _, n := range r.latest {
		later = later && n > int64(r.next)
	}
	switch {
	case r.cxx && ahead > 0 && later:
		return refused
	case ahead >= near:
		return doubtful
	}
	return accepted
}

// sprayReferee counts notifications.
type sprayReferee struct{ done []ibverbx.WC }

func (r *sprayReferee) complete() []ibverbx.WC { return r.done }

func (r *sprayReferee) deliver(d *delivery) outcome {
	if d.lane < hostileLanes || d.wc.Opcode != verbs.WCRecvRDMAWithImm || d.wc.ByteLen != 0 {
		return refused
	}
	r.done = append(r.done, ibverbx.WC{Imm: d.wc.Imm, Flags: ibverbx.WCHasImm})
	return accepted
}

// siege is a VirtualQP with a hostile peer.
type siege struct {
	t         *testing.T
	host      *enginetest.Host
	nic       *nullnic.NIC
	judge     referee
	scheme    ibverbx.Scheme
	shared    bool
	posted    int // receives posted
	delivered int // receives completed successfully
	flushed   int // receives completed with an error
}

func newSiege(t *testing.T, scheme ibverbx.Scheme, options byte) *siege {
	t.Helper()
	s := &siege{t: t, nic: nullnic.New("null0", 0x11), scheme: scheme, shared: options&1 != 0}
	queue := ibverbx.CQConfig{Depth: 256}
	if s.shared {
		queue.SharedReceives = 8
	}
	s.host = enginetest.NewRailsOn(t, ibverbx.RailConfig{Context: s.nic})
	s.host.NewCQ(queue)
	cxx := scheme == ibverbx.DQPLB && options&2 != 0
	s.host.NewQP(ibverbx.Config{Lanes: hostileLanes, Scheme: scheme, CxxPeer: cxx, SendDepth: 4, RecvDepth: 4, LaneDepth: 4, NotifyDepth: 4})
	card, err := s.host.QP.Card()
	enginetest.Must(t, err)
	enginetest.Must(t, s.host.QP.Connect(card))
	switch scheme {
	case ibverbx.DQPLB:
		s.judge = &dqplbReferee{cxx: cxx, held: make(map[uint32]*delivery), latest: [hostileLanes]int64{-1, -1, -1}}
	case ibverbx.Spray:
		s.judge = &sprayReferee{}
	default:
		s.judge = &tallyReferee{open: make(map[uint32]*[2]uint16), last: make(map[uint32]*delivery), latest: make(map[int]uint32)}
	}
	return s
}

// poll polls completions. Receives complete in order, and each success is a complete message.
func (s *siege) poll() {
	s.t.Helper()
	for _, wc := range s.host.Poll() {
		if wc.WRID != uint64(s.delivered+s.flushed) {
			s.t.Fatalf("receive %d ends, want %d", wc.WRID, s.delivered+s.flushed)
		}
		if wc.Err() != nil {
			s.flushed++
			continue
		}
		done := s.judge.complete()
		if s.flushed > 0 || s.delivered == len(done) {
			s.t.Fatalf("receive %d ends in success: %d messages are complete, %d receives were flushed", wc.WRID, len(done), s.flushed)
		}
		if want := done[s.delivered]; wc.Opcode != verbs.WCRecvRDMAWithImm || wc.Imm != want.Imm || wc.ByteLen != want.ByteLen || wc.Flags != want.Flags {
			s.t.Fatalf("message %d = %+v, want %+v", s.delivered, wc, want)
		}
		s.delivered++
	}
	if s.host.QP.Err() != nil && s.flushed == 0 {
		return
	}
	if s.host.QP.Err() == nil && (s.flushed > 0 || s.delivered != min(s.posted, len(s.judge.complete()))) {
		s.t.Fatalf("%d receives ended in success and %d in error; %d were posted and %d messages are complete",
			s.delivered, s.flushed, s.posted, len(s.judge.complete()))
	}
}

// step interprets six bytes of the input.
func (s *siege) step(b []byte) {
	s.t.Helper()
	if b[0]&7 == 0 {
		n, _ := s.host.QP.PostRecv([]ibverbx.RecvWR{{WRID: uint64(s.posted)}})
		s.posted += n
		s.poll()
		return
	}
	d := &delivery{lane: int(b[1]) % hostileLanes, seq: uint32(b[2]), want: uint16(b[3] & 3)}
	if b[0]&0x80 != 0 { // any number at all
		d.seq, d.want = binary.LittleEndian.Uint32(b[2:]), uint16(b[3])<<8|uint16(b[1])
	}
	d.wc = verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: binary.LittleEndian.Uint32(b[2:])}
	switch s.scheme {
	case ibverbx.DQPLB:
		d.wc.Imm, d.wc.ByteLen = enginetest.DQPLBImm(d.seq&0xffffff, b[3]&4 != 0), uint32(b[4])
	case ibverbx.Spray:
		if b[1]&0x10 == 0 {
			d.lane = hostileLanes + 1
		}
	default:
		d.wc.Opcode, d.wc.Flags, d.wc.ByteLen = verbs.WCRecv, 0, 16
	}
	if b[0]&0x78 == 0x78 { // not even of the right kind
		d.wc.Opcode, d.wc.ByteLen, d.wc.Flags = verbs.WCRecv+verbs.WCOpcode(b[5]&1), uint32(b[4]&31), verbs.WCFlags(b[5]>>1)&verbs.WCWithImm
	}
	var payload []byte
	if s.scheme == ibverbx.Tally {
		payload = d.record()
	}
	if !s.nic.QPs()[d.lane].Deliver(d.wc, payload) {
		return // the peer meets RNR
	}
	verdict := s.judge.deliver(d)
	s.poll()
	// An SRQ cannot throttle a peer that sends more than there are receives for.
	early := s.shared && len(s.judge.complete()) > s.posted+4
	if err := s.host.QP.Err(); (err == nil && verdict == refused) || (err != nil && verdict == accepted && !early) {
		s.t.Fatalf("after %+v: Err = %v, want outcome %d", d, err, verdict)
	}
}

// end settles a failed VirtualQP: every receive completes once.
func (s *siege) end() {
	s.t.Helper()
	s.poll()
	if s.host.QP.Err() == nil {
		return
	}
	for range 20 {
		s.poll()
	}
	if s.delivered+s.flushed != s.posted {
		s.t.Fatalf("%d receives ended in success and %d in error, want %d together", s.delivered, s.flushed, s.posted)
	}
}

// fuzzReceiver feeds a scheme's receiver with input from a hostile peer. The VirtualQP must fail or agree
// with the referee's counts.
func fuzzReceiver(f *testing.F, scheme ibverbx.Scheme) {
	for options := range byte(4) {
		f.Add([]byte{options, 0, 0, 0, 0, 0, 0, 1, 0, 0, 5, 9, 0, 1, 1, 1, 5, 8, 0, 1, 2, 2, 5, 7, 0})
		f.Add([]byte{options, 1, 1, 3, 5, 0, 0, 1, 2, 2, 5, 0, 0, 1, 0, 1, 5, 0, 0, 1, 1, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0})
		f.Add([]byte{options, 0x81, 1, 0xff, 0xff, 0xff, 0xff})
		f.Add([]byte{options, 0x79, 1, 0, 1, 16, 3, 0x7f, 0, 0, 0, 0, 0})
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > 1200 {
			return
		}
		s := newSiege(t, scheme, b[0])
		for b = b[1:]; len(b) >= 6 && s.host.QP.Err() == nil; b = b[6:] {
			s.step(b)
		}
		s.end()
	})
}

func FuzzTallyReceiver(f *testing.F) { fuzzReceiver(f, ibverbx.Tally) }
func FuzzDQPLBReceiver(f *testing.F) { fuzzReceiver(f, ibverbx.DQPLB) }
func FuzzSprayReceiver(f *testing.F) { fuzzReceiver(f, ibverbx.Spray) }
