//go:build !race

package traffic_test

import (
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// TestNoAllocations: post and poll do not allocate on either side, in any scheme. The test is skipped under
// the race detector, which allocates.
func TestNoAllocations(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpRDMARead, verbs.OpSend, verbs.OpAtomicFetchAndAdd} {
			for _, lanes := range []int{1, 8} {
				t.Run(fmt.Sprintf("%s/%s/lanes=%d", scheme, op, lanes), func(t *testing.T) {
					testNoAllocations(t, ibverbx.Config{Lanes: lanes, Scheme: scheme, FragmentSize: 1024}, op)
				})
			}
		}
	}
}

func testNoAllocations(t *testing.T, cfg ibverbx.Config, op verbs.Opcode) {
	a, b := enginetest.NewPair(t, enginetest.MemoryLinks(2), cfg)
	local, remote := a.Region(8192), b.Region(8192)
	const batch = 16
	wrs, recvs := make([]ibverbx.SendWR, batch), make([]ibverbx.RecvWR, batch)
	length := uint32(4000)
	if op == verbs.OpAtomicFetchAndAdd {
		length = 8
	}
	for i := range wrs {
		wrs[i] = ibverbx.SendWR{Opcode: op, Flags: verbs.SendSignaled, Remote: remote.Remote()}
		wrs[i].SetSGE(local.SGE(0, length))
		if op == verbs.OpSend {
			recvs[i].SetSGE(remote.SGE(0, length))
		}
	}
	notified := op == verbs.OpRDMAWriteWithImm || op == verbs.OpSend
	wcs := make([]ibverbx.WC, batch)
	round := func() {
		if notified {
			b.PostRecv(recvs...)
		}
		a.PostSend(wrs...)
		sent, received := 0, 0
		if !notified {
			received = batch
		}
		for sent < batch || received < batch {
			n, err := a.CQ.Poll(wcs)
			if err != nil || (n > 0 && wcs[0].Status != verbs.StatusSuccess) {
				t.Fatal(err, wcs[0].Err())
			}
			sent += n
			n, err = b.CQ.Poll(wcs)
			if err != nil || (n > 0 && wcs[0].Status != verbs.StatusSuccess) {
				t.Fatal(err, wcs[0].Err())
			}
			received += n
		}
	}
	round() // buffers that grow once do so now
	if allocs := testing.AllocsPerRun(50, round); allocs != 0 {
		t.Errorf("%v allocations for %d requests, want 0", allocs, batch)
	}
}

// TestNoAllocationsShared is the same with receives of an SRQ.
func TestNoAllocationsShared(t *testing.T) {
	links := enginetest.MemoryLinks(1)
	a, qa := sharedHost(t, links, 64, ibverbx.Config{Lanes: 4})
	b, qb := sharedHost(t, links, 64, ibverbx.Config{Lanes: 4})
	enginetest.Connect(t, qa[0], qb[0])
	a.QP, b.QP = qa[0], qb[0]
	local, remote := a.Region(64), b.Region(64)
	wr := []ibverbx.SendWR{{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote()}}
	wr[0].SetSGE(local.SGE(0, 64))
	recv := make([]ibverbx.RecvWR, 1)
	round := func() {
		b.PostRecv(recv...)
		a.PostSend(wr...)
		for sent, received := false, false; !sent || !received; {
			_, ok, err := a.CQ.PollOne()
			enginetest.Must(t, err)
			sent = sent || ok
			_, ok, err = b.CQ.PollOne()
			enginetest.Must(t, err)
			received = received || ok
		}
	}
	round()
	if allocs := testing.AllocsPerRun(200, round); allocs != 0 {
		t.Errorf("%v allocations for a message, want 0", allocs)
	}
}
