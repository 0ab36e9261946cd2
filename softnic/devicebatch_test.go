//go:build linux

package softnic_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"ibverbx/verbs"
)

// batchSize is the length of a chain that spans several slices, with a short last one.
const batchSize = 900

// slices returns a chain of 64-byte WRITEs within the device, each to its own offset. The last one is
// signaled.
func (r *deviceRig) slices() []verbs.SendWR {
	wrs := make([]verbs.SendWR, batchSize)
	for i := range wrs {
		wrs[i] = r.remote.request(verbs.OpRDMAWrite, i*64, r.local.sge(i*64, 64))
		wrs[i].WRID, wrs[i].Flags = uint64(i), 0
	}
	wrs[batchSize-1].Flags = verbs.SendSignaled
	return wrs
}

// TestDeviceSlices: the requests of a long chain execute in order, even if they overlap and are in different
// slices of a batch. Only a receive or host memory in the middle waits for all earlier requests.
func TestDeviceSlices(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for turn := range 6 {
		r := newDeviceRig(t, "memory", verbs.RC)
		local, remote, far := r.local.fill(t, turn), r.remote.fill(t, turn+1), r.hostRemote.fill(t, turn+2)
		wrs, waits, signaled, notified := make([]verbs.SendWR, batchSize), 1, 1, 0
		for i := range wrs {
			n := 1 + random.IntN(3000)
			a, b := random.IntN(deviceRigSize-n), random.IntN(deviceRigSize-n)
			wr := r.remote.request(verbs.OpRDMAWrite, b, r.local.sge(a, n))
			switch k := random.IntN(1000); {
			case turn > 0 && k < 100:
				wr.Opcode = verbs.OpRDMARead
				copy(local[a:][:n], remote[b:])
			case turn > 1 && k < 110:
				wr.Opcode = verbs.OpRDMAWriteWithImm
				waits++
				notified++
				copy(remote[b:][:n], local[a:])
			case turn > 2 && k < 120: // from the device to the host and back, by the device
				wr = r.hostRemote.request(verbs.OpRDMAWrite, b, r.local.sge(a, n))
				copy(far[b:][:n], local[a:])
			case turn > 2 && k < 140:
				wr = r.hostRemote.request(verbs.OpRDMARead, b, r.local.sge(a, n))
				copy(local[a:][:n], far[b:])
			default:
				copy(remote[b:][:n], local[a:])
			}
			if wr.Flags = 0; random.IntN(50) == 0 || i == len(wrs)-1 {
				wr.Flags = verbs.SendSignaled
				signaled += 1 - i/(len(wrs)-1)
			}
			wrs[i] = wr
		}
		_, err := r.qb.PostRecv(make([]verbs.RecvWR, notified))
		must(t, err)
		before := r.device.Count()
		r.post(wrs...)
		for i, wc := range await(t, r.cqa, signaled) {
			if wc.Status != verbs.StatusSuccess {
				t.Fatalf("turn %d: completion %d = %v, want success", turn, i, wc.Status)
			}
		}
		await(t, r.cqb, notified)
		after := r.device.Count()
		if calls, copies := after.Calls-before.Calls, after.Copies-before.Copies; copies != batchSize || calls > waits {
			t.Errorf("turn %d: the device waits %d times for %d copies, want at most %d times for %d", turn, calls, copies, waits, batchSize)
		}
		if !bytes.Equal(r.local.read(t, 0, deviceRigSize), local) || !bytes.Equal(r.remote.read(t, 0, deviceRigSize), remote) || !bytes.Equal(r.hostRemote.read(t, 0, deviceRigSize), far) {
			t.Fatalf("turn %d: the bytes are not those of requests in order", turn)
		}
	}
}

// TestDeviceSlicesEnd: a chain neither completes nor returns from the post before the device has
// finished its last slice. A receive in the middle completes once the preceding slices are done.
func TestDeviceSlicesEnd(t *testing.T) {
	r := newDeviceRig(t, "memory", verbs.RC)
	for range 100 { // until the gate is open, so that the peer can poll during a post
		r.post(r.hostRemote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 8)))
		await(t, r.cqa, 1)
	}
	want, wrs := r.local.fill(t, 1), r.slices()
	wrs[100].Flags, wrs[batchSize/2].Opcode = verbs.SendSignaled, verbs.OpRDMAWriteWithImm
	_, err := r.qb.PostRecv([]verbs.RecvWR{{WRID: 5}})
	must(t, err)
	empty := func(cqs ...verbs.CQ) {
		var wcs [1]verbs.WC
		for i, cq := range cqs {
			if n, err := cq.Poll(wcs[:]); n != 0 || err != nil {
				t.Errorf("Poll of CQ %d during the copies = %d, %v, want nothing", i, n, err)
			}
		}
	}
	waits, release := r.device.Hold()
	posted := make(chan error, 1)
	go func() { _, err := r.qa.PostSend(wrs); posted <- err }()
	<-waits // for the receive
	empty(r.cqa, r.cqb)
	rest, releaseRest := r.device.Hold()
	release()
	<-rest // for the end of the chain
	if wc := await(t, r.cqb, 1)[0]; wc.Status != verbs.StatusSuccess || wc.WRID != 5 {
		t.Errorf("receive = %+v, want success", wc)
	}
	empty(r.cqa)
	if len(posted) > 0 {
		t.Error("the post returns before the last copy")
	}
	releaseRest()
	must(t, <-posted)
	await(t, r.cqa, 2)
	if !bytes.Equal(r.remote.read(t, 0, batchSize*64), want[:batchSize*64]) {
		t.Error("the bytes are not in place")
	}
}

// TestDeviceSliceFails: a copy that fails in any slice fails its request. Earlier requests succeed with their
// bytes in place, and later ones are flushed. A later host WRITE has no effect.
func TestDeviceSliceFails(t *testing.T) {
	for i, bad := range []int{0, 60, 200, batchSize / 2, batchSize - 1, 0, 200} {
		withHost := i > 4 // a host WRITE closes the batch
		t.Run(fmt.Sprint(bad, withHost), func(t *testing.T) {
			r := newDeviceRig(t, "memory", verbs.RC)
			broken := r.register(r.pb, r.device.Alloc)
			want, wrs := r.local.fill(t, 1), r.slices()
			wrs[bad] = broken.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 64))
			r.hostLocal.fill(t, 2)
			host := r.hostRemote.fill(t, 3)
			if withHost {
				wrs[bad+1] = r.hostRemote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 64))
			}
			for i := range wrs {
				wrs[i].WRID, wrs[i].Flags = uint64(i), verbs.SendSignaled
			}
			r.device.FailAt(broken.Memory)
			r.post(wrs...)
			for i, wc := range await(t, r.cqa, batchSize) {
				status := verbs.StatusSuccess
				if i == bad {
					status = verbs.StatusRemOpErr
				} else if i > bad {
					status = verbs.StatusWRFlushErr
				}
				if wc.Status != status || wc.WRID != uint64(i) {
					t.Fatalf("completion %d = %v of %d, want %v", i, wc.Status, wc.WRID, status)
				}
			}
			if !bytes.Equal(r.remote.read(t, 0, bad*64), want[:bad*64]) {
				t.Error("requests succeeded, and their bytes are not in place")
			}
			if !bytes.Equal(r.hostRemote.read(t, 0, 64), host[:64]) {
				t.Error("a flushed host WRITE has changed memory")
			}
		})
	}
}

// TestDeviceLostBetweenSlices: if the device fails from some slice on, the chain fails behind the last
// completed receive.
func TestDeviceLostBetweenSlices(t *testing.T) {
	for k := 0; ; k++ {
		r := newDeviceRig(t, "memory", verbs.RC)
		want, wrs := r.local.fill(t, 1), r.slices()
		const middle = batchSize / 2
		wrs[middle].Opcode = verbs.OpRDMAWriteWithImm
		for i := range wrs {
			wrs[i].Flags = verbs.SendSignaled
		}
		_, err := r.qb.PostRecv(make([]verbs.RecvWR, 1))
		must(t, err)
		r.device.FailAfter(k)
		r.post(wrs...)
		wcs := await(t, r.cqa, batchSize)
		r.device.FailAfter(-1)
		good := 0
		for good < len(wcs) && wcs[good].Status == verbs.StatusSuccess {
			good++
		}
		if good != 0 && good != middle+1 && good != batchSize {
			t.Errorf("after %d calls %d requests succeed, want none, those up to the receive, or all", k, good)
		}
		if !bytes.Equal(r.remote.read(t, 0, good*64), want[:good*64]) {
			t.Errorf("after %d calls %d requests succeed, and their bytes are not in place", k, good)
		}
		if good == batchSize {
			break
		}
	}
}

// TestDeviceSlicesAllocateNothing: a long chain does not allocate.
func TestDeviceSlicesAllocateNothing(t *testing.T) {
	r := newDeviceRig(t, "memory", verbs.RC)
	wrs, wcs := r.slices(), make([]verbs.WC, 1)
	if n := testing.AllocsPerRun(20, func() {
		if n, err := r.qa.PostSend(wrs); n != batchSize || err != nil {
			t.Fatalf("PostSend = %d, %v, want %d and nil", n, err, batchSize)
		}
		if n, err := r.cqa.Poll(wcs); n != 1 || err != nil || wcs[0].Status != verbs.StatusSuccess {
			t.Fatalf("Poll = %d, %v, %v, want a success", n, err, wcs[0].Status)
		}
	}); n != 0 {
		t.Errorf("a chain allocates %v times, want 0", n)
	}
}
