package transcript_test

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// kernelStage is a rail of a transcript on two Soft-RoCE devices: one for the engine, one for a scripted
// peer.
type kernelStage struct {
	verbs.Context
	tb      testing.TB
	name    string
	peer    verbs.Context
	peerPD  verbs.PD
	cq      *kernelCQ
	sent    verbs.CQ // of the peer's sends
	got     verbs.CQ // of the peer's receives
	lanes   []*kernelLane
	regions []*kernelMR
	// scratch is the peer's memory for messages; landing is the local target of the peer's WRITEs.
	scratch, landing     *verbs.Memory
	scratchMR, landingMR verbs.MR
	scratchUsed          int
}

const kernelScratch = 4 << 20

// stage returns rail i: rxe0 and rxe1, or rxe2 and rxe3, under its name in transcripts.
func (m machine) stage(tb testing.TB, rail int) stageNIC {
	tb.Helper()
	k := &kernelStage{
		tb: tb, name: fmt.Sprintf("null%d", rail),
		Context: m[fmt.Sprintf("rxe%d", 2*rail)], peer: m[fmt.Sprintf("rxe%d", 2*rail+1)],
	}
	var err error
	k.peerPD, err = k.peer.AllocPD()
	enginetest.Must(tb, err)
	k.sent, err = k.peer.CreateCQ(verbs.CQConfig{Depth: 1 << 10})
	enginetest.Must(tb, err)
	k.got, err = k.peer.CreateCQ(verbs.CQConfig{Depth: 1 << 10})
	enginetest.Must(tb, err)
	k.scratch, err = verbs.AllocMemory(kernelScratch, nil)
	enginetest.Must(tb, err)
	k.scratchMR, err = k.peerPD.RegisterMemory(k.scratch, verbs.AccessAll)
	enginetest.Must(tb, err)
	return k
}

func (k *kernelStage) context() verbs.Context { return k }

func (k *kernelStage) lane(qpn uint32) stageLane {
	for _, l := range k.lanes {
		if l.Num() == qpn {
			return l
		}
	}
	return nil
}

// leave closes the peer's resources.
func (k *kernelStage) leave(tb testing.TB) {
	enginetest.Must(tb, k.scratchMR.Close())
	enginetest.Must(tb, k.scratch.Free())
	if k.landing != nil {
		enginetest.Must(tb, k.landing.Free())
	}
	enginetest.Must(tb, k.sent.Close())
	enginetest.Must(tb, k.got.Close())
	enginetest.Must(tb, k.peerPD.Close())
}

// kernelDevice has the name that the transcripts know.
type kernelDevice struct {
	verbs.Device
	name string
}

func (d kernelDevice) Name() string { return d.name }

func (k *kernelStage) Device() verbs.Device { return kernelDevice{k.Context.Device(), k.name} }

// kernelCQ passes completions to the engine when the transcript allows. Sends and receives use separate
// device CQs, because a failed completion does not identify its kind.
type kernelCQ struct {
	verbs.CQ // of sends
	recvs    verbs.CQ
	ready    []verbs.WC
}

func (k *kernelStage) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	sends, err := k.Context.CreateCQ(cfg)
	enginetest.Must(k.tb, err)
	recvs, err := k.Context.CreateCQ(cfg)
	enginetest.Must(k.tb, err)
	k.cq = &kernelCQ{CQ: sends, recvs: recvs}
	return k.cq, nil
}

func (c *kernelCQ) Poll(dst []verbs.WC) (int, error) {
	n := copy(dst, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

func (c *kernelCQ) Close() error {
	if err := c.recvs.Close(); err != nil {
		return err
	}
	return c.CQ.Close()
}

type kernelPD struct {
	verbs.PD
	k *kernelStage
}

func (k *kernelStage) AllocPD() (verbs.PD, error) {
	pd, err := k.Context.AllocPD()
	return &kernelPD{PD: pd, k: k}, err
}

// kernelMR is a region backed by an equally large region of the peer, which the engine uses as remote memory.
type kernelMR struct {
	verbs.MR
	memory *verbs.Memory
	peer   verbs.MR
}

func (p *kernelPD) RegisterMemory(m *verbs.Memory, access verbs.Access) (verbs.MR, error) {
	mr, err := p.PD.RegisterMemory(m, access)
	if err != nil {
		return nil, err
	}
	k := p.k
	r := &kernelMR{MR: mr}
	r.memory, err = verbs.AllocMemory(int(mr.Len()), nil)
	enginetest.Must(k.tb, err)
	for i := range r.memory.Bytes() {
		r.memory.Bytes()[i] = byte(i*13 + 7)
	}
	r.peer, err = k.peerPD.RegisterMemory(r.memory, verbs.AccessAll)
	enginetest.Must(k.tb, err)
	k.regions = append(k.regions, r)
	if k.landing == nil {
		k.landing, err = verbs.AllocMemory(kernelScratch, nil)
		enginetest.Must(k.tb, err)
		k.landingMR, err = p.PD.RegisterMemory(k.landing, verbs.AccessAll)
		enginetest.Must(k.tb, err)
	}
	return r, nil
}

func (r *kernelMR) Close() error {
	if err := r.peer.Close(); err != nil {
		return err
	}
	if err := r.memory.Free(); err != nil {
		return err
	}
	return r.MR.Close()
}

// Close closes the PD and this side's regions on it.
func (p *kernelPD) Close() error {
	if p.k.landingMR != nil {
		if err := p.k.landingMR.Close(); err != nil {
			return err
		}
		p.k.landingMR = nil
	}
	return p.PD.Close()
}

// remote returns where the peer has the bytes that a request names.
func (k *kernelStage) remote(wr *verbs.SendWR) (r *kernelMR, off uint64) {
	for _, r := range k.regions {
		if r.RKey() == wr.RKey {
			return r, wr.RemoteAddr - r.Addr()
		}
	}
	k.tb.Fatalf("a request names the key %#x, want one of a region", wr.RKey)
	return nil, 0
}

// room returns n unused bytes of the peer's scratch memory.
func (k *kernelStage) room(n int) (b []byte, e verbs.SGE) {
	if k.scratchUsed+n > kernelScratch {
		k.scratchUsed = 0
	}
	at := k.scratchUsed
	k.scratchUsed += n
	return k.scratch.Bytes()[at : at+n], verbs.SGE{Addr: k.scratchMR.Addr() + uint64(at), Length: uint32(n), LKey: k.scratchMR.LKey()}
}

// waitCompletions waits for n completions of one QP. The only other outstanding work is messages on other lanes that
// wait for a receive.
func (k *kernelStage) waitCompletions(cq verbs.CQ, qpn uint32, n int, what string) (wcs []verbs.WC) {
	k.tb.Helper()
	batch := make([]verbs.WC, 16)
	for end := time.Now().Add(2 * time.Minute); len(wcs) < n; {
		got, err := cq.Poll(batch[:min(len(batch), n-len(wcs))])
		enginetest.Must(k.tb, err)
		for _, wc := range batch[:got] {
			if wc.QPN != qpn {
				k.tb.Fatalf("%s: a completion of QP %#x came, want only those of %#x", what, wc.QPN, qpn)
			}
		}
		wcs = append(wcs, batch[:got]...)
		if got == 0 {
			if time.Now().After(end) {
				k.tb.Fatalf("%s: %d of %d completions came in two minutes", what, len(wcs), n)
			}
			time.Sleep(50 * time.Microsecond) // leaves the processor to the device
		}
	}
	return wcs
}

// bytesAt are the bytes at an address of memory that is not Go's.
func bytesAt(addr uint64, n uint32) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&addr))), n)
}

// gather returns the bytes of elements.
func gather(sges []verbs.SGE) (b []byte) {
	for _, e := range sges {
		b = append(b, bytesAt(e.Addr, e.Length)...)
	}
	return b
}
