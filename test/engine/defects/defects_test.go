package defects_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// The tests are named after the defects of the original, the C++ implementation: T were found by its authors,
// G by running it. Defects tested elsewhere, or impossible here:
//
//	T3      a temporarily refused fragment: TestModelSender (test/engine/model)
//	T8-T14  are listed in an unpublished document of the original
//	T15     unsignaled WRITE_WITH_IMM: TestMixedOpcodes (test/engine/traffic), TestModelSender
//	G2      plain requests that consume numbers: TestModelPair (test/engine/model)
//	G4      more messages than receives: TestReceivesRunOut (test/engine/traffic)
//	G5      data receives beside notifications: TestMessages (test/engine/traffic)
//	G11     a missing key: TestSameRefusalsOnOneLaneAndMany (test/engine/traffic)
//	G13     numbers in cards: TestDecodeCard, and for cards of the original itself
//	        TestBusinessCardRefusals (test/engine/connect)
//	G14     an empty card: TestDecodeCard, TestConnectRefusals (test/engine/connect)
//	G15     unchecked values: TestBadConfig (test/engine/traffic)
//	G17     SENDs and atomics beyond the depth of a lane: TestModelSender, TestModelPair
//	G18     immediate and length: TestNotification
//	G24     device filter: belongs to the provider for real NICs
//	G25     calls that return -1 instead of errno: the same
//	G26     symbols missing at run time: the same
//	G27     probe for data-direct memory: the same
//	G28     over-read of a CQ's memory: requires a GPU that reads CQs, which is not supported
//	G29     exceptions thrown by noexcept functions: Go has neither
//	G33     completions copied into new vectors: TestNoAllocations (test/engine/traffic)
//
// G21 and G22 are about C++ moves and destructors. In Go, Close must release everything, in any order.

// faultNIC is a nullnic that can misbehave in more ways: it refuses receives, changes completions in
// its CQs, and has regions that claim to be larger than their memory.
type faultNIC struct {
	*nullnic.NIC
	cqs      []*nullnic.CQ
	recvLeft int    // receives that the NIC accepts before it refuses one
	recvErr  error  // error of a refused receive
	length   uint64 // length that regions claim, if larger than their memory
	regions  int    // registered regions
}

func newFaultNIC() *faultNIC { return &faultNIC{NIC: nullnic.New("null0", 0x11), recvLeft: 1 << 30} }

// Open returns the NIC itself.
func (n *faultNIC) Open() (verbs.Context, error) { return n, nil }

// CreateCQ remembers the CQ.
func (n *faultNIC) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	cq, err := n.NIC.CreateCQ(cfg)
	if err == nil {
		n.cqs = append(n.cqs, cq.(*nullnic.CQ))
	}
	return cq, err
}

// AllocPD returns a PD whose QPs and regions misbehave.
func (n *faultNIC) AllocPD() (verbs.PD, error) {
	pd, err := n.NIC.AllocPD()
	return &faultPD{PD: pd, nic: n}, err
}

// refuseReceives makes the NIC accept a number of receives and then refuse with err, until it is called
// again.
func (n *faultNIC) refuseReceives(after int, err error) { n.recvLeft, n.recvErr = after, err }

// garble replaces every field of the failed completions that is not valid in them.
func (n *faultNIC) garble(opcode verbs.WCOpcode) {
	for _, cq := range n.cqs {
		var all []verbs.WC
		buf := make([]verbs.WC, 64)
		for k, _ := cq.Poll(buf); k > 0; k, _ = cq.Poll(buf) {
			all = append(all, buf[:k]...)
		}
		for _, wc := range all {
			if wc.Status != verbs.StatusSuccess {
				wc = verbs.WC{
					WRID: wc.WRID, Status: wc.Status, QPN: wc.QPN, VendorErr: wc.VendorErr, Opcode: opcode,
					Flags: 0xff, ByteLen: 1 << 31, Imm: 0x80000000, SrcQPN: 0xffffff, SLID: 0xffff,
				}
			}
			cq.Push(wc)
		}
	}
}

type faultPD struct {
	verbs.PD
	nic *faultNIC
}

func (p *faultPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	qp, err := p.PD.CreateQP(cfg)
	if err != nil {
		return nil, err
	}
	return &faultQP{QP: qp, nic: p.nic}, nil
}

func (p *faultPD) RegisterMemory(m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	mr, err := p.PD.RegisterMemory(m, access)
	if err != nil {
		return nil, err
	}
	p.nic.regions++
	return &faultMR{MR: mr, nic: p.nic}, nil
}

// faultMR is counted, and may claim more bytes than it has, for requests whose bytes are never accessed.
type faultMR struct {
	verbs.MR
	nic    *faultNIC
	closed bool
}

func (m *faultMR) Len() uint64 { return max(m.MR.Len(), m.nic.length) }

func (m *faultMR) Close() error {
	if !m.closed {
		m.closed = true
		m.nic.regions--
	}
	return m.MR.Close()
}

type faultQP struct {
	verbs.QP
	nic *faultNIC
}

func (q *faultQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	take := min(len(wrs), q.nic.recvLeft)
	n, err := q.QP.PostRecv(wrs[:take])
	q.nic.recvLeft -= n
	if err == nil && take < len(wrs) {
		err = q.nic.recvErr
	}
	return n, err
}

// faulty is an instrument whose NIC can misbehave.
type faulty struct {
	*enginetest.ScriptedQP
	fault *faultNIC
}

// newFaulty returns an instrument over NICs that can misbehave; fault is the first of them.
func newFaulty(t *testing.T, cfg ibverbx.Config, faults ...*faultNIC) *faulty {
	t.Helper()
	var nics []*nullnic.NIC
	var contexts []verbs.Context
	for _, nic := range faults {
		nics, contexts = append(nics, nic.NIC), append(contexts, nic)
	}
	return &faulty{ScriptedQP: enginetest.NewScriptedQPOn(t, cfg, nics, contexts...), fault: faults[0]}
}

// wantIDs fails unless the completions have exactly these IDs, in this order.
func wantIDs(t *testing.T, wcs []ibverbx.WC, ids ...uint64) {
	t.Helper()
	var got []uint64
	for _, wc := range wcs {
		got = append(got, wc.WRID)
	}
	if len(got) != len(ids) {
		t.Fatalf("completions of %d, want %d", got, ids)
	}
	for i := range ids {
		if got[i] != ids[i] {
			t.Fatalf("completions of %d, want %d", got, ids)
		}
	}
}

// upTo returns 0, 1, ... n-1.
func upTo(n int) (ids []uint64) {
	for i := range n {
		ids = append(ids, uint64(i))
	}
	return ids
}

// notify delivers message n to the engine like a peer: one record, number or notification, on the first
// suitable lane.
func (x *faulty) notify(t *testing.T, scheme ibverbx.Scheme, n uint32) {
	t.Helper()
	lane, wc := x.NIC.QPs()[0], verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm}
	switch scheme {
	case ibverbx.DQPLB:
		wc.Imm = enginetest.DQPLBImm(n, true)
	case ibverbx.Spray:
		lane = x.NIC.QPs()[len(x.NIC.QPs())-1]
	default:
		if len(lane.Waiting()) > 0 {
			writeRecord(lane.Waiting()[0].SGE[0].Addr, n, 1)
		}
		wc = verbs.WC{Opcode: verbs.WCRecv, ByteLen: 16}
	}
	if !lane.Receive(wc) {
		t.Fatalf("no receive is posted for message %d", n)
	}
}
