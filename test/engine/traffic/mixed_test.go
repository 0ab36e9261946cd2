package traffic_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// mixed is a stream of requests of every opcode, with the expected result of each.
type mixed struct {
	*testing.T
	a, b   *enginetest.Host
	scheme ibverbx.Scheme
	rng    *rand.Rand
	// Request i owns slot i of local and of target. constant is the target of READs that do not read the
	// stream's data, words is for atomics, and inbox is for SENDs.
	local, target, constant, words, inbox *ibverbx.Region

	wrs      []ibverbx.SendWR
	want     [][]byte // expected content of slot i of local or target; nil if empty
	payloads [][]byte // of SENDs
	signaled []int    // signaled requests
	notified []int    // requests with a notification
	sent     []int    // requests that fill a data receive
	count    [2]uint64

	posted, completed, delivered, taken int
	placed                              int    // requests before it are known to be in place
	recvs                               [2]int // notification and data receives posted
}

const (
	mixedSlot   = 4000
	mixedInline = 48
	mixedInbox  = 256
)

func newMixed(t *testing.T, a, b *enginetest.Host, scheme ibverbx.Scheme, requests int) *mixed {
	t.Helper()
	m := &mixed{T: t, a: a, b: b, scheme: scheme, rng: rand.New(rand.NewPCG(11, uint64(scheme)))}
	m.local, m.target = a.Region(requests*mixedSlot), b.Region(requests*mixedSlot)
	m.constant, m.words, m.inbox = b.Region(4*mixedSlot), b.Region(16), b.Region(requests*mixedInbox)
	enginetest.Fill(m.constant.Bytes(), m.rng.Uint64())
	m.want, m.payloads = make([][]byte, requests), make([][]byte, requests)
	for i := range requests {
		m.add(i)
	}
	last := &m.wrs[requests-1] // all work is done when the last one completes
	if last.Flags |= verbs.SendFence; last.Flags&verbs.SendSignaled == 0 {
		last.Flags |= verbs.SendSignaled
		m.signaled = append(m.signaled, requests-1)
	}
	return m
}

// add draws request i.
func (m *mixed) add(i int) {
	wr := ibverbx.SendWR{WRID: uint64(i), Imm: uint32(i) * 7, Opcode: verbs.Opcode(m.rng.IntN(7)), RemoteOffset: uint64(i * mixedSlot), Remote: m.target.Remote()}
	for _, flag := range []verbs.SendFlags{verbs.SendFence, verbs.SendSolicited} {
		if m.rng.IntN(10) == 0 {
			wr.Flags |= flag
		}
	}
	if m.rng.IntN(3) > 0 {
		wr.Flags |= verbs.SendSignaled
		m.signaled = append(m.signaled, i)
	}
	n := 1 + m.rng.IntN(mixedSlot-1)
	mine := m.local.Bytes()[i*mixedSlot:][:mixedSlot]
	enginetest.Fill(mine, m.rng.Uint64())
	switch wr.Opcode {
	case verbs.OpRDMARead:
		n = m.read(i, &wr, n)
	case verbs.OpAtomicCmpAndSwp, verbs.OpAtomicFetchAndAdd:
		n = m.atomic(i, &wr)
	default:
		if n = m.source(i, &wr, n); wr.Opcode <= verbs.OpRDMAWriteWithImm {
			m.want[i] = bytes.Clone(mine[:n])
		} else {
			m.payloads[i] = bytes.Clone(mine[:n])
			m.sent = append(m.sent, i)
		}
		if wr.Opcode == verbs.OpRDMAWriteWithImm {
			m.notified = append(m.notified, i)
		}
	}
	m.splitSGEs(i, &wr, n)
	m.wrs = append(m.wrs, wr)
}

// source chooses the length of a sending request: SENDs are short, some are inline, and notified requests may
// be empty.
func (m *mixed) source(i int, wr *ibverbx.SendWR, n int) int {
	if wr.Opcode == verbs.OpSend || wr.Opcode == verbs.OpSendWithImm {
		n = 1 + n%mixedInbox
	}
	if m.rng.IntN(4) == 0 {
		wr.Flags |= verbs.SendInline
		n = 1 + n%mixedInline
	}
	if wr.Opcode != verbs.OpRDMAWrite && i%11 == 0 {
		return 0
	}
	return n
}

// read creates a READ of constant data or, fenced, of data written by an earlier request.
func (m *mixed) read(i int, wr *ibverbx.SendWR, n int) int {
	if earlier := m.rng.IntN(i + 1); len(m.want[earlier]) > 0 && m.wrs[earlier].Opcode <= verbs.OpRDMAWriteWithImm {
		wr.Flags |= verbs.SendFence
		wr.RemoteOffset = uint64(earlier * mixedSlot)
		m.want[i] = m.want[earlier]
		return len(m.want[earlier])
	}
	wr.Remote, wr.RemoteOffset = m.constant.Remote(), uint64(m.rng.IntN(3*mixedSlot))
	m.want[i] = bytes.Clone(m.constant.Bytes()[wr.RemoteOffset:][:n])
	return n
}

// atomic adds to the first word, or swaps the second or not.
func (m *mixed) atomic(i int, wr *ibverbx.SendWR) int {
	k := int(wr.Opcode - verbs.OpAtomicCmpAndSwp)
	wr.Remote, wr.RemoteOffset = m.words.Remote(), uint64(8*k)
	old := m.count[k]
	m.want[i] = binary.NativeEndian.AppendUint64(nil, old)
	if wr.Opcode == verbs.OpAtomicFetchAndAdd {
		wr.CompareAdd = m.rng.Uint64()
		m.count[k] += wr.CompareAdd
	} else if wr.CompareAdd, wr.Swap = old^uint64(i&1), uint64(i+1)<<40; i&1 == 0 {
		m.count[k] = wr.Swap
	}
	return 8
}

// splitSGEs splits a request into up to four adjacent SGEs.
func (m *mixed) splitSGEs(i int, wr *ibverbx.SendWR, n int) {
	at, end := uint64(i*mixedSlot), uint64(i*mixedSlot+n)
	var sges []ibverbx.SGE
	for len(sges) < 3 && at < end && m.rng.IntN(2) == 0 {
		k := uint32(m.rng.IntN(int(end-at) + 1))
		sges = append(sges, m.local.SGE(at, k))
		at += uint64(k)
	}
	if at < end {
		sges = append(sges, m.local.SGE(at, uint32(end-at)))
	}
	wr.SetSGE(sges...)
}

// run posts the stream in chains and polls until everything has completed.
func (m *mixed) run(idle func(), p stallGuard) {
	m.Helper()
	for m.completed < len(m.signaled) || m.delivered < len(m.notified) || m.taken < len(m.sent) {
		m.receives()
		m.post()
		sent, came := m.a.Poll(), m.b.Poll()
		for i := range sent {
			m.checkCompletion(&sent[i])
		}
		for i := range came {
			m.received(&came[i])
		}
		progress := len(sent)+len(came) > 0
		if !progress {
			idle()
		}
		if err := p.step(progress); err != nil {
			m.Fatalf("%v: %d of %d posted, %d of %d completed, %d of %d delivered, %d of %d taken; %v, %v", err, m.posted, len(m.wrs),
				m.completed, len(m.signaled), m.delivered, len(m.notified), m.taken, len(m.sent), m.a.QP.Err(), m.b.QP.Err())
		}
	}
	for i := range m.wrs {
		m.check(i)
	}
	for k, want := range m.count {
		if got := binary.NativeEndian.Uint64(m.words.Bytes()[8*k:]); got != want {
			m.Errorf("word %d is %#x at the end, want %#x", k, got, want)
		}
	}
}

// post posts a chain and then overwrites the buffers of accepted inline requests.
func (m *mixed) post() {
	m.Helper()
	chain := m.wrs[m.posted:min(m.posted+1+m.rng.IntN(6), len(m.wrs))]
	n, err := m.a.QP.PostSend(chain)
	if n < len(chain) && !errors.Is(err, verbs.ErrQueueFull) {
		m.Fatalf("PostSend = %d of %d, %v; want all or %v", n, len(chain), err, verbs.ErrQueueFull)
	}
	for i := range chain[:n] {
		if chain[i].Flags&verbs.SendInline != 0 {
			clear(m.local.Bytes()[(m.posted+i)*mixedSlot:][:mixedInline])
		}
	}
	m.posted += n
}

// receives keeps both queues of receives filled.
func (m *mixed) receives() {
	m.Helper()
	for kind, all := range [2]int{len(m.notified), len(m.sent)} {
		for m.recvs[kind] < all {
			nth := m.recvs[kind]
			wr := ibverbx.RecvWR{WRID: uint64(kind)<<32 | uint64(nth)}
			if kind == 1 {
				wr.SetSGE(m.inbox.SGE(uint64(nth*mixedInbox), mixedInbox))
			}
			n, err := m.b.QP.PostRecv([]ibverbx.RecvWR{wr})
			if m.recvs[kind] += n; errors.Is(err, verbs.ErrQueueFull) {
				break
			}
			enginetest.Must(m, err)
		}
	}
}

// checkCompletion checks a request's completion and, for READs and atomics, the fetched bytes.
func (m *mixed) checkCompletion(wc *ibverbx.WC) {
	m.Helper()
	i := m.signaled[m.completed]
	if err := wc.Err(); err != nil || wc.WRID != uint64(i) || wc.Opcode != m.wrs[i].Opcode.WC() {
		m.Fatalf("completion = %+v, %v; want request %d, %s", wc, err, i, m.wrs[i].Opcode)
	}
	m.completed++
	if m.wrs[i].Opcode >= verbs.OpRDMARead {
		m.check(i)
	}
}

// received checks a receive: its own bytes and all earlier requests' bytes have arrived.
func (m *mixed) received(wc *ibverbx.WC) {
	m.Helper()
	var i int
	if wc.WRID>>32 == 0 {
		i = m.notified[m.delivered]
		checkNotification(m.T, m.scheme, *wc, m.delivered, i, len(m.want[i]))
		m.delivered++
	} else {
		i = m.sent[m.taken]
		withImm := m.wrs[i].Opcode == verbs.OpSendWithImm
		if err := wc.Err(); err != nil || uint32(wc.WRID) != uint32(m.taken) || wc.ByteLen != uint32(len(m.payloads[i])) ||
			withImm != (wc.Flags&ibverbx.WCHasImm != 0) || (withImm && wc.Imm != uint32(i)*7) {
			m.Fatalf("receive = %+v, %v; want number %d, %d bytes of request %d", wc, err, m.taken, len(m.payloads[i]), i)
		}
		if !bytes.Equal(m.inbox.Bytes()[m.taken*mixedInbox:][:wc.ByteLen], m.payloads[i]) {
			m.Fatalf("request %d (%s) did not arrive as it was sent", i, m.wrs[i].Opcode)
		}
		m.taken++
	}
	for ; m.placed <= i; m.placed++ {
		if m.wrs[m.placed].Opcode <= verbs.OpRDMAWriteWithImm {
			m.check(m.placed)
		}
	}
}

// check compares the data that request i wrote or fetched.
func (m *mixed) check(i int) {
	m.Helper()
	at := m.local
	if m.wrs[i].Opcode <= verbs.OpRDMAWriteWithImm {
		at = m.target
	}
	if got := at.Bytes()[i*mixedSlot:][:len(m.want[i])]; !bytes.Equal(got, m.want[i]) {
		m.Fatalf("request %d (%s, %s): byte %d of %d is wrong", i, m.wrs[i].Opcode, m.wrs[i].Flags, enginetest.FirstDifference(got, m.want[i]), len(got))
	}
}

// mixedConfig returns limits that make requests wait for lanes and for slots.
func mixedConfig(scheme ibverbx.Scheme, lanes int) ibverbx.Config {
	return ibverbx.Config{Lanes: lanes, Scheme: scheme, FragmentSize: 600, SendDepth: 32, LaneDepth: 8, RecvDepth: 64, MaxInline: mixedInline, SignalInterval: 3}
}

// TestMixedOpcodes: one stream of every opcode, fenced, unsignaled, inline and fragmented. All written,
// fetched and sent bytes are compared. Completions are in order, and a notification arrives only after all
// earlier requests are done.
func TestMixedOpcodes(t *testing.T) {
	for _, lanes := range []int{2, 5} {
		each(t, lanes, func(t *testing.T, scheme ibverbx.Scheme, links func() []softnic.Link) {
			a, b := enginetest.NewPair(t, links(), mixedConfig(scheme, lanes))
			newMixed(t, a, b, scheme, 400).run(yield, stallGuard{})
		})
	}
}

// TestMixedOpcodesOverFaults is the same on wires that lose, repeat and reorder packets,
// in virtual time.
func TestMixedOpcodesOverFaults(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("%s/seed=%d", scheme, seed), func(t *testing.T) {
				bad := softnic.Impairment{Loss: 0.01, Duplicate: 0.02, Reorder: 0.1, Delay: 5 * time.Microsecond, Jitter: 20 * time.Microsecond}
				w := newWires(t, softnic.FaultConfig{Seed: seed, Impairment: bad}, softnic.FaultConfig{Seed: seed + 100, Impairment: bad})
				a, b := enginetest.NewPair(t, w.links, mixedConfig(scheme, 4))
				newMixed(t, a, b, scheme, 300).run(w.step, stallGuard{limit: steps})
			})
		}
	}
}
