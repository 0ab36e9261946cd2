package traffic_test

import (
	"encoding/binary"
	"errors"
	"maps"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// TestLaneThatCannotBeUsed: a NIC that refuses permanently in the middle of a dispatch with several chains
// fails the VirtualQP, and every request is reported once.
func TestLaneThatCannotBeUsed(t *testing.T) {
	for name, work := range map[string]struct {
		count int
		op    verbs.Opcode
		bytes uint32
	}{
		"one long WRITE":     {1, verbs.OpRDMAWrite, 1000},
		"many SENDs":         {33, verbs.OpSend, 10},
		"many notifications": {64, verbs.OpRDMAWriteWithImm, 0},
	} {
		t.Run(name, func(t *testing.T) {
			x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2, FragmentSize: 10, SendDepth: 64, LaneDepth: 64})
			for _, q := range x.NIC.QPs() {
				q.RefuseAt(0, errors.New("the device says no"))
			}
			var wrs []ibverbx.SendWR
			for i := range work.count {
				wrs = append(wrs, x.Request(uint64(i), work.op, work.bytes))
			}
			x.PostSend(wrs...)
			if x.QP.Err() == nil {
				t.Error("Err = nil")
			}
			next := uint64(0)
			for range 100 {
				dst := make([]ibverbx.WC, 7)
				n, err := x.CQ.Poll(dst)
				enginetest.Must(t, err)
				for _, wc := range dst[:n] {
					if wc.WRID != next || wc.Status != verbs.StatusWRFlushErr {
						t.Fatalf("completion = request %d, %v; want %d, flushed", wc.WRID, wc.Status, next)
					}
					next++
				}
			}
			if next != uint64(work.count) {
				t.Errorf("%d of %d requests were reported", next, work.count)
			}
		})
	}
}

// TestDQPLBLongMessage: a message with more fragments than the receiver's window continues as its numbers are
// acknowledged.
func TestDQPLBLongMessage(t *testing.T) {
	a, b := enginetest.NewPair(t, enginetest.MemoryLinks(1), ibverbx.Config{Lanes: 2, Scheme: ibverbx.DQPLB, NotifyDepth: 4, FragmentSize: 10})
	local, remote := a.Region(1000), b.Region(1000)
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote()}
	wr.SetSGE(local.SGE(0, 1000))
	if _, err := b.QP.PostRecv([]ibverbx.RecvWR{{WRID: 5}}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.QP.PostSend([]ibverbx.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	sent, delivered := 0, 0
	for turns := 0; sent == 0 || delivered == 0; turns++ {
		sent += len(a.Poll())
		for _, wc := range b.Poll() {
			if delivered++; wc.ByteLen != 1000 || wc.WRID != 5 {
				t.Fatalf("notification = %+v", wc)
			}
		}
		if turns > 1_000_000 {
			t.Fatal("the message does not arrive")
		}
	}
}

// TestPostRecvInPart: a PostRecv that accepts only some of its receives still matches them with waiting
// messages.
func TestPostRecvInPart(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		t.Run(scheme.String(), func(t *testing.T) {
			a, b := enginetest.NewPair(t, enginetest.MemoryLinks(1), ibverbx.Config{Lanes: 2, Scheme: scheme, RecvDepth: 4, NotifyDepth: 8})
			const messages = 12
			for i := range messages {
				wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled}
				if _, err := a.QP.PostSend([]ibverbx.SendWR{wr}); err != nil {
					t.Fatal(err)
				}
			}
			for range 200 {
				a.Poll()
				b.Poll()
			}
			delivered := 0
			for turns := 0; delivered < messages; turns++ {
				if n, err := b.QP.PostRecv(make([]ibverbx.RecvWR, 6)); n < 6 && err == nil {
					t.Fatalf("PostRecv = %d of 6 without an error", n)
				}
				delivered += len(b.Poll())
				a.Poll()
				if turns > 100_000 {
					t.Fatalf("%d of %d messages delivered", delivered, messages)
				}
			}
		})
	}
}

// TestNotificationWaitsForMessages: a notification waits for an outstanding atomic before it.
func TestNotificationWaitsForMessages(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		t.Run(scheme.String(), func(t *testing.T) {
			x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2, Scheme: scheme})
			atomic, notify := x.Request(1, verbs.OpAtomicFetchAndAdd, 8), x.Request(2, verbs.OpRDMAWriteWithImm, 8)
			x.PostSend(atomic, notify)
			lanes, message := x.NIC.QPs(), x.NIC.QPs()[2]
			for range 10 {
				for _, q := range lanes {
					if q != message {
						q.Complete(len(q.Posted()))
					}
				}
				if _, err := x.CQ.Poll(make([]ibverbx.WC, 4)); err != nil {
					t.Fatal(err)
				}
			}
			for _, q := range lanes {
				for _, wr := range q.Taken {
					if q != message && (wr.Opcode == verbs.OpSend || wr.Opcode == verbs.OpRDMAWriteWithImm) {
						t.Fatal("the receiver is told while the atomic is outstanding")
					}
				}
			}
			message.Complete(1)
			done := 0
			for range 10 {
				for _, q := range lanes {
					q.Complete(len(q.Posted()))
				}
				n, err := x.CQ.Poll(make([]ibverbx.WC, 4))
				enginetest.Must(t, err)
				done += n
			}
			if done != 2 {
				t.Errorf("%d completions, want 2", done)
			}
		})
	}
}

// noMemory is a NIC that cannot register memory.
type noMemory struct{ *nullnic.NIC }

func (n noMemory) AllocPD() (verbs.PD, error) {
	pd, err := n.NIC.AllocPD()
	return noRegions{pd}, err
}

type noRegions struct{ verbs.PD }

func (noRegions) RegisterMemory(*verbs.Memory, verbs.Access) (verbs.MR, error) {
	return nil, verbs.ErrLimit
}

// TestNoRegionsLeft: NewQP fails without leaks if the engine cannot register its own region.
func TestNoRegionsLeft(t *testing.T) {
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: noMemory{nullnic.New("null0", 0x11)}})
	enginetest.Must(t, err)
	cq, err := rails.NewCQ(ibverbx.CQConfig{})
	enginetest.Must(t, err)
	if _, err := cq.NewQP(ibverbx.Config{Lanes: 2}); !errors.Is(err, verbs.ErrLimit) {
		t.Errorf("NewQP = %v, want %v", err, verbs.ErrLimit)
	}
}

// TestFailedConnectKeepsReceives: data receives posted before a failed Connect are kept, in order.
func TestFailedConnectKeepsReceives(t *testing.T) {
	links := enginetest.MemoryLinks(1)
	a, b := enginetest.NewHost(t, links, ibverbx.Config{Lanes: 2}), enginetest.NewHost(t, links, ibverbx.Config{Lanes: 2})
	inbox, local := b.Region(128), a.Region(64)
	local.Bytes()[0] = 77
	first, second := ibverbx.RecvWR{WRID: 1}, ibverbx.RecvWR{WRID: 2}
	first.SetSGE(inbox.SGE(0, 64))
	second.SetSGE(inbox.SGE(64, 64))
	if _, err := b.QP.PostRecv([]ibverbx.RecvWR{first}); err != nil {
		t.Fatal(err)
	}
	cardA, err := a.QP.Card()
	enginetest.Must(t, err)
	broken := *cardA
	broken.Lanes = append([]ibverbx.CardLane(nil), cardA.Lanes...)
	broken.Lanes[2].GID = verbs.GID{} // refused by the NIC, after two lanes are connected
	broken.Lanes[2].LID = 1
	if err := b.QP.Connect(&broken); err == nil {
		t.Fatal("Connect to a lane without an address succeeded")
	}
	cardB, err := b.QP.Card()
	enginetest.Must(t, err)
	enginetest.Must(t, b.QP.Connect(cardA))
	enginetest.Must(t, a.QP.Connect(cardB))
	if _, err := b.QP.PostRecv([]ibverbx.RecvWR{second}); err != nil {
		t.Fatal(err)
	}
	wr := ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	wr.SetSGE(local.SGE(0, 64))
	if _, err := a.QP.PostSend([]ibverbx.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	a.Wait(1)
	if wc := b.Wait(1)[0]; wc.WRID != 1 || inbox.Bytes()[0] != 77 {
		t.Errorf("receive %d was reported, and the buffer of receive 1 begins with %d, want 77", wc.WRID, inbox.Bytes()[0])
	}
}

// TestArrivedIsDelivered: a message that was in the CQ when the VirtualQP failed is
// delivered; only the receives behind it are flushed.
func TestArrivedIsDelivered(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		t.Run(scheme.String(), func(t *testing.T) {
			a, b := enginetest.NewPair(t, enginetest.MemoryLinks(2), ibverbx.Config{Lanes: 2, Scheme: scheme})
			local, remote := a.Region(64), b.Region(64)
			if _, err := b.QP.PostRecv([]ibverbx.RecvWR{{WRID: 1}, {WRID: 2}}); err != nil {
				t.Fatal(err)
			}
			wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote()}
			wr.SetSGE(local.SGE(0, 8))
			if _, err := a.QP.PostSend([]ibverbx.SendWR{wr}); err != nil {
				t.Fatal(err)
			}
			if wc := a.Wait(1)[0]; wc.Err() != nil {
				t.Fatal(wc.Err())
			}
			bad := local.Remote()
			for i := range bad.RKeys {
				bad.RKeys[i] ^= 1 << 20
			}
			fail := ibverbx.SendWR{WRID: 9, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: bad}
			fail.SetSGE(remote.SGE(0, 8))
			if _, err := b.QP.PostSend([]ibverbx.SendWR{fail}); err != nil {
				t.Fatal(err)
			}
			got := make(map[uint64]verbs.Status)
			for _, wc := range b.Wait(3) {
				got[wc.WRID] = wc.Status
			}
			if got[1] != verbs.StatusSuccess || got[2] != verbs.StatusWRFlushErr || got[9] != verbs.StatusRemAccessErr {
				t.Errorf("statuses = %v, want success, flushed, remote access error", got)
			}
		})
	}
}

// TestDQPLBWireBytes checks the bytes of the immediates on the wire, where providers put them
// big-endian. The original writes its (little-endian) host's number unchanged: lowest byte first,
// and the bit of the last fragment in the fourth byte.
func TestDQPLBWireBytes(t *testing.T) {
	x := enginetest.NewScriptedQP(t, ibverbx.Config{Lanes: 2, Scheme: ibverbx.DQPLB, FragmentSize: 100})
	wrs := []ibverbx.SendWR{
		x.Request(1, verbs.OpRDMAWriteWithImm, 300), // 0, 1, 2 and last
		x.Request(2, verbs.OpRDMAWrite, 100),        // does not consume a number
		x.Request(3, verbs.OpRDMAWriteWithImm, 0),   // 3 covers the lane of the WRITE; 4 and last
	}
	x.PostSend(wrs...)
	got := make(map[[4]byte]uint64)
	for _, q := range x.NIC.QPs() {
		for _, wr := range q.Taken {
			if wr.Opcode == verbs.OpRDMAWriteWithImm {
				var b [4]byte
				binary.BigEndian.PutUint32(b[:], wr.Imm)
				got[b] = wr.Length()
			}
		}
	}
	want := map[[4]byte]uint64{{0, 0, 0, 0}: 100, {1, 0, 0, 0}: 100, {2, 0, 0, 0x80}: 100, {3, 0, 0, 0}: 0, {4, 0, 0, 0x80}: 0}
	if !maps.Equal(got, want) {
		t.Errorf("immediates on the wire = % x, want % x", got, want)
	}
}
