//go:build linux

package softnic_test

import (
	"bytes"
	"runtime"
	"slices"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// received waits until the NIC of a context has received n packets since before.
func received(ctx verbs.Context, before uint64, n int) {
	for ctx.Device().(*softnic.NIC).Stats().PacketsReceived < before+uint64(n) {
		runtime.Gosched()
	}
}

// TestStagedFailures: if several landings of a QP fail, the first of their requests completes with an
// error, and all others fail as well.
func TestStagedFailures(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		r := newDeviceRig(t, link, verbs.RC)
		before := r.cb.Device().(*softnic.NIC).Stats().PacketsReceived
		waits, release := hold(t, r.device)
		r.post(r.remote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 100)))
		<-waits
		r.post(r.remote.request(verbs.OpRDMAWrite, 100, r.hostLocal.sge(0, 100))) // in the next landing
		received(r.cb, before, 2)
		r.device.FailAt(r.remote.Memory)
		release()
		wcs := await(t, r.cqa, 2)
		if wcs[0].Status != verbs.StatusRemOpErr || wcs[1].Status != verbs.StatusWRFlushErr {
			t.Errorf("the WRITEs whose copies fail = %v and %v, want REM_OP_ERR and a flush", wcs[0].Status, wcs[1].Status)
		}
		r.device.FailAt(nil)
	})
}

// TestStagedBufferAfterFailure: a staging buffer whose copies fail is reused once the device has waited for
// them, or is lost. Otherwise the device keeps it.
func TestStagedBufferAfterFailure(t *testing.T) {
	const failures = 3
	for _, tt := range []struct {
		name    string
		fail    func(r *deviceRig)
		buffers int
	}{
		{"a copy is refused", func(r *deviceRig) { r.device.FailAt(r.remote.Memory) }, 1},
		{"the device is lost", func(r *deviceRig) { r.device.Lose() }, 1},
		{"the device does not wait", func(r *deviceRig) { r.device.FailAfter(0) }, failures},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newDeviceRig(t, "udp", verbs.RC)
			tt.fail(r)
			for range failures {
				r.post(r.remote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 100)))
				if wc := await(t, r.cqa, 1)[0]; wc.Status != verbs.StatusRemOpErr {
					t.Fatalf("a WRITE whose landing fails = %v, want REM_OP_ERR", wc.Status)
				}
				r.qa, r.qb = r.pair(verbs.RC, r.cqa, r.cqb, 16)
			}
			if n, want := r.device.Pinned(), tt.buffers*256<<10; n != want {
				t.Errorf("after %d failures %d bytes are pinned, want %d: %d buffers", failures, n, want, tt.buffers)
			}
			r.device.FailAfter(-1)
			r.device.FailAt(nil)
		})
	}
}

// TestStagedReadBeforeFailure: a READ before a WRITE whose landing fails gets its response.
func TestStagedReadBeforeFailure(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		r := newDeviceRig(t, link, verbs.RC)
		slow := new(verbstest.MemoryDevice)
		source := r.register(r.pb, slow.Alloc)
		want := source.fill(t, 3)
		eventTypes(t, r.cb)
		waits, release := hold(t, slow)
		r.device.FailAt(r.remote.Memory)
		r.post(source.request(verbs.OpRDMARead, 0, r.hostLocal.sge(0, 100)), r.remote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(200, 100)))
		<-waits
		for !slices.Contains(eventTypes(t, r.cb), verbs.EventQPReqErr) { // the landing has failed
			runtime.Gosched()
		}
		release()
		wcs := await(t, r.cqa, 2)
		if wcs[0].Status != verbs.StatusSuccess || wcs[1].Status != verbs.StatusRemOpErr {
			t.Errorf("the READ and the WRITE = %v and %v, want success and REM_OP_ERR", wcs[0].Status, wcs[1].Status)
		}
		if !bytes.Equal(r.hostLocal.read(t, 0, 100), want[:100]) {
			t.Error("the READ brings other bytes")
		}
		r.device.FailAt(nil)
	})
}

// TestStagedOwnRequests: data landing for the peer does not block the QP's own requests, whether fenced or
// direct, and the send queue counts as drained.
func TestStagedOwnRequests(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		r := newDeviceRig(t, link, verbs.RC)
		must2(t)(r.qa.PostRecv([]verbs.RecvWR{{WRID: 3}}))
		waits, release := hold(t, r.device)
		r.post(r.remote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 100)))
		<-waits
		eventTypes(t, r.cb)
		must(t, r.qb.Modify(verbs.QPAttr{State: verbs.StateSQD, SQDNotify: true}, verbs.AttrState|verbs.AttrSQDNotify))
		if e := eventTypes(t, r.cb); !slices.Contains(e, verbs.EventSQDrained) {
			t.Errorf("events of an idle send queue = %v, want that it is drained", e)
		}
		must(t, r.qb.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.AttrState))
		must2(t)(r.qb.PostSend([]verbs.SendWR{
			r.hostLocal.request(verbs.OpRDMAWrite, 0, r.hostRemote.sge(0, 10_000)), // long enough to be done directly
			{Opcode: verbs.OpSend, Flags: verbs.SendFence | verbs.SendSignaled},
		}))
		if wc := await(t, r.cqa, 1)[0]; wc.WRID != 3 || wc.Status != verbs.StatusSuccess {
			t.Errorf("completion = %+v, want the receive of the fenced SEND", wc)
		}
		release()
		succeeded(t, await(t, r.cqa, 1))
		succeeded(t, await(t, r.cqb, 2))
	})
}

// TestStagedLastWQE: an SRQ's last-WQE event is raised after the completions that waited for data to land.
func TestStagedLastWQE(t *testing.T) {
	onStaged(t, func(t *testing.T, link string) {
		r := newDeviceRig(t, link, verbs.RC)
		srq, err := r.pb.CreateSRQ(verbs.SRQConfig{MaxWR: 4, MaxSGE: 1})
		must(t, err)
		cq := newCQ(t, r.cb, 4)
		qb, err := r.pb.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, SRQ: srq, MaxSendWR: 1})
		must(t, err)
		qa, err := r.pa.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: r.cqa, RecvCQ: r.cqa, MaxSendWR: 4, MaxSendSGE: 1, Path: verbs.PathConfig{AckTimeout: heldTimeout}})
		must(t, err)
		connect(t, qa, qb)
		wr := verbs.RecvWR{WRID: 6, NumSGE: 1}
		wr.SGE[0] = r.remote.sge(0, 100)
		must2(t)(srq.PostRecv([]verbs.RecvWR{wr}))
		waits, release := hold(t, r.device)
		must2(t)(qa.PostSend([]verbs.SendWR{r.remote.request(verbs.OpSend, 0, r.hostLocal.sge(0, 100))}))
		<-waits
		must(t, qb.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState))
		if e := eventTypes(t, r.cb); slices.Contains(e, verbs.EventLastWQEReached) {
			t.Fatalf("events before the receive has completed = %v, want none of the last WQE", e)
		}
		release()
		if wc := await(t, cq, 1)[0]; wc.WRID != 6 || wc.Status != verbs.StatusSuccess {
			t.Errorf("receive = %+v, want success of 6", wc)
		}
		for !slices.Contains(eventTypes(t, r.cb), verbs.EventLastWQEReached) {
			runtime.Gosched()
		}
	})
}
