//go:build linux

package softnic_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"ibverbx/internal/testslice"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// deviceLinks opens the links for device memory tests, by name.
var deviceLinks = map[string]func(tb testing.TB) verbstest.Pair{
	"memory": func(tb testing.TB) verbstest.Pair {
		link := softnic.NewMemoryLink(nil)
		softnic.SetLoose(link, 0)
		return open(tb, link, softnic.Config{})
	},
	"segmented": func(tb testing.TB) verbstest.Pair {
		link, err := softnic.NewFaultLink(nil)
		must(tb, err)
		return open(tb, link, softnic.Config{MTU: verbs.MTU512, Seed: 1})
	},
	"udp": func(tb testing.TB) verbstest.Pair {
		return openUDP(tb, nil, softnic.Config{MTU: verbs.MTU1024}, "127.0.0.1", "127.0.0.2")
	},
	"shm": func(tb testing.TB) (p verbstest.Pair) {
		if heapMemory {
			tb.Skip("two links share no lock, and the race detector does not see that a packet comes after it was sent")
		}
		a, b := shmLinks(tb)
		_, p.A, _ = plug(tb, a)
		_, p.B, _ = plug(tb, b)
		return p
	},
}

// TestConformanceDevice runs the suite on memory that only a device can access, and alternately on device and
// host memory. A CPU access to device memory would crash the process.
func TestConformanceDevice(t *testing.T) {
	run := func(name, link string, alloc func(*verbstest.MemoryDevice, int) (*verbs.Memory, error)) {
		t.Run(name, func(t *testing.T) {
			verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
				p, device := deviceLinks[link](tb), new(verbstest.MemoryDevice)
				p.Device = true
				p.Alloc = func(size int) (*verbs.Memory, error) { return alloc(device, size) }
				return p
			})
		})
	}
	run("mixed", "memory", (*verbstest.MemoryDevice).Alternate)
	if heapMemory {
		return // one run is enough for the race detector, which is slow
	}
	for _, link := range testslice.Pick(t, []string{"memory", "udp", "shm", "mixed-udp"}) {
		if link == "mixed-udp" {
			run(link, "udp", (*verbstest.MemoryDevice).Alternate)
			continue
		}
		run(link, link, (*verbstest.MemoryDevice).Alloc)
	}
}

// deviceRig is two connected QPs with device and host memory on each side.
type deviceRig struct {
	*rig
	device   *verbstest.MemoryDevice
	cqa, cqb verbs.CQ
	qa, qb   verbs.QP
	// local and remote are device memory, hostLocal and hostRemote host memory.
	local, remote, hostLocal, hostRemote devicePiece
}

// hold is the device's Hold, released if the test fails.
func hold(tb testing.TB, d *verbstest.MemoryDevice) (waits <-chan struct{}, release func()) {
	waits, release = d.Hold()
	release = sync.OnceFunc(release)
	tb.Cleanup(release)
	return waits, release
}

// devicePiece is registered memory.
type devicePiece struct {
	*verbs.Memory
	mr verbs.MR
}

const deviceRigSize = 1 << 16

// heldTimeout is the code for 17 s. The peer does not respond while a test holds a copy.
const heldTimeout = 22

func newDeviceRig(tb testing.TB, link string, typ verbs.QPType) *deviceRig {
	tb.Helper()
	return deviceRigOn(tb, deviceLinks[link](tb), typ)
}

// deviceRigOn returns a rig without shared memory access.
func deviceRigOn(tb testing.TB, p verbstest.Pair, typ verbs.QPType) *deviceRig {
	tb.Helper()
	return deviceRigWith(tb, p, typ, new(verbstest.MemoryDevice), nil)
}

// deviceRigWith returns a rig with device memory, and host memory as configured by cfg.
func deviceRigWith(tb testing.TB, p verbstest.Pair, typ verbs.QPType, d *verbstest.MemoryDevice, cfg *verbs.MemoryConfig) *deviceRig {
	tb.Helper()
	r := &deviceRig{rig: &rig{tb: tb, ca: p.A, cb: p.B, ackTimeout: heldTimeout}, device: d}
	var err error
	r.pa, err = p.A.AllocPD()
	must(tb, err)
	r.pb, err = p.B.AllocPD()
	must(tb, err)
	r.cqa, r.cqb = newCQ(tb, r.ca, 2048), newCQ(tb, r.cb, 2048)
	r.qa, r.qb = r.pair(typ, r.cqa, r.cqb, 1024)
	r.local, r.remote = r.register(r.pa, r.device.Alloc), r.register(r.pb, r.device.Alloc)
	host := func(n int) (*verbs.Memory, error) { return verbs.AllocMemory(n, cfg) }
	r.hostLocal, r.hostRemote = r.register(r.pa, host), r.register(r.pb, host)
	return r
}

func (r *deviceRig) register(pd verbs.PD, alloc func(int) (*verbs.Memory, error)) devicePiece {
	r.tb.Helper()
	m, err := alloc(deviceRigSize)
	must(r.tb, err)
	r.tb.Cleanup(func() { must(r.tb, m.Free()) })
	mr, err := pd.RegisterMemory(m, verbs.AccessAll)
	must(r.tb, err)
	r.tb.Cleanup(func() { must(r.tb, mr.Close()) })
	return devicePiece{m, mr}
}

func (p devicePiece) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: p.mr.Addr() + uint64(off), Length: uint32(n), LKey: p.mr.LKey()}
}

// fill writes bytes that differ by seed.
func (p devicePiece) fill(tb testing.TB, seed int) []byte {
	tb.Helper()
	b := make([]byte, p.Len())
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	_, err := p.WriteAt(b, 0)
	must(tb, err)
	return b
}

func (p devicePiece) read(tb testing.TB, off, n int) []byte {
	tb.Helper()
	b := make([]byte, n)
	_, err := p.ReadAt(b, int64(off))
	must(tb, err)
	return b
}

// request is a signaled request to p at off.
func (p devicePiece) request(op verbs.Opcode, off int, sges ...verbs.SGE) verbs.SendWR {
	wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: p.mr.Addr() + uint64(off), RKey: p.mr.RKey(), NumSGE: uint8(len(sges))}
	copy(wr.SGE[:], sges)
	return wr
}

// TestDeviceCompletionAfterCopy: no completion is visible before the bytes are in place, at either side.
func TestDeviceCompletionAfterCopy(t *testing.T) {
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpRDMARead} {
		t.Run(op.String(), func(t *testing.T) {
			r := newDeviceRig(t, "memory", verbs.RC)
			want := r.local.fill(t, 1)
			if op == verbs.OpRDMARead {
				want = r.remote.fill(t, 2)
			}
			_, err := r.qb.PostRecv([]verbs.RecvWR{{WRID: 5, NumSGE: 1, SGE: [verbs.MaxSGE]verbs.SGE{r.remote.sge(0, 4000)}}})
			must(t, err)
			waits, release := r.device.Hold()
			posted := make(chan error, 1)
			go func() {
				_, err := r.qa.PostSend([]verbs.SendWR{r.remote.request(op, 0, r.local.sge(0, 4000))})
				posted <- err
			}()
			<-waits
			if len(posted) > 0 {
				t.Fatal("the post returns before the copy")
			}
			release()
			must(t, <-posted)
			if wc := await(t, r.cqa, 1)[0]; wc.Status != verbs.StatusSuccess {
				t.Fatalf("completion = %v, want success", wc.Status)
			}
			to := r.remote
			if op == verbs.OpRDMARead {
				to = r.local
			}
			if !bytes.Equal(to.read(t, 0, 4000), want[:4000]) {
				t.Error("the bytes are not in place")
			}
			if op == verbs.OpSend || op == verbs.OpRDMAWriteWithImm {
				if wc := await(t, r.cqb, 1)[0]; wc.Status != verbs.StatusSuccess || wc.WRID != 5 || wc.ByteLen != 4000 {
					t.Errorf("receive = %+v, want success of 4000 bytes", wc)
				}
			}
		})
	}
}

// TestDeviceReceiveAfterCopy: the peer's CQ stays empty while a copy is in progress.
func TestDeviceReceiveAfterCopy(t *testing.T) {
	r := newDeviceRig(t, "memory", verbs.RC)
	for range 100 { // until the gate is open, so that the peer can poll during a post
		r.post(r.hostRemote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 8)))
		await(t, r.cqa, 1)
	}
	_, err := r.qb.PostRecv([]verbs.RecvWR{{}})
	must(t, err)
	waits, release := r.device.Hold()
	posted := make(chan error, 1)
	go func() {
		_, err := r.qa.PostSend([]verbs.SendWR{r.remote.request(verbs.OpRDMAWriteWithImm, 0, r.local.sge(0, 100))})
		posted <- err
	}()
	<-waits
	var wcs [1]verbs.WC
	for _, cq := range []verbs.CQ{r.cqa, r.cqb} {
		if n, err := cq.Poll(wcs[:]); n != 0 || err != nil {
			t.Errorf("Poll during the copy = %d, %v, want nothing", n, err)
		}
	}
	release()
	must(t, <-posted)
	await(t, r.cqa, 1)
	await(t, r.cqb, 1)
}

func (r *deviceRig) post(wrs ...verbs.SendWR) {
	r.tb.Helper()
	if n, err := r.qa.PostSend(wrs); n != len(wrs) || err != nil {
		r.tb.Fatalf("PostSend = %d, %v, want %d and nil", n, err, len(wrs))
	}
}

// TestDeviceBatch: the device receives the requests of a chain in one call, and host memory between
// them keeps its position in the order.
func TestDeviceBatch(t *testing.T) {
	r := newDeviceRig(t, "memory", verbs.RC)
	want := r.local.fill(t, 1)
	chain := func(n int) []verbs.SendWR {
		wrs := make([]verbs.SendWR, n)
		for i := range wrs {
			wrs[i] = r.remote.request(verbs.OpRDMAWrite, i*64, r.local.sge(i*64, 64))
			wrs[i].Flags = 0
		}
		wrs[n-1].Flags = verbs.SendSignaled
		return wrs
	}
	before := r.device.Count()
	r.post(chain(1000)...)
	await(t, r.cqa, 1)
	after := r.device.Count()
	if calls, copies := after.Calls-before.Calls, after.Copies-before.Copies; calls != 1 || copies != 1000 {
		t.Errorf("1000 WRITEs are %d copies in %d calls, want 1000 in 1", copies, calls)
	}
	if !bytes.Equal(r.remote.read(t, 0, 64000), want[:64000]) {
		t.Error("the bytes are not in place")
	}
	// Through the peer's host memory and back to the device: each request depends on the preceding one.
	r.post(
		r.hostRemote.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 500)),
		r.hostRemote.request(verbs.OpRDMARead, 0, r.hostLocal.sge(0, 500)),
		r.remote.request(verbs.OpRDMAWrite, 2000, r.hostLocal.sge(0, 250), r.local.sge(250, 250)),
		r.hostRemote.request(verbs.OpRDMAWrite, 1000, r.hostLocal.sge(0, 500)),
	)
	await(t, r.cqa, 4)
	if !bytes.Equal(r.remote.read(t, 2000, 500), want[:500]) || !bytes.Equal(r.hostRemote.read(t, 1000, 500), want[:500]) {
		t.Error("requests overtake each other")
	}
	// A mixed request replaces bytes that the device has not copied before.
	r.hostLocal.fill(t, 2)
	r.post(r.hostRemote.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 500)), r.hostRemote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 250), r.local.sge(250, 250)))
	await(t, r.cqa, 2)
	if !bytes.Equal(r.hostRemote.read(t, 0, 250), r.hostLocal.read(t, 0, 250)) {
		t.Error("a copy of the host overtakes one of the device")
	}
	if n := testing.AllocsPerRun(20, func() {
		r.post(chain(8)...)
		await(t, r.cqa, 1)
	}); n > 4 { // chain and await allocate
		t.Errorf("a chain allocates %v times, want none in the NIC", n)
	}
}

// TestTwoDevices: requests on the memory of two devices keep their order, and each device copies its own
// data.
func TestTwoDevices(t *testing.T) {
	r := newDeviceRig(t, "memory", verbs.RC)
	other := r.register(r.pa, new(verbstest.MemoryDevice).Alloc) // at the same address
	r.local.fill(t, 1)
	want := other.fill(t, 2)
	r.post(r.hostRemote.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 500)), r.hostRemote.request(verbs.OpRDMAWrite, 100, other.sge(100, 500)),
		r.hostRemote.request(verbs.OpRDMAWrite, 300, r.local.sge(300, 100)))
	await(t, r.cqa, 3)
	mine := r.bytesFor(1)
	for _, p := range []struct {
		from, to int
		want     []byte
	}{{0, 100, mine}, {100, 300, want}, {300, 400, mine}, {400, 600, want}} {
		if !bytes.Equal(r.hostRemote.read(t, p.from, p.to-p.from), p.want[p.from:p.to]) {
			t.Errorf("bytes %d to %d are wrong", p.from, p.to)
		}
	}
}

// deviceSteps returns requests of every kind, some with both kinds of memory.
func (r *deviceRig) deviceSteps() []verbs.SendWR {
	return []verbs.SendWR{
		r.remote.request(verbs.OpRDMAWrite, 0, r.local.sge(0, 100), r.local.sge(100, 2900)),
		r.hostRemote.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 100), r.local.sge(100, 2000)),
		r.remote.request(verbs.OpRDMAWriteWithImm, 4000, r.hostLocal.sge(0, 3000)),
		r.remote.request(verbs.OpSend, 0, r.local.sge(0, 700), r.hostLocal.sge(700, 700)),
		r.remote.request(verbs.OpRDMARead, 8000, r.hostLocal.sge(8000, 1000), r.local.sge(9000, 1000)),
		r.hostRemote.request(verbs.OpRDMARead, 12000, r.local.sge(12000, 3000)),
	}
}

// TestDeviceCopyFails: whichever copy fails, its request fails and later ones are flushed. Earlier successful
// requests have their bytes in place.
func TestDeviceCopyFails(t *testing.T) {
	for link := range deviceLinks {
		t.Run(link, func(t *testing.T) {
			for k := 0; ; k++ {
				if deviceCopyFails(t, link, k) {
					break
				}
			}
		})
	}
}

// deviceCopyFails fails the device after k copies, and reports whether all requests succeed.
func deviceCopyFails(t *testing.T, link string, k int) (all bool) {
	t.Helper()
	r := newDeviceRig(t, link, verbs.RC)
	_, err := r.qb.PostRecv([]verbs.RecvWR{
		{NumSGE: 1, SGE: [verbs.MaxSGE]verbs.SGE{r.remote.sge(20000, 1400)}},
		{NumSGE: 2, SGE: [verbs.MaxSGE]verbs.SGE{r.hostRemote.sge(20000, 300), r.remote.sge(20300, 1100)}},
	})
	must(t, err)
	r.local.fill(t, 1)
	r.hostLocal.fill(t, 1)
	r.remote.fill(t, 2)
	r.hostRemote.fill(t, 2)
	steps := r.deviceSteps()
	for i := range steps {
		steps[i].WRID = uint64(i)
	}
	r.device.FailAfter(k)
	r.post(steps...)
	wcs := await(t, r.cqa, len(steps))
	r.device.FailAfter(-1)
	good := 0
	for good < len(wcs) && wcs[good].Status == verbs.StatusSuccess {
		good++
	}
	for i, wc := range wcs {
		failed := wc.Status == verbs.StatusGeneralErr || wc.Status == verbs.StatusRemOpErr
		if wc.WRID != uint64(i) || (i == good && !failed) || (i > good && wc.Status != verbs.StatusWRFlushErr) {
			t.Fatalf("after %d copies: completion %d = %v of %d; want failure of request %d and flushes behind it", k, i, wc.Status, wc.WRID, good)
		}
	}
	mine, theirs := r.bytesFor(1), r.bytesFor(2)
	for i, got := range []func() bool{
		func() bool { return bytes.Equal(r.remote.read(t, 0, 3000), mine[:3000]) },
		func() bool { return bytes.Equal(r.hostRemote.read(t, 0, 2100), mine[:2100]) },
		func() bool { return bytes.Equal(r.remote.read(t, 4000, 3000), mine[:3000]) },
		func() bool {
			return bytes.Equal(r.hostRemote.read(t, 20000, 300), mine[:300]) && bytes.Equal(r.remote.read(t, 20300, 1100), mine[300:1400])
		},
		func() bool {
			return bytes.Equal(r.hostLocal.read(t, 8000, 1000), theirs[8000:9000]) && bytes.Equal(r.local.read(t, 9000, 1000), theirs[9000:10000])
		},
		func() bool { return bytes.Equal(r.local.read(t, 12000, 3000), theirs[12000:15000]) },
	}[:good] {
		if !got() {
			t.Fatalf("after %d copies: request %d succeeded, and its bytes are not in place", k, i)
		}
	}
	return good == len(steps)
}

// bytesFor returns the pattern that fill writes.
func (r *deviceRig) bytesFor(seed int) []byte {
	b := make([]byte, deviceRigSize)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

// TestDeviceRefused: operations that device memory does not support fail with a descriptive error.
func TestDeviceRefused(t *testing.T) {
	for link := range deviceLinks {
		t.Run(link, func(t *testing.T) {
			r := newDeviceRig(t, link, verbs.RC)
			inline := r.hostRemote.request(verbs.OpRDMAWrite, 0, r.local.sge(1, 8))
			inline.Flags |= verbs.SendInline
			if n, err := r.qa.PostSend([]verbs.SendWR{inline}); n != 0 || !errors.Is(err, verbs.ErrInvalid) || !bytes.Contains([]byte(err.Error()), []byte("fake:0; send them without INLINE")) {
				t.Errorf("PostSend of INLINE bytes on a device = %d, %v, want ErrInvalid", n, err)
			}
			inline = r.remote.request(verbs.OpRDMAWrite, 100, r.hostLocal.sge(0, 8))
			inline.Flags |= verbs.SendInline
			want := r.hostLocal.fill(t, 3)
			r.post(inline) // the target of INLINE bytes may be on a device
			if wc := await(t, r.cqa, 1)[0]; wc.Status != verbs.StatusSuccess || !bytes.Equal(r.remote.read(t, 100, 8), want[:8]) {
				t.Errorf("INLINE to a device = %v, want success", wc.Status)
			}
			r.post(r.hostRemote.request(verbs.OpAtomicFetchAndAdd, 8, r.local.sge(8, 8)))
			if wc := await(t, r.cqa, 1)[0]; wc.Status != verbs.StatusSuccess {
				t.Errorf("an atomic with its result on a device = %v, want success", wc.Status)
			}
			r.post(r.remote.request(verbs.OpAtomicFetchAndAdd, 0x600, r.hostLocal.sge(0, 8)))
			if wc := await(t, r.cqa, 1)[0]; wc.Status != verbs.StatusRemAccessErr {
				t.Errorf("an atomic on a device = %v, want REM_ACCESS_ERR", wc.Status)
			}
		})
	}
}

// TestDeviceUnregistered: closing the region invalidates its keys, and the memory can be freed.
func TestDeviceUnregistered(t *testing.T) {
	r := newDeviceRig(t, "memory", verbs.RC)
	m, err := r.device.Alloc(100)
	must(t, err)
	mr, err := r.pb.RegisterMemory(m, verbs.AccessAll)
	must(t, err)
	if err := m.Free(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Free of registered memory = %v, want ErrBusy", err)
	}
	wr := devicePiece{m, mr}.request(verbs.OpRDMAWrite, 0, r.hostLocal.sge(0, 100))
	r.post(wr)
	if wc := await(t, r.cqa, 1)[0]; wc.Status != verbs.StatusSuccess {
		t.Fatalf("completion = %v, want success", wc.Status)
	}
	must(t, mr.Close())
	must(t, m.Free())
	r.post(wr)
	if wc := await(t, r.cqa, 1)[0]; wc.Status != verbs.StatusRemAccessErr {
		t.Errorf("completion = %v, want REM_ACCESS_ERR", wc.Status)
	}
}
