package ibverbx_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/nullnic"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestMain fails if a test leaves a goroutine behind.
func TestMain(m *testing.M) { enginetest.Main(m) }

// messageBatch is the number of requests that a benchmark posts before it polls them all.
const messageBatch = 64

// BenchmarkMessage measures the engine's cost per request over a null NIC: 64 requests are posted, then all
// polled. side=recv is the receiver's cost of a notified request: 64 receives are posted, then all polled.
// The NIC's work in between is not counted.
func BenchmarkMessage(b *testing.B) {
	for _, scheme := range enginetest.Schemes {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm} {
			for _, lanes := range []int{1, 4, 16, 128} {
				for _, frags := range []int{1, 4, 16} {
					if lanes == 1 && frags > 1 {
						continue // it passes through
					}
					name := map[verbs.Opcode]string{verbs.OpRDMAWrite: "write", verbs.OpRDMAWriteWithImm: "writeimm"}[op]
					name = fmt.Sprintf("scheme=%s/op=%s/lanes=%d/frags=%d/side=", scheme, name, lanes, frags)
					b.Run(name+"send", func(b *testing.B) { benchSend(b, scheme, op, lanes, frags) })
					if op == verbs.OpRDMAWriteWithImm {
						b.Run(name+"recv", func(b *testing.B) { benchRecv(b, scheme, lanes, frags) })
					}
				}
			}
		}
	}
}

// BenchmarkMessageLane measures the same for requests that are not cut and use the message lane: SENDs,
// and atomics. side=recv is the cost of a data receive.
func BenchmarkMessageLane(b *testing.B) {
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpAtomicFetchAndAdd, verbs.OpAtomicCmpAndSwp} {
		for _, lanes := range []int{1, 4, 16, 128} {
			name := map[verbs.Opcode]string{verbs.OpSend: "send", verbs.OpAtomicFetchAndAdd: "fetchadd", verbs.OpAtomicCmpAndSwp: "cmpswap"}[op]
			name = fmt.Sprintf("op=%s/lanes=%d/side=", name, lanes)
			b.Run(name+"send", func(b *testing.B) { benchSend(b, ibverbx.Tally, op, lanes, 1) })
			if op == verbs.OpSend {
				b.Run(name+"recv", func(b *testing.B) { benchDataRecv(b, lanes) })
			}
		}
	}
}

const benchFragment = 4096

// benchQP returns a VirtualQP over a null NIC.
func benchQP(b *testing.B, scheme ibverbx.Scheme, lanes, notifyDepth int) (*nullnic.NIC, *ibverbx.Rails, *ibverbx.VirtualCQ, *ibverbx.VirtualQP) {
	nic := nullnic.New("null0", 0x11)
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nic})
	enginetest.Must(b, err)
	cq, err := rails.NewCQ(ibverbx.CQConfig{Depth: 1 << 18})
	enginetest.Must(b, err)
	q, err := cq.NewQP(ibverbx.Config{Lanes: lanes, Scheme: scheme, FragmentSize: benchFragment, LaneDepth: 256, NotifyDepth: notifyDepth})
	enginetest.Must(b, err)
	card, err := q.Card()
	enginetest.Must(b, err)
	enginetest.Must(b, q.Connect(card))
	return nic, rails, cq, q
}

func benchSend(b *testing.B, scheme ibverbx.Scheme, op verbs.Opcode, lanes, frags int) {
	_, rails, cq, q := benchQP(b, scheme, lanes, 0)
	mem, err := verbs.AllocMemory(frags*benchFragment, nil)
	enginetest.Must(b, err)
	region, err := rails.Register(mem, verbs.AccessAll)
	enginetest.Must(b, err)
	wrs := make([]ibverbx.SendWR, messageBatch)
	length := uint32(frags * benchFragment)
	if op == verbs.OpAtomicFetchAndAdd || op == verbs.OpAtomicCmpAndSwp {
		length = 8
	}
	for i := range wrs {
		wrs[i] = ibverbx.SendWR{WRID: uint64(i), Opcode: op, Flags: verbs.SendSignaled, Remote: region.Remote()}
		wrs[i].SetSGE(region.SGE(0, length))
	}
	wcs := make([]ibverbx.WC, messageBatch)
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += messageBatch {
		polled := 0
		for left := wrs; len(left) > 0; {
			n, err := q.PostSend(left)
			if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
				b.Fatal(err)
			}
			if left = left[n:]; len(left) > 0 {
				polled += pollAll(b, cq, wcs)
			}
		}
		for polled < messageBatch {
			polled += pollAll(b, cq, wcs)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/msg")
}

func benchRecv(b *testing.B, scheme ibverbx.Scheme, lanes, frags int) {
	// Twice the messages between two polls: half of the receives are reposted meanwhile.
	perLane := messageBatch
	if scheme != ibverbx.Spray {
		perLane = (messageBatch*frags + lanes - 1) / lanes
	}
	nic, _, cq, q := benchQP(b, scheme, lanes, max(16, 2*perLane))
	peer := benchPeer{qps: nic.QPs(), scheme: scheme, lanes: lanes, frags: frags}
	benchReceives(b, cq, q, make([]ibverbx.RecvWR, messageBatch), peer.send)
}

// benchDataRecv measures receives that SENDs fill.
func benchDataRecv(b *testing.B, lanes int) {
	nic, rails, cq, q := benchQP(b, ibverbx.Tally, lanes, 0)
	mem, err := verbs.AllocMemory(benchFragment, nil)
	enginetest.Must(b, err)
	region, err := rails.Register(mem, verbs.AccessAll)
	enginetest.Must(b, err)
	wrs := make([]ibverbx.RecvWR, messageBatch)
	for i := range wrs {
		wrs[i].SetSGE(region.SGE(0, benchFragment))
	}
	peer := benchPeer{qps: nic.QPs()}
	message := len(peer.qps) - 1 // the message lane is the last, or the only one
	benchReceives(b, cq, q, wrs, func(b *testing.B) {
		peer.deliver(b, message, verbs.WC{Opcode: verbs.WCRecv, ByteLen: benchFragment}, nil)
	})
}

// benchReceives measures the posting and polling of receives that send fills one by one.
func benchReceives(b *testing.B, cq *ibverbx.VirtualCQ, q *ibverbx.VirtualQP, wrs []ibverbx.RecvWR, send func(*testing.B)) {
	wcs := make([]ibverbx.WC, messageBatch)
	var spent time.Duration
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += messageBatch {
		start := time.Now()
		if n, err := q.PostRecv(wrs); n != messageBatch {
			b.Fatal(err)
		}
		spent += time.Since(start)
		for range messageBatch {
			send(b)
		}
		start = time.Now()
		for polled := 0; polled < messageBatch; {
			polled += pollAll(b, cq, wcs)
		}
		spent += time.Since(start)
	}
	b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N), "ns/msg")
}

// benchPeer completes the receives of a VirtualQP like a sender of its scheme.
type benchPeer struct {
	qps          []*nullnic.QP
	scheme       ibverbx.Scheme
	lanes, frags int
	cursor       int
	seq          uint32
	record       [16]byte
}

// send delivers a notified request of p.frags fragments.
func (p *benchPeer) send(b *testing.B) {
	wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ByteLen: benchFragment}
	switch {
	case p.lanes == 1:
		p.deliver(b, 0, wc, nil)
	case p.scheme == ibverbx.Spray:
		wc.ByteLen = 0
		p.deliver(b, p.lanes+1, wc, nil)
	case p.scheme == ibverbx.DQPLB:
		for i := range p.frags {
			imm := p.seq % (1<<24 - 1)
			if p.seq++; i == p.frags-1 {
				imm |= 1 << 31
			}
			wc.Imm = bits.ReverseBytes32(imm)
			p.deliver(b, p.next(), wc, nil)
		}
	default:
		n := min(p.frags, p.lanes)
		binary.LittleEndian.PutUint32(p.record[0:], p.seq)
		binary.LittleEndian.PutUint16(p.record[4:], uint16(n))
		p.seq++
		wc = verbs.WC{Opcode: verbs.WCRecv, ByteLen: 16}
		for range n {
			p.deliver(b, p.next(), wc, p.record[:])
		}
	}
}

func (p *benchPeer) next() int {
	p.cursor = (p.cursor + 1) % p.lanes
	return p.cursor
}

func (p *benchPeer) deliver(b *testing.B, qp int, wc verbs.WC, payload []byte) {
	if !p.qps[qp].Deliver(wc, payload) {
		b.Fatal("the VirtualQP has no receive posted")
	}
}

func pollAll(b *testing.B, cq *ibverbx.VirtualCQ, wcs []ibverbx.WC) int {
	n, err := cq.Poll(wcs)
	if err != nil || (n > 0 && wcs[0].Status != verbs.StatusSuccess) {
		b.Fatal(err, wcs[0].Err())
	}
	return n
}

// BenchmarkNullNIC is the lower bound: the same chains posted and polled without the engine.
func BenchmarkNullNIC(b *testing.B) {
	nic := nullnic.New("null0", 0x11)
	cq, err := nic.CreateCQ(verbs.CQConfig{Depth: 4 * messageBatch})
	enginetest.Must(b, err)
	pd, err := nic.AllocPD()
	enginetest.Must(b, err)
	q, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
	enginetest.Must(b, err)
	end, err := q.Endpoint()
	enginetest.Must(b, err)
	enginetest.Must(b, q.Connect(end))
	wrs, wcs := make([]verbs.SendWR, messageBatch), make([]verbs.WC, messageBatch)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for done := 0; done < b.N; done += messageBatch {
		if n, err := q.PostSend(wrs); n != messageBatch {
			b.Fatal(err)
		}
		if n, err := cq.Poll(wcs); n != messageBatch {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/msg")
}

// BenchmarkPollEmpty polls an empty VirtualCQ. Its sessions have a Control and are connected and idle. The
// time must not depend on their number.
func BenchmarkPollEmpty(b *testing.B) {
	for _, sessions := range []int{0, 1, 1000} {
		b.Run(fmt.Sprintf("sessions=%d", sessions), func(b *testing.B) {
			cq := idleSessions(b, sessions)
			wcs := make([]ibverbx.WC, 16)
			b.ReportAllocs()
			for b.Loop() {
				if n, err := cq.Poll(wcs); n != 0 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}

// idleSessions returns a VirtualCQ with n VirtualQPs with a Control, each connected to itself.
func idleSessions(b *testing.B, n int) *ibverbx.VirtualCQ {
	h := enginetest.NewRailsOn(b, ibverbx.RailConfig{Context: nullnic.New("null0", 0x11)})
	h.NewCQ(ibverbx.CQConfig{Depth: 1 << 18})
	for range n {
		control, _ := ibverbx.ControlPair()
		q := h.NewQP(ibverbx.Config{Lanes: 2, SendDepth: 16, RecvDepth: 16, LaneDepth: 16, NotifyDepth: 16, Control: control})
		card, err := q.Card()
		enginetest.Must(b, err)
		enginetest.Must(b, q.Connect(card))
	}
	return h.CQ
}

var benchSizes = []struct {
	name  string
	bytes int
}{{"8B", 8}, {"64KiB", 64 << 10}, {"1MiB", 1 << 20}, {"64MiB", 64 << 20}}

// BenchmarkVirtualWrite writes over sixteen lanes on two rails of softnic, with up to 16
// requests and 64 MiB outstanding. Compare it with BenchmarkCopy.
func BenchmarkVirtualWrite(b *testing.B) {
	for _, s := range benchSizes {
		b.Run(fmt.Sprintf("size=%s/lanes=16/rails=2", s.name), func(b *testing.B) {
			links := []softnic.Link{softnic.NewMemoryLink(nil), softnic.NewMemoryLink(nil)}
			x, y := enginetest.NewPair(b, links, ibverbx.Config{Lanes: 16})
			local, remote := x.Region(s.bytes), y.Region(s.bytes)
			wrs := make([]ibverbx.SendWR, max(1, min(16, 64<<20/s.bytes)))
			for i := range wrs {
				wrs[i] = ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
				wrs[i].SetSGE(local.SGE(0, uint32(s.bytes)))
			}
			wcs := make([]ibverbx.WC, len(wrs))
			b.ReportAllocs()
			b.SetBytes(int64(s.bytes))
			b.ResetTimer()
			for done := 0; done < b.N; {
				n, err := x.QP.PostSend(wrs[:min(len(wrs), b.N-done)])
				enginetest.Must(b, err)
				for polled := 0; polled < n; {
					polled += pollAll(b, x.CQ, wcs)
				}
				done += n
			}
		})
	}
}

// BenchmarkCopy copies as many bytes between the same kind of memory. A WRITE within one process should be
// almost as fast.
func BenchmarkCopy(b *testing.B) {
	for _, s := range benchSizes {
		b.Run("size="+s.name, func(b *testing.B) {
			h := enginetest.NewRails(b, enginetest.MemoryLinks(1))
			from, to := h.Region(s.bytes).Bytes(), h.Region(s.bytes).Bytes()
			b.ReportAllocs()
			b.SetBytes(int64(s.bytes))
			for b.Loop() {
				copy(to, from)
			}
		})
	}
}
