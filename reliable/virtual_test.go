package reliable_test

import (
	"bytes"
	"encoding/binary"
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

func newPeer(t *testing.T, links []softnic.Link, size int, scheme ibverbx.Scheme, flows int) *peer {
	t.Helper()
	p := &peer{}
	var rails []ibverbx.RailConfig
	for _, link := range links {
		nic, err := softnic.New(link, reliable.NICConfig())
		must(t, err)
		t.Cleanup(func() { must(t, nic.Close()) })
		inner, err := nic.Open()
		must(t, err)
		ctx, err := reliable.Wrap(inner, reliable.Config{Paths: 4, GiveUp: int64(patience), Flows: flows})
		must(t, err)
		t.Cleanup(func() { must(t, ctx.Close()) })
		rails = append(rails, ibverbx.RailConfig{Context: ctx})
	}
	var err error
	p.rails, err = ibverbx.NewRails(rails...)
	must(t, err)
	p.mem, err = verbs.AllocMemory(size, nil)
	must(t, err)
	t.Cleanup(func() { _ = p.mem.Free() }) // the contexts are created later and so closed before
	p.region, err = p.rails.Register(p.mem, verbs.AccessAll)
	must(t, err)
	p.cq, err = p.rails.NewCQ(ibverbx.CQConfig{})
	must(t, err)
	p.qp, err = p.cq.NewQP(ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 100_000})
	must(t, err)
	t.Cleanup(func() { must(t, p.qp.Close()) })
	return p
}

// wait polls both ends until each has the wanted number of completions. None may fail.
func wait(t *testing.T, what string, peers [2]*peer, want [2]int) (got [2][]ibverbx.WC) {
	t.Helper()
	for start := time.Now(); len(got[0]) < want[0] || len(got[1]) < want[1]; {
		if time.Since(start) > patience {
			t.Fatalf("%s: %d and %d completions after %v, want %v; the ends say %v and %v",
				what, len(got[0]), len(got[1]), patience, want, peers[0].qp.Err(), peers[1].qp.Err())
		}
		for i, p := range peers {
			var wcs [16]ibverbx.WC
			n, err := p.cq.Poll(wcs[:])
			must(t, err)
			for _, wc := range wcs[:n] {
				if wc.Err() != nil {
					t.Fatalf("%s: end %d has %v (%v), want success", what, i, wc.Err(), p.qp.Err())
				}
			}
			got[i] = append(got[i], wcs[:n]...)
		}
	}
	return got
}

// TestVirtualQP moves data through a VirtualQP of four lanes on two wrapped rails, which lose
// one packet of a hundred, with every scheme and every operation: each lane is four paths.
func TestVirtualQP(t *testing.T) {
	for _, scheme := range []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray} {
		t.Run(scheme.String(), func(t *testing.T) { virtual(t, scheme, 1) })
	}
	t.Run("shared paths", func(t *testing.T) { virtual(t, ibverbx.Spray, 2) }) // two lanes of a rail share paths
}

func virtual(t *testing.T, scheme ibverbx.Scheme, flows int) {
	const size = 1<<20 + 12_345
	var links []softnic.Link
	for seed := range uint64(2) {
		l, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: seed, Impairment: softnic.Impairment{Loss: 0.01}})
		must(t, err)
		links = append(links, l)
	}
	peers := [2]*peer{newPeer(t, links, size, scheme, flows), newPeer(t, links, size, scheme, flows)}
	a, b := peers[0], peers[1]
	ca, err := a.qp.Card()
	must(t, err)
	cb, err := b.qp.Card()
	must(t, err)
	must(t, a.qp.Connect(cb))
	must(t, b.qp.Connect(ca))
	read := false
	for i, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMARead, verbs.OpRDMAWriteWithImm} {
		local, remote := a.region.Bytes(), b.region.Bytes()
		for k := range local {
			local[k] = byte(k*7) + byte(k>>9) + byte(i)
		}
		for k := range remote {
			if read {
				break // the reader may retry
			}
			remote[k] = byte(k)
		}
		read = op == verbs.OpRDMARead
		want, wcs := bytes.Clone(local), [2]int{1, 0}
		switch op {
		case verbs.OpRDMARead:
			want = bytes.Clone(remote)
		case verbs.OpRDMAWrite:
		default:
			recv := ibverbx.RecvWR{WRID: 7} // without bytes it waits for a notification
			if op != verbs.OpRDMAWriteWithImm {
				recv.SetSGE(b.region.SGE(0, size))
			}
			_, err = b.qp.PostRecv([]ibverbx.RecvWR{recv})
			must(t, err)
			wcs[1] = 1
		}
		wr := ibverbx.SendWR{WRID: 1, Opcode: op, Imm: 42, Flags: verbs.SendSignaled, Remote: b.region.Remote()}
		wr.SetSGE(a.region.SGE(0, size))
		_, err = a.qp.PostSend([]ibverbx.SendWR{wr})
		must(t, err)
		got := wait(t, op.String(), peers, wcs)
		if wcs[1] == 1 {
			checkArrival(t, op, scheme, &got[1][0], size)
		}
		if !bytes.Equal(local, want) || !bytes.Equal(remote, want) {
			t.Fatalf("%v: the %d bytes of the two ends are not those that were to move", op, size)
		}
	}
	counter(t, peers)
}

// checkArrival checks the receiver's completion of a message.
func checkArrival(t *testing.T, op verbs.Opcode, scheme ibverbx.Scheme, wc *ibverbx.WC, size uint32) {
	t.Helper()
	hasImm := op != verbs.OpSend
	if scheme == ibverbx.DQPLB && op == verbs.OpRDMAWriteWithImm {
		hasImm = false // its fragments have numbers there
	}
	if wc.WRID != 7 || (wc.Flags&ibverbx.WCHasImm != 0) != hasImm || (hasImm && wc.Imm != 42) || (wc.Flags&ibverbx.WCHasLength != 0 && wc.ByteLen != size) {
		t.Fatalf("%v with %v: the receiver has %+v, want 7, %d bytes, and 42 is %v", op, scheme, wc, size, hasImm)
	}
}

// counter adds to a word of the other end.
func counter(t *testing.T, peers [2]*peer) {
	const times = 20
	a, b := peers[0], peers[1]
	before := binary.NativeEndian.Uint64(b.region.Bytes())
	for range times {
		wr := ibverbx.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled, CompareAdd: 3, Remote: b.region.Remote()}
		wr.SetSGE(a.region.SGE(0, 8))
		_, err := a.qp.PostSend([]ibverbx.SendWR{wr})
		must(t, err)
	}
	wait(t, "atomics", peers, [2]int{times, 0})
	if sum := binary.NativeEndian.Uint64(b.region.Bytes()); sum != before+3*times {
		t.Fatalf("the word is %d after %d additions of 3 to %d", sum, times, before)
	}
}
