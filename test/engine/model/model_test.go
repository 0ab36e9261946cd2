package model_test

import (
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// The property tests of the engine:
//
//   - TestModelSender (sender_test.go): a sending VirtualQP. Every request it posts to
//     its lanes is checked, and decoded by a receiver written from the scheme
//     descriptions alone (decode_test.go).
//   - TestModelReceiver (receiver_test.go): a receiving VirtualQP, fed by a sender
//     written from the descriptions.
//   - TestModelPair (pair_test.go): two VirtualQPs over a wire that carries one
//     physical request at a time, in any order that RC allows.
//
// On a failure rapid prints the draws of the shortest failing run and writes them to a file below
// testdata/rapid. To replay it:
//
//	go test ./test/engine/model -run TestModelPair/tally -rapid.failfile=testdata/rapid/...
//	go test ./test/engine/model -run TestModelPair/tally -rapid.seed=N
//
// and for a long run: -rapid.checks=100000.

// Request i of a VirtualQP owns a range of modelSlot bytes on each side, so an address identifies its
// request.
const (
	modelSlot     = 4096
	modelRequests = 256
	modelSpace    = modelSlot * modelRequests
)

// drawInt draws a number from low to high.
func drawInt(t *rapid.T, label string, low, high int) int {
	return rapid.IntRange(low, high).Draw(t, label)
}

// oneIn draws true once in n times.
func oneIn(t *rapid.T, label string, n int) bool { return drawOf(t, label, n) == n-1 }

// drawOf draws one of the numbers below n.
func drawOf(t *rapid.T, label string, n int) int { return rapid.IntRange(0, n-1).Draw(t, label) }

// modelSteps plays about two hundred random steps. Steps listed several times are more frequent.
func modelSteps(t *rapid.T, steps map[string]func()) {
	actions := make(map[string]func(*rapid.T))
	for name, play := range steps {
		actions[name] = func(*rapid.T) { play() }
	}
	for range 6 { // rapid.steps are 30 on average
		t.Repeat(actions)
	}
}

// drawModelConfig draws a VirtualQP that tracks its requests. A single lane does so only with a Control.
// Failures are then excluded, because requests on a lost lane would wait for the peer's response.
func drawModelConfig(t *rapid.T, scheme ibverbx.Scheme, lanes int) ibverbx.Config {
	now := int64(0)
	var control ibverbx.Control
	if lanes == 1 {
		control = enginetest.Deaf{}
	}
	return ibverbx.Config{
		Scheme:         scheme,
		Lanes:          lanes,
		Control:        control,
		Policy:         ibverbx.Policy(drawOf(t, "policy", 3)),
		SendDepth:      rapid.SampledFrom([]int{1, 4, 32}).Draw(t, "depth"),
		RecvDepth:      rapid.SampledFrom([]int{1, 3, 16}).Draw(t, "receive depth"),
		LaneDepth:      rapid.SampledFrom([]int{1, 2, 7, 64}).Draw(t, "lane depth"),
		NotifyDepth:    rapid.SampledFrom([]int{1, 2, 8}).Draw(t, "notify depth"),
		FragmentSize:   rapid.SampledFrom([]uint32{0, 100, 700}).Draw(t, "fragment"),
		SignalInterval: rapid.SampledFrom([]int{0, 1, 3, 16}).Draw(t, "interval"),
		Now:            func() int64 { now += 1000; return now },
	}
}

// modelEnd is a VirtualQP over held NICs.
type modelEnd struct {
	t      *rapid.T
	cfg    ibverbx.Config
	nics   []*nullnic.NIC
	rails  *ibverbx.Rails
	cq     *ibverbx.VirtualCQ
	qp     *ibverbx.VirtualQP
	memory *verbs.Memory
	region *ibverbx.Region
	lanes  []*nullnic.QP
	roles  []string
	inRun  bool         // the requests of the chain are a run
	runOp  verbs.Opcode // their opcode; valid in a run
	runLen [2]int       // the range of their lengths in bytes; valid in a run
}

// modelNICs returns NICs that start with the same QP number.
func modelNICs(name string, n int) []*nullnic.NIC {
	nics := make([]*nullnic.NIC, n)
	for i := range nics {
		nics[i] = nullnic.New(fmt.Sprintf("%s%d", name, i), 0x11)
	}
	return nics
}

// newModelEnd creates a VirtualQP and its memory; the caller must connect it.
func newModelEnd(t *rapid.T, nics []*nullnic.NIC, cfg ibverbx.Config, shared, bytes int) *modelEnd {
	e := &modelEnd{t: t, cfg: cfg, nics: nics}
	var cfgs []ibverbx.RailConfig
	for _, nic := range nics {
		cfgs = append(cfgs, ibverbx.RailConfig{Context: nic})
	}
	var err error
	e.rails, err = ibverbx.NewRails(cfgs...)
	enginetest.Must(t, err)
	e.cq, err = e.rails.NewCQ(ibverbx.CQConfig{Depth: 1 << 11, SharedReceives: shared})
	enginetest.Must(t, err)
	e.qp, err = e.cq.NewQP(cfg)
	enginetest.Must(t, err)
	e.memory, err = verbs.AllocMemory(bytes, nil)
	enginetest.Must(t, err)
	e.region, err = e.rails.Register(e.memory, verbs.AccessAll)
	enginetest.Must(t, err)
	t.Cleanup(func() {
		enginetest.Must(t, errors.Join(e.qp.Close(), e.region.Close(), e.memory.Free(), e.cq.Close(), e.rails.Close()))
	})
	return e
}

// connect connects the VirtualQP and finds its lanes on the NICs.
func (e *modelEnd) connect(card *ibverbx.Card) {
	enginetest.Must(e.t, e.qp.Connect(card))
	for _, l := range e.qp.Stats().Lanes {
		for _, q := range e.nics[l.Rail].QPs() {
			if q.Num() == l.QPN {
				q.Hold()
				e.lanes = append(e.lanes, q)
				e.roles = append(e.roles, l.Role)
			}
		}
	}
	if len(e.lanes) != len(e.qp.Stats().Lanes) {
		e.t.Fatalf("%d lanes were found on the NICs, want %d", len(e.lanes), len(e.qp.Stats().Lanes))
	}
}

func (e *modelEnd) card() *ibverbx.Card {
	c, err := e.qp.Card()
	enginetest.Must(e.t, err)
	return c
}

// drawLane draws a lane, with a preference for lanes that have outstanding requests.
func (e *modelEnd) drawLane() int {
	k := drawOf(e.t, "lane", 2*len(e.lanes))
	if k < len(e.lanes) {
		return k
	}
	for i := range e.lanes {
		if l := (k + i) % len(e.lanes); len(e.lanes[l].Posted()) > 0 {
			return l
		}
	}
	return k % len(e.lanes)
}

// refuse makes a lane refuse a part of its next chain, and possibly later ones.
func (e *modelEnd) refuse() {
	l := e.lanes[e.drawLane()]
	l.RefuseAt(drawInt(e.t, "position", 0, 4), verbs.ErrQueueFull)
	l.RefuseMore(drawInt(e.t, "more chains", 0, 6))
}

// seen reports whether the VirtualQP has consumed all NIC completions.
func (e *modelEnd) seen() bool {
	for _, l := range e.lanes {
		if l.SendCQ().Len() > 0 {
			return false
		}
	}
	return true
}

// describeWC describes a completion without details that vary between runs: rapid shrinks failures by message.
func describeWC(wc *ibverbx.WC) string {
	return fmt.Sprintf("of ID %d (%s, %s, %d bytes)", wc.WRID, wc.Status, wc.Opcode, wc.ByteLen)
}

// modelByte returns byte off of request i. It is neither 0, the initial content of memory, nor 255, which
// overwrites free buffers.
func modelByte(i, off int) byte { return byte(1 + (i*37+off*11+off/256*5)%250) }

// modelRequest is a request accepted by a VirtualQP.
type modelRequest struct {
	index    int
	wr       ibverbx.SendWR
	length   int
	notified bool // a WRITE_WITH_IMM
	message  bool // a SEND or an atomic
	// ordinal is the request's index among notified requests or among SENDs. For a READ it is the request
	// whose bytes it reads; for an atomic, the value it fetches.
	ordinal int
}

// drawChain draws the length of a chain, at most most. In two of three cases it is a run: one opcode, one SGE
// each. The requests of a run are all short, or cut into equally many fragments, or arbitrary.
func (e *modelEnd) drawChain(most int) int {
	if e.inRun = !oneIn(e.t, "mixed chain", 3); !e.inRun {
		return min(drawInt(e.t, "chain", 1, 6), most)
	}
	e.runOp = rapid.SampledFrom([]verbs.Opcode{
		verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead,
	}).Draw(e.t, "opcode of the run")
	e.runLen = rapid.SampledFrom([][2]int{{1, 100}, {1, 100}, {201, 300}, {801, 900}, {1, 900}}).Draw(e.t, "lengths of the run")
	return min(drawInt(e.t, "run", 1, 12), most)
}

// drawRequest draws a request with the given index. Its local bytes are in slot index of region at base, in
// up to four SGEs, and hold modelByte; its target is slot index of remote at target.
func (e *modelEnd) drawRequest(index, base int, remote *ibverbx.RemoteRegion, target int) *modelRequest {
	t, op := e.t, e.runOp
	if !e.inRun {
		op = rapid.SampledFrom([]verbs.Opcode{
			verbs.OpRDMAWrite, verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMAWriteWithImm, verbs.OpRDMAWriteWithImm,
			verbs.OpRDMARead, verbs.OpSend, verbs.OpSendWithImm, verbs.OpAtomicFetchAndAdd, verbs.OpAtomicCmpAndSwp,
		}).Draw(t, "opcode")
	}
	r := &modelRequest{index: index, notified: op == verbs.OpRDMAWriteWithImm, message: isMessage(op)}
	r.wr = ibverbx.SendWR{WRID: uint64(index), Opcode: op, Imm: uint32(index)<<8 | 0x5a, Remote: remote, RemoteOffset: uint64(target + index*modelSlot)}
	if !oneIn(t, "unsignaled", 3) {
		r.wr.Flags |= verbs.SendSignaled
	}
	if !e.inRun && oneIn(t, "fence", 8) {
		r.wr.Flags |= verbs.SendFence
	}
	var lengths []int
	switch {
	case e.inRun:
		lengths = []int{drawInt(t, "bytes in a run", e.runLen[0], e.runLen[1])}
	case op >= verbs.OpAtomicCmpAndSwp:
		lengths = []int{8}
	case op != verbs.OpRDMARead && oneIn(t, "inline", 5):
		r.wr.Flags |= verbs.SendInline
		lengths = []int{drawInt(t, "inline bytes", 1, 40), drawInt(t, "more inline bytes", 0, 24)}
	case (r.notified || op == verbs.OpSend || op == verbs.OpSendWithImm) && oneIn(t, "empty", 6):
	default:
		if oneIn(t, "empty first piece", 8) {
			lengths = append(lengths, 0)
		}
		lengths = append(lengths, drawInt(t, "bytes", 1, 900))
		for len(lengths) < 3 && oneIn(t, "another piece", 3) {
			lengths = append(lengths, drawInt(t, "more bytes", 0, 500))
		}
	}
	var sges []ibverbx.SGE
	for k, n := range lengths {
		at := base + index*modelSlot + k*1000 + 16*k
		for i := range n {
			e.memory.Bytes()[at+i] = modelByte(index, r.length+i)
		}
		sges = append(sges, e.region.SGE(uint64(at), uint32(n)))
		r.length += n
	}
	r.wr.SetSGE(sges...)
	return r
}

func isMessage(op verbs.Opcode) bool {
	return op == verbs.OpSend || op == verbs.OpSendWithImm || op >= verbs.OpAtomicCmpAndSwp
}

// localBytes calls each with every local byte of a request and its offset in it.
func (e *modelEnd) localBytes(r *modelRequest, each func(off int, b *byte)) {
	off := 0
	for _, s := range r.wr.SGE[:r.wr.NumSGE] {
		for i := range s.Length {
			each(off, &e.memory.Bytes()[s.Offset+uint64(i)])
			off++
		}
	}
}

// scribble overwrites the local bytes of a completed request, which the program owns again.
func (e *modelEnd) scribble(r *modelRequest) {
	e.localBytes(r, func(_ int, b *byte) { *b = 255 })
}

// spoilRequest returns an illegal variant of a request, which every VirtualQP must refuse.
func spoilRequest(t *rapid.T, wr ibverbx.SendWR) ibverbx.SendWR {
	switch drawOf(t, "what is wrong", 6) {
	case 0:
		wr.Opcode = verbs.Opcode(drawInt(t, "unknown opcode", 7, 255))
	case 1:
		wr.Opcode, wr.NumSGE, wr.Flags = verbs.OpAtomicFetchAndAdd, 0, 0
	case 2:
		wr.Opcode, wr.Flags = verbs.OpRDMARead, wr.Flags|verbs.SendInline
	case 3:
		wr.NumSGE, wr.SGE[0].Region = 1, nil
	case 4:
		wr.Opcode, wr.RemoteOffset, wr.Flags = verbs.OpRDMAWrite, 1<<40, 0
		if wr.Length() == 0 { // it does not access peer memory
			wr.NumSGE, wr.SGE[0].Region = 1, nil
		}
	default:
		wr.Flags |= 0x80
	}
	return wr
}

// modelDepth returns the effective depth of a VirtualQP: a power of two, as documented at Config.
func modelDepth(n int) int {
	depth := 1
	for depth < n {
		depth *= 2
	}
	return depth
}

// checkRefusal checks a post that was not accepted in full: n requests of the chain were accepted, the one at
// bad is illegal (bad equals chain if all are legal), and at most high requests were outstanding before the
// post.
func checkRefusal(t *rapid.T, n, chain, bad, depth, high int, err error) {
	room := modelDepth(depth)
	switch {
	case n == chain && err == nil && bad == chain:
	case n == chain || err == nil:
		t.Fatalf("PostSend = %d of %d, %v; want all of them or an error", n, chain, err)
	case errors.Is(err, verbs.ErrQueueFull):
		if high+n < room {
			t.Fatalf("PostSend = %d of %d, %v; at most %d requests were outstanding, want room for %d", n, chain, err, high, room)
		}
	case n != bad || !errors.Is(err, verbs.ErrInvalid):
		t.Fatalf("PostSend = %d of %d, %v; want it to stop at %d, which is not legal", n, chain, err, bad)
	}
}

// forSchemes runs a property for every scheme.
func forSchemes(t *testing.T, property func(t *rapid.T, scheme ibverbx.Scheme)) {
	for _, scheme := range enginetest.Schemes {
		t.Run(scheme.String(), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) { property(rt, scheme) })
		})
	}
}
