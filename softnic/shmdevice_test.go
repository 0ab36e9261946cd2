//go:build linux

package softnic_test

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// sharing describes a device whose memory other processes can open.
var sharing = verbstest.Sharing{Export: true, Open: true, Copy: true}

// farLinks opens the links that give a device access to peer memory.
var farLinks = map[string]func(tb testing.TB) verbstest.Pair{
	"shm": deviceLinks["shm"],
	"near": func(tb testing.TB) verbstest.Pair {
		return openUDP(tb, &softnic.UDPConfig{SharedMemory: true}, softnic.Config{}, "127.0.0.1", "127.0.0.2")
	},
}

// newFarRig returns a rig on one of farLinks with shared memory.
func newFarRig(tb testing.TB, link string) *deviceRig {
	tb.Helper()
	d := new(verbstest.MemoryDevice)
	d.Share(sharing)
	r := deviceRigWith(tb, farLinks[link](tb), verbs.RC, d, &verbs.MemoryConfig{Shared: true})
	r.awaitGranted(r.remote)
	r.awaitGranted(r.hostRemote)
	return r
}

// direct returns the number of requests that side A executed directly.
func (r *deviceRig) direct() uint64 { return r.ca.Device().(*softnic.NIC).Stats().Direct }

// packets returns the number of packets that side A has sent.
func (r *deviceRig) packets() uint64 { return r.ca.Device().(*softnic.NIC).Stats().PacketsSent }

// awaitGranted waits until side A can access a peer's region without packets.
func (r *deviceRig) awaitGranted(p devicePiece) {
	r.tb.Helper()
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		was := r.direct()
		r.post(p.request(verbs.OpRDMARead, 0, r.hostLocal.sge(0, 8)))
		succeeded(r.tb, await(r.tb, r.cqa, 1))
		if r.direct() > was {
			return
		}
		if time.Now().After(deadline) {
			r.tb.Fatal("the peer's memory cannot be touched directly")
		}
	}
}

// awaitOpened waits until want regions are open.
func (r *deviceRig) awaitOpened(want int, when string) {
	r.tb.Helper()
	for deadline := time.Now().Add(time.Minute); r.device.Opened() != want; runtime.Gosched() {
		if time.Now().After(deadline) {
			r.tb.Fatalf("%s: %d regions are open, want %d", when, r.device.Opened(), want)
		}
	}
}

// TestFarDevice: WRITEs and READs between device and host memory, in all combinations. Access to the peer's
// device memory needs no packets. The data arrives intact and no other bytes change. TestFarDeviceLong covers
// long requests on the peer's host memory.
func TestFarDevice(t *testing.T) {
	noRaces(t)
	for link := range farLinks {
		t.Run(link, func(t *testing.T) {
			r := newFarRig(t, link)
			for _, n := range []int{1, 15, 100, 4096, 50_001} {
				for name, step := range map[string]struct {
					far  devicePiece
					sges []verbs.SGE
				}{
					"device to device": {r.remote, []verbs.SGE{r.local.sge(3, n)}},
					"device to host":   {r.hostRemote, []verbs.SGE{r.local.sge(3, n)}},
					"host to device":   {r.remote, []verbs.SGE{r.hostLocal.sge(3, n)}},
					"both to device":   {r.remote, []verbs.SGE{r.hostLocal.sge(3, n/2), r.local.sge(3+n/2, n-n/2)}},
					"both to host":     {r.hostRemote, []verbs.SGE{r.local.sge(3, n/2), {LKey: 7}, r.hostLocal.sge(3+n/2, n-n/2)}},
				} {
					for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
						t.Run(fmt.Sprintf("%s/%v/%d", name, op, n), func(t *testing.T) { r.checkFar(t, op, step.far, step.sges, n) })
					}
				}
			}
		})
	}
}

// checkFar executes a request of n bytes at local offset 3 and remote offset 7.
func (r *deviceRig) checkFar(t *testing.T, op verbs.Opcode, far devicePiece, sges []verbs.SGE, n int) {
	t.Helper()
	mine, theirs := r.local.fill(t, n), far.fill(t, n+1)
	r.hostLocal.fill(t, n)
	direct, sent := r.direct(), r.packets()
	r.post(far.request(op, 7, sges...))
	succeeded(t, await(t, r.cqa, 1))
	if far.Device() != nil && (r.direct() != direct+1 || r.packets() != sent) {
		t.Errorf("%d direct requests and %d packets, want 1 and none", r.direct()-direct, r.packets()-sent)
	}
	if far.Device() == nil && r.direct() != direct {
		t.Error("a short request to memory that is not pinned is direct")
	}
	if op == verbs.OpRDMAWrite {
		copy(theirs[7:7+n], mine[3:])
		if !bytes.Equal(far.read(t, 0, far.Len()), theirs) {
			t.Error("the peer's memory is not what it was, with the bytes of the WRITE")
		}
		return
	}
	var got []byte
	for _, s := range sges {
		if p := r.local; s.LKey == p.mr.LKey() {
			got = append(got, p.read(t, int(s.Addr-p.mr.Addr()), int(s.Length))...)
		} else if p := r.hostLocal; s.LKey == p.mr.LKey() {
			got = append(got, p.read(t, int(s.Addr-p.mr.Addr()), int(s.Length))...)
		}
	}
	if !bytes.Equal(got, theirs[7:7+n]) {
		t.Error("the READ brings other bytes")
	}
}

// TestFarDeviceBatch: a chain of requests is one device call with one synchronization. A request on host
// memory or a fence closes the batch.
func TestFarDeviceBatch(t *testing.T) {
	noRaces(t)
	r := newFarRig(t, "shm")
	mine := r.local.fill(t, 1)
	wrs := make([]verbs.SendWR, 1000)
	for i := range wrs {
		wrs[i] = r.remote.request(verbs.OpRDMAWrite, i*60, r.local.sge(i*60+i%3, 50))
		wrs[i].Flags = 0
	}
	wrs[999].Flags = verbs.SendSignaled
	was, direct := r.device.Count(), r.direct()
	r.post(wrs...)
	succeeded(t, await(t, r.cqa, 1))
	if now := r.device.Count(); now.Calls != was.Calls+1 || now.Copies != was.Copies+1000 || r.direct() != direct+1000 {
		t.Errorf("%d calls with %d copies, and %d direct requests; want 1, 1000 and 1000", now.Calls-was.Calls, now.Copies-was.Copies, r.direct()-direct)
	}
	got := r.remote.read(t, 0, deviceRigSize)
	for i := range wrs {
		if !bytes.Equal(got[i*60:][:50], mine[i*60+i%3:][:50]) {
			t.Fatalf("block %d has other bytes", i)
		}
	}
	was = r.device.Count()
	fenced := r.remote.request(verbs.OpRDMAWrite, 100, r.local.sge(0, 50))
	fenced.Flags |= verbs.SendFence
	r.post(r.remote.request(verbs.OpRDMARead, 0, r.local.sge(0, 50)), r.remote.request(verbs.OpRDMARead, 0, r.local.sge(100, 50)), fenced,
		r.hostRemote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 50)), r.remote.request(verbs.OpRDMAWrite, 200, r.local.sge(0, 50)))
	succeeded(t, await(t, r.cqa, 5))
	if n := r.device.Count().Calls - was.Calls; n != 3 {
		t.Errorf("%d calls, want 3: before the fence, before the request on host memory, and the last", n)
	}
}

// TestFarDeviceImmediate: the receive of a WRITE with an immediate completes after its directly copied
// data and the data of all earlier requests. Inline data also works.
func TestFarDeviceImmediate(t *testing.T) {
	noRaces(t)
	r := newFarRig(t, "shm")
	mine, host := r.local.fill(t, 1), r.hostLocal.fill(t, 2)
	r.recv(5)
	inline := r.remote.request(verbs.OpRDMAWrite, 60_000, r.hostLocal.sge(9, 33))
	inline.Flags |= verbs.SendInline
	last := r.remote.request(verbs.OpRDMAWriteWithImm, 30_000, r.local.sge(1, 20_000))
	last.Imm = 77
	direct, sent := r.direct(), r.packets()
	r.post(r.remote.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 30_000)), inline, last)
	wc := await(t, r.cqb, 1)[0]
	if wc.Status != verbs.StatusSuccess || wc.Imm != 77 || wc.ByteLen != 20_000 || wc.WRID != 5 {
		t.Errorf("the receive is %+v, want success of 20,000 bytes with 77", wc)
	}
	got := r.remote.read(t, 0, deviceRigSize)
	if !bytes.Equal(got[:30_000], mine[:30_000]) || !bytes.Equal(got[30_000:50_000], mine[1:20_001]) || !bytes.Equal(got[60_000:60_033], host[9:42]) {
		t.Error("the receive completes before the bytes are in place")
	}
	succeeded(t, await(t, r.cqa, 3))
	if r.direct() != direct+3 || r.packets() != sent+1 {
		t.Errorf("%d direct requests and %d packets, want 3 and 1", r.direct()-direct, r.packets()-sent)
	}
}

// TestFarDeviceLong: a device copies long requests to and from any peer memory, including requests longer
// than a turn.
func TestFarDeviceLong(t *testing.T) {
	noRaces(t)
	r := newFarRig(t, "shm")
	const size = 17<<20 + 5
	big := func(pd verbs.PD, m *verbs.Memory, err error) devicePiece {
		must(t, err)
		t.Cleanup(func() { must(t, m.Free()) })
		mr, err := pd.RegisterMemory(m, verbs.AccessAll)
		must(t, err)
		t.Cleanup(func() { must(t, mr.Close()) })
		return devicePiece{m, mr}
	}
	m, err := r.device.Alloc(size)
	near := big(r.pa, m, err)
	for _, onHost := range []bool{false, true} {
		if m, err = r.device.Alloc(size); onHost {
			m, err = verbs.AllocMemory(size, &verbs.MemoryConfig{Shared: true})
		}
		far := big(r.pb, m, err)
		r.awaitGranted(far)
		for i, n := range []int{64 << 10, size} {
			want, direct := near.fill(t, i), r.direct()
			r.post(far.request(verbs.OpRDMAWrite, 0, near.sge(0, n)))
			succeeded(t, await(t, r.cqa, 1))
			if !bytes.Equal(far.read(t, 0, n), want[:n]) || r.direct() != direct+1 {
				t.Errorf("WRITE of %d bytes, host %v: %d direct requests, want 1 and the bytes that were sent", n, onHost, r.direct()-direct)
			}
			want, direct = far.fill(t, i+5), r.direct()
			r.post(far.request(verbs.OpRDMARead, 0, near.sge(0, n)))
			succeeded(t, await(t, r.cqa, 1))
			if !bytes.Equal(near.read(t, 0, n), want[:n]) || r.direct() != direct+1 {
				t.Errorf("READ of %d bytes, host %v: %d direct requests, want 1 and the peer's bytes", n, onHost, r.direct()-direct)
			}
		}
	}
}

// TestFarDeviceRights: direct copies are subject to the same access rights as packets.
func TestFarDeviceRights(t *testing.T) {
	noRaces(t)
	for _, tt := range []struct {
		name   string
		access verbs.Access
		op     verbs.Opcode
		off, n int
		pd     bool // the region is in another PD
		key    bool // the key is another one
		want   verbs.Status
	}{
		{name: "all", access: verbs.AccessAll, op: verbs.OpRDMAWrite, n: 100, want: verbs.StatusSuccess},
		{name: "up to the end", access: verbs.AccessAll, op: verbs.OpRDMARead, off: deviceRigSize - 100, n: 100, want: verbs.StatusSuccess},
		{name: "over the end", access: verbs.AccessAll, op: verbs.OpRDMAWrite, off: deviceRigSize - 99, n: 100, want: verbs.StatusRemAccessErr},
		{name: "before the beginning", access: verbs.AccessAll, op: verbs.OpRDMARead, off: -1, n: 100, want: verbs.StatusRemAccessErr},
		{name: "a WRITE to what can be read", access: verbs.AccessRemoteRead, op: verbs.OpRDMAWrite, n: 100, want: verbs.StatusRemAccessErr},
		{name: "a READ of what can be written", access: verbs.AccessLocalWrite | verbs.AccessRemoteWrite, op: verbs.OpRDMARead, n: 100, want: verbs.StatusRemAccessErr},
		{name: "another PD", access: verbs.AccessAll, op: verbs.OpRDMAWrite, n: 100, pd: true, want: verbs.StatusRemAccessErr},
		{name: "another key", access: verbs.AccessAll, op: verbs.OpRDMAWrite, n: 100, key: true, want: verbs.StatusRemAccessErr},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newFarRig(t, "shm")
			pd := r.pb
			if tt.pd {
				var err error
				pd, err = r.cb.AllocPD()
				must(t, err)
			}
			m, err := r.device.Alloc(3 * deviceRigSize)
			must(t, err)
			t.Cleanup(func() { must(t, m.Free()) })
			part, err := m.Slice(deviceRigSize, deviceRigSize)
			must(t, err)
			mr, err := pd.RegisterMemory(part, tt.access)
			must(t, err)
			t.Cleanup(func() { must(t, mr.Close()) })
			r.awaitKnown(t)
			before := devicePiece{m, mr}.read(t, 0, m.Len())
			r.local.fill(t, 1)
			wr := devicePiece{part, mr}.request(tt.op, tt.off, r.local.sge(0, tt.n))
			if tt.key {
				wr.RKey ^= 1 << 31
			}
			r.post(wr)
			if wc := await(t, r.cqa, 1)[0]; wc.Status != tt.want {
				t.Errorf("the request ends with %v, want %v", wc.Status, tt.want)
			}
			if after := (devicePiece{m, mr}).read(t, 0, m.Len()); tt.want != verbs.StatusSuccess && !bytes.Equal(before, after) {
				t.Error("the memory has changed")
			}
		})
	}
}

// awaitKnown waits until side A knows all regions that side B has registered, by registering one more and
// waiting for it.
func (r *deviceRig) awaitKnown(t *testing.T) {
	t.Helper()
	r.awaitGranted(r.register(r.pb, r.device.Alloc))
}

// TestFarDeviceFallback: packets carry data in memory without a handle, or that cannot be opened or copied.
// No request fails.
func TestFarDeviceFallback(t *testing.T) {
	noRaces(t)
	cases := map[string]verbstest.Sharing{"no handle": {}, "not opened": {Export: true}, "not copied": {Export: true, Open: true}}
	for name, s := range cases {
		// The first requests detect it. Without notifications, the device executes them together.
		for first, op := range []verbs.Opcode{verbs.OpRDMAWriteWithImm, verbs.OpRDMAWrite} {
			t.Run(name+"/"+op.String(), func(t *testing.T) {
				d := new(verbstest.MemoryDevice)
				d.Share(s)
				r := deviceRigWith(t, farLinks["shm"](t), verbs.RC, d, &verbs.MemoryConfig{Shared: true})
				r.awaitGranted(r.hostRemote) // earlier regions are known too
				direct := r.direct()
				for i := range 20 {
					mine, n := r.local.fill(t, i), 1+i*3000
					op := verbs.OpRDMAWrite
					if i%3 == first {
						op = verbs.OpRDMAWriteWithImm
						r.recv(5)
					}
					r.post(r.remote.request(op, i, r.local.sge(0, n)), r.remote.request(verbs.OpRDMARead, i, r.hostLocal.sge(0, n)))
					succeeded(t, await(t, r.cqa, 2))
					if !bytes.Equal(r.remote.read(t, i, n), mine[:n]) || !bytes.Equal(r.hostLocal.read(t, 0, n), mine[:n]) {
						t.Fatalf("request %d brings other bytes", i)
					}
				}
				if r.direct() != direct {
					t.Errorf("%d direct requests, want none", r.direct()-direct)
				}
			})
		}
	}
}

// TestFarDeviceOther: a NIC without device memory does not open the peer's until it registers some.
func TestFarDeviceOther(t *testing.T) {
	noRaces(t)
	r := newFarRig(t, "shm")
	must(t, r.local.mr.Close())
	if n := r.device.Opened(); n != 0 {
		t.Errorf("%d regions are open on a device without registered memory, want none", n)
	}
	direct := r.direct()
	want := r.hostLocal.fill(t, 4)
	r.post(r.remote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 5000)))
	succeeded(t, await(t, r.cqa, 1))
	if !bytes.Equal(r.remote.read(t, 0, 5000), want[:5000]) || r.direct() != direct {
		t.Errorf("%d direct requests, want packets with the right bytes", r.direct()-direct)
	}
	r.register(r.pa, r.device.Alloc)
	r.awaitGranted(r.remote)
}

// TestFarDeviceFails: a device failure fails the request, and later requests are flushed.
func TestFarDeviceFails(t *testing.T) {
	noRaces(t)
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpRDMAWriteWithImm} {
		t.Run(op.String(), func(t *testing.T) {
			r := newFarRig(t, "shm")
			r.device.FailAfter(0)
			defer r.device.FailAfter(-1)
			r.post(r.remote.request(op, 0, r.hostLocal.sge(0, 100)), r.remote.request(op, 100, r.local.sge(0, 100)))
			if wcs := await(t, r.cqa, 2); wcs[0].Status != verbs.StatusGeneralErr || wcs[1].Status != verbs.StatusWRFlushErr {
				t.Errorf("the requests end with %v and %v, want %v and %v", wcs[0].Status, wcs[1].Status, verbs.StatusGeneralErr, verbs.StatusWRFlushErr)
			}
		})
	}
}

// TestFarDeviceWaits: a request is not complete, at either side, and its region is not deregistered, before the device has copied.
func TestFarDeviceWaits(t *testing.T) {
	noRaces(t)
	r := newFarRig(t, "shm")
	spare := r.register(r.pb, r.device.Alloc)
	r.awaitGranted(spare)
	want := r.local.fill(t, 1)
	r.recv(5)
	waits, release := hold(t, r.device)
	posted, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := r.qa.PostSend([]verbs.SendWR{spare.request(verbs.OpRDMAWriteWithImm, 0, r.local.sge(0, 5000))})
		posted <- err
	}()
	<-waits
	var wcs [1]verbs.WC
	if n, err := r.cqb.Poll(wcs[:]); n != 0 || err != nil {
		t.Errorf("Poll of the peer before the copy = %d, %v, want nothing", n, err)
	}
	go func() { closed <- spare.mr.Close() }()
	for range 300 {
		runtime.Gosched()
	}
	if len(posted) > 0 || len(closed) > 0 {
		t.Errorf("posted %d, closed %d before the copy, want neither", len(posted), len(closed))
	}
	release()
	must(t, <-posted)
	must(t, <-closed)
	if !bytes.Equal(spare.read(t, 0, 5000), want[:5000]) {
		t.Error("the region is closed before the bytes are in place")
	}
	// The packet with the immediate may find the region or not.
	if wc := await(t, r.cqa, 1)[0]; wc.Status != verbs.StatusSuccess && wc.Status != verbs.StatusRemAccessErr {
		t.Errorf("the request ends with %v, want success or %v", wc.Status, verbs.StatusRemAccessErr)
	}
}

// TestFarDeviceCloses: peer memory is closed with its region, and when either side closes.
func TestFarDeviceCloses(t *testing.T) {
	noRaces(t)
	for link := range farLinks {
		t.Run(link, func(t *testing.T) {
			r := newFarRig(t, link)
			spare := r.register(r.pb, r.device.Alloc)
			r.awaitGranted(spare)
			r.awaitOpened(2, "after a request to each of two regions")
			must(t, spare.mr.Close())
			r.awaitOpened(1, "after one was deregistered")
			r.post(spare.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 10)))
			if wc := await(t, r.cqa, 1)[0]; wc.Status != verbs.StatusRemAccessErr {
				t.Errorf("a request to it ends with %v, want %v", wc.Status, verbs.StatusRemAccessErr)
			}
			must(t, r.cb.Device().(*softnic.NIC).Close())
			r.awaitOpened(0, "after the end of the peer")
		})
	}
	t.Run("own end", func(t *testing.T) {
		r := newFarRig(t, "shm")
		must(t, r.ca.Device().(*softnic.NIC).Close())
		r.awaitOpened(0, "after the end of the NIC")
	})
}

// TestFarDeviceAddress: a region with its own address range is accessed directly, and one with the key of an
// earlier region through packets.
func TestFarDeviceAddress(t *testing.T) {
	noRaces(t)
	r := newFarRig(t, "shm")
	m, err := r.device.Alloc(deviceRigSize)
	must(t, err)
	t.Cleanup(func() { must(t, m.Free()) })
	pd := r.pb.(interface {
		RegisterMemoryAt(m *verbs.Memory, iova uint64, access verbs.Access) (verbs.MR, error)
		ReregisterMemoryAt(old verbs.MR, m *verbs.Memory, iova uint64, access verbs.Access) (verbs.MR, error)
	})
	mr, err := pd.RegisterMemoryAt(m, 0x7000, verbs.AccessAll)
	must(t, err)
	p := devicePiece{m, mr}
	r.awaitGranted(p)
	r.checkFar(t, verbs.OpRDMAWrite, p, []verbs.SGE{r.local.sge(3, 100)}, 100)
	p.mr, err = pd.ReregisterMemoryAt(mr, m, 0x7000, verbs.AccessRemoteRead)
	must(t, err)
	t.Cleanup(func() { must(t, p.mr.Close()) })
	direct, want := r.direct(), p.fill(t, 9)
	r.post(p.request(verbs.OpRDMARead, 0, r.local.sge(0, 5000)), p.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 5000)))
	wcs := await(t, r.cqa, 2)
	if wcs[0].Status != verbs.StatusSuccess || wcs[1].Status != verbs.StatusRemAccessErr || r.direct() != direct || !bytes.Equal(r.local.read(t, 0, 5000), want[:5000]) {
		t.Errorf("the READ ends with %v, the WRITE with %v, after %d direct requests; want success, %v and none", wcs[0].Status, wcs[1].Status, r.direct()-direct, verbs.StatusRemAccessErr)
	}
}
