//go:build linux

package softnic_test

import (
	"bytes"
	"runtime"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// stuck creates a QP on side A that sends device memory to a closed peer and so holds a staging
// buffer forever.
func (r *deviceRig) stuck(from devicePiece) {
	r.tb.Helper()
	cq := newCQ(r.tb, r.ca, 16)
	qa, err := r.pa.CreateQP(verbs.QPConfig{
		Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxSendSGE: 1, Path: verbs.PathConfig{AckTimeout: verbs.ExplicitZero},
	})
	must(r.tb, err)
	_, qb := r.pair(verbs.RC, newCQ(r.tb, r.ca, 16), newCQ(r.tb, r.cb, 16), 4)
	e, err := qb.Endpoint()
	must(r.tb, err)
	must(r.tb, qb.Close())
	must(r.tb, qa.Connect(e))
	must2(r.tb)(qa.PostSend([]verbs.SendWR{ // the first closes the window in the middle of a buffer
		{Opcode: verbs.OpSend}, {Opcode: verbs.OpSend, NumSGE: 1, SGE: [verbs.MaxSGE]verbs.SGE{from.sge(0, 4<<20)}},
	}))
}

// copied waits until a device has done n copies since before.
func copied(d *verbstest.MemoryDevice, before verbstest.Copies, n int) {
	for d.Count().Copies < before.Copies+n {
		runtime.Gosched()
	}
}

// TestStagedTakenWhileDue: a QP that waits for a packet's data, while another QP has stolen its other
// buffers, still makes progress.
func TestStagedTakenWhileDue(t *testing.T) {
	p := openUDP(t, nil, softnic.Config{Staging: 1 << 20}, "127.0.0.1", "127.0.0.2")
	r := deviceRigOn(t, p, verbs.RC)
	slow := new(verbstest.MemoryDevice)
	late := r.register(r.pa, slow.Alloc)
	long := bigPiece(t, r.pa, r.device, 4<<20)
	first, second := r.local.fill(t, 1), late.fill(t, 2)
	_, release := hold(t, slow)
	before := r.device.Count()
	r.post(r.hostRemote.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 100), late.sge(0, 100)))
	copied(r.device, before, 1)
	r.stuck(long)
	copied(r.device, before, 5)
	cq := newCQ(t, r.ca, 4)
	qa, _ := r.pair(verbs.RC, cq, r.cqb, 4)
	must2(t)(qa.PostSend([]verbs.SendWR{r.hostRemote.request(verbs.OpRDMAWrite, 1000, r.local.sge(0, 100))}))
	succeeded(t, await(t, cq, 1))
	release()
	succeeded(t, await(t, r.cqa, 1))
	if b := r.hostRemote.read(t, 0, 200); !bytes.Equal(b[:100], first[:100]) || !bytes.Equal(b[100:], second[:100]) {
		t.Error("the bytes are not in place")
	}
}

// TestStagedTwoDevices: a packet with data from two devices is intact, even if other QPs hold the buffers of
// one of them.
func TestStagedTwoDevices(t *testing.T) {
	p := openUDP(t, nil, softnic.Config{Staging: 1 << 20}, "127.0.0.1", "127.0.0.2")
	r := deviceRigOn(t, p, verbs.RC)
	other := new(verbstest.MemoryDevice)
	theirs := r.register(r.pa, other.Alloc)
	long := bigPiece(t, r.pa, other, 4<<20)
	first, second := r.local.fill(t, 1), theirs.fill(t, 2)
	before := other.Count()
	r.stuck(long)
	r.stuck(long)
	copied(other, before, 5)
	waits, release := hold(t, other)
	posted := make(chan error, 1)
	go func() { // it may do the copy itself
		_, err := r.qa.PostSend([]verbs.SendWR{
			r.hostRemote.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 100)),
			r.hostRemote.request(verbs.OpRDMAWrite, 100, r.local.sge(100, 2000), theirs.sge(0, 2000)),
		})
		posted <- err
	}()
	<-waits
	for range 1000 {
		runtime.Gosched()
	}
	release()
	must(t, <-posted)
	succeeded(t, await(t, r.cqa, 2))
	if b := r.hostRemote.read(t, 0, 4100); !bytes.Equal(b[:2100], first[:2100]) || !bytes.Equal(b[2100:], second[:2000]) {
		t.Error("the bytes are not right")
	}
}

// TestStagedReadAskedAgain: a READ that the peer retries while its data is being fetched from a device
// is answered once.
func TestStagedReadAskedAgain(t *testing.T) {
	const asked = 3
	r := newDeviceRig(t, "udp", verbs.RC)
	nic := r.cb.Device().(*softnic.NIC)
	want, before := r.remote.fill(t, 1), nic.Stats()
	waits, release := hold(t, r.device)
	r.post(r.remote.request(verbs.OpRDMARead, 0, r.hostLocal.sge(0, 100)))
	<-waits
	for nic.Stats().Duplicates < before.Duplicates+asked { // probes
		runtime.Gosched()
	}
	release()
	succeeded(t, await(t, r.cqa, 1))
	if n := nic.Stats().PacketsSent - before.PacketsSent; n > asked { // the peer may retry once more while the response is in flight
		t.Errorf("%d answers to a READ of one packet that was asked for %d times, want one", n, 1+asked)
	}
	if !bytes.Equal(r.hostLocal.read(t, 0, 100), want[:100]) {
		t.Error("the READ brings other bytes")
	}
}
