package reliable_test

import (
	"bytes"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// peer is one side of a VirtualQP on wrapped rails.
type peer struct {
	rails  *ibverbx.Rails
	mem    *verbs.Memory
	region *ibverbx.Region
	cq     *ibverbx.VirtualCQ
	qp     *ibverbx.VirtualQP
}

func newPeer(t *testing.T, links []softnic.Link, size int) *peer {
	t.Helper()
	p := &peer{}
	var rails []ibverbx.RailConfig
	for _, link := range links {
		nic, err := softnic.New(link, softnic.Config{})
		must(t, err)
		t.Cleanup(func() { must(t, nic.Close()) })
		inner, err := nic.Open()
		must(t, err)
		ctx, err := reliable.Wrap(inner, reliable.Config{Paths: 4})
		must(t, err)
		t.Cleanup(func() { must(t, ctx.Close()) })
		rails = append(rails, ibverbx.RailConfig{Context: ctx})
	}
	var err error
	p.rails, err = ibverbx.NewRails(rails...)
	must(t, err)
	p.mem, err = verbs.AllocMemory(size, nil)
	must(t, err)
	t.Cleanup(func() { _ = p.mem.Free() }) // after the contexts, which come later, it does not matter
	p.region, err = p.rails.Register(p.mem, verbs.AccessAll)
	must(t, err)
	p.cq, err = p.rails.NewCQ(ibverbx.CQConfig{})
	must(t, err)
	p.qp, err = p.cq.NewQP(ibverbx.Config{Lanes: 4})
	must(t, err)
	t.Cleanup(func() { must(t, p.qp.Close()) })
	return p
}

func (p *peer) poll(t *testing.T, other *peer) ibverbx.WC {
	t.Helper()
	for start := time.Now(); time.Since(start) < 20*time.Second; {
		var wcs [1]ibverbx.WC
		n, err := p.cq.Poll(wcs[:])
		must(t, err)
		if n == 1 {
			return wcs[0]
		}
	}
	t.Fatalf("no completion after 20 s; the other end says %v", other.qp.Err())
	return ibverbx.WC{}
}

// TestVirtualQP moves data through a VirtualQP of four lanes on two wrapped rails, which lose
// one packet of a hundred: each lane is four paths.
func TestVirtualQP(t *testing.T) {
	const size = 4 << 20
	var links []softnic.Link
	for seed := range uint64(2) {
		l, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: seed, Impairment: softnic.Impairment{Loss: 0.01}})
		must(t, err)
		links = append(links, l)
	}
	a, b := newPeer(t, links, size), newPeer(t, links, size)
	ca, err := a.qp.Card()
	must(t, err)
	cb, err := b.qp.Card()
	must(t, err)
	must(t, a.qp.Connect(cb))
	must(t, b.qp.Connect(ca))
	for i := range 3 {
		for k := range a.region.Bytes() {
			a.region.Bytes()[k] = byte(k*7) + byte(k>>9) + byte(i)
		}
		_, err = b.qp.PostRecv([]ibverbx.RecvWR{{ID: 7}})
		must(t, err)
		wr := ibverbx.SendWR{ID: 1, Opcode: verbs.OpRDMAWriteWithImm, Imm: 42, Flags: verbs.SendSignaled, Remote: b.region.Remote()}
		wr.SetSGE(a.region.SGE(0, size))
		_, err = a.qp.PostSend([]ibverbx.SendWR{wr})
		must(t, err)
		if wc := a.poll(t, b); wc.Status != verbs.StatusSuccess || wc.ID != 1 {
			t.Fatalf("completion %+v, want success of 1", wc)
		}
		if wc := b.poll(t, a); wc.Status != verbs.StatusSuccess || wc.Imm != 42 || wc.ByteLen != size {
			t.Fatalf("notification %+v, want %d bytes and 42", wc, size)
		}
		if !bytes.Equal(a.region.Bytes(), b.region.Bytes()) {
			t.Fatalf("round %d: %d bytes differ", i, size)
		}
	}
}
