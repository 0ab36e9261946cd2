package softnic_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// writeWR returns a signaled write of n bytes from src to dst.
func writeWR(src, dst verbs.MR, n uint32) verbs.SendWR {
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: dst.Addr(), RKey: dst.RKey()}
	wr.SetSGE(verbs.SGE{Addr: src.Addr(), Length: n, LKey: src.LKey()})
	return wr
}

// TestSameQPNumber: QP numbers are unique on a device, not between devices, and programs that route
// completions must not rely on more. In a simulation they are the same on all devices.
func TestSameQPNumber(t *testing.T) {
	for _, seeded := range []bool{false, true} {
		var nums [2]uint32
		for i := range nums {
			cfg := softnic.Config{}
			if seeded {
				cfg.Seed = uint64(i) + 1
			}
			nic, err := softnic.New(softnic.NewMemoryLink(nil), cfg)
			must(t, err)
			t.Cleanup(func() { must(t, nic.Close()) })
			ctx, err := nic.Open()
			must(t, err)
			pd, err := ctx.AllocPD()
			must(t, err)
			cq := newCQ(t, ctx, 4)
			q, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
			must(t, err)
			nums[i] = q.Num()
		}
		if (nums[0] == nums[1]) != seeded { // two random numbers are equal once in 16 million
			t.Errorf("with seeds %v: the first QPs of two devices are %#x and %#x", seeded, nums[0], nums[1])
		}
	}
}

// TestQPNumberNotReusedAtOnce: a late packet for a dead QP must not find a new one.
func TestQPNumberNotReusedAtOnce(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	cq := newCQ(t, r.ca, 4)
	seen := make(map[uint32]int)
	for i := range 5000 {
		q, err := r.pa.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
		must(t, err)
		if before, ok := seen[q.Num()]; ok && i-before <= 1024 {
			t.Fatalf("QP number %#x was used again after %d others", q.Num(), i-before)
		}
		if q.Num() == 0 || q.Num() >= 1<<24 {
			t.Fatalf("QP number %#x is not a 24-bit number above 0", q.Num())
		}
		seen[q.Num()] = i
		must(t, q.Close())
	}
}

// TestFirstPSNsAreRandom: initial PSNs are not sequential, and differ between two NICs.
func TestFirstPSNsAreRandom(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	seen, near := map[uint32]bool{}, 0
	for _, side := range []struct {
		pd  verbs.PD
		ctx verbs.Context
	}{{r.pa, r.ca}, {r.pb, r.cb}} {
		cq := newCQ(t, side.ctx, 4)
		last := uint32(0)
		for range 100 {
			q, err := side.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq})
			must(t, err)
			e, err := q.Endpoint()
			must(t, err)
			if step := (e.PSN - last) & (1<<24 - 1); step < 1<<12 {
				near++ // 1 of 4,096 by chance
			}
			last, seen[e.PSN] = e.PSN, true
		}
	}
	if len(seen) < 190 || near > 10 {
		t.Errorf("%d different PSNs of 200, %d of them shortly after the one before, want nearly all, and few", len(seen), near)
	}
}

// TestKeysNotGuessable: neither by counting from a known key, nor by using an old one.
func TestKeysNotGuessable(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	m, err := verbs.AllocMemory(4096, nil)
	must(t, err)
	defer m.Free() //nolint:errcheck // the NIC is closed later
	seen := make(map[uint32]int)
	var last uint32
	steps := make(map[uint32]int)
	for i := range 5000 {
		mr, err := r.pa.RegisterMemory(m, verbs.AccessAll)
		must(t, err)
		if before, ok := seen[mr.RKey()]; ok && i-before < 1000 {
			t.Fatalf("key %#x came back after %d registrations", mr.RKey(), i-before)
		}
		seen[mr.RKey()] = i
		steps[mr.RKey()-last]++
		last = mr.RKey()
		must(t, mr.Close())
	}
	for step, n := range steps {
		if n > 10 {
			t.Errorf("%d of 5000 keys are the one before plus %#x: they can be guessed by counting", n, step)
		}
	}
}

// TestAckCoalescing: a chain is acknowledged by one packet.
func TestAckCoalescing(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	cqA := newCQ(t, r.ca, 64)
	qa, _ := r.pair(verbs.RC, cqA, newCQ(t, r.cb, 4), 64)
	wrs := make([]verbs.SendWR, 64)
	for i := range wrs {
		wrs[i] = writeWR(src, dst, 64)
	}
	if n, err := qa.PostSend(wrs); n != 64 || err != nil {
		t.Fatal(n, err)
	}
	if got := len(poll(t, cqA)); got != 64 {
		t.Fatalf("%d completions, want 64", got)
	}
	if got := r.b.Stats().PacketsSent; got != 1 {
		t.Errorf("the responder sent %d packets for a chain of 64 writes, want 1 acknowledgement", got)
	}
}

// TestAddressTaken: two NICs on one link cannot share an address.
func TestAddressTaken(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	cfg := softnic.Config{Addr: netip.MustParseAddr("10.1.2.3")}
	a, err := softnic.New(link, cfg)
	must(t, err)
	defer a.Close()
	if _, err := softnic.New(link, cfg); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("second NIC at the same address: err = %v, want %v", err, verbs.ErrInvalid)
	}
	must(t, a.Close())
	b, err := softnic.New(link, cfg)
	if err != nil {
		t.Fatalf("address of a closed NIC: %v", err)
	}
	must(t, b.Close())
}

// TestVirtualTime: a link with its own clock does not start goroutines and never acts before the time is due.
// goleak in TestMain checks the first half.
func TestVirtualTime(t *testing.T) {
	var now int64
	link := softnic.NewMemoryLink(&softnic.MemoryConfig{Now: func() int64 { return now }})
	r := newRig(t, link)
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	cqA, cqB := newCQ(t, r.ca, 4), newCQ(t, r.cb, 4)
	qa, qb := r.pair(verbs.RC, cqA, cqB, 4)
	wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	wr.SetSGE(verbs.SGE{Addr: src.Addr(), Length: 64, LKey: src.LKey()})
	if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	var recv verbs.RecvWR
	recv.SetSGE(verbs.SGE{Addr: dst.Addr(), Length: 64, LKey: dst.LKey()})
	postRecv(t, qb, []verbs.RecvWR{recv})
	due := int64(verbs.RNRTimer(verbs.DefaultMinRNRTimer))
	if next, pending := link.Step(); !pending || next != due {
		t.Fatalf("Step = %d, %v; want the RNR timer at %d", next, pending, due)
	}
	now = due - 1
	link.Step()
	if got := poll(t, cqA); len(got) != 0 {
		t.Fatalf("completed %v before the RNR timer", got)
	}
	now = due
	if _, pending := link.Step(); pending {
		t.Error("something is pending after the send has completed")
	}
	if got := poll(t, cqA); len(got) != 1 || got[0].Status != verbs.StatusSuccess {
		t.Errorf("completions = %+v, want one success", got)
	}
}

// TestUnattended: the helper goroutine retries after RNR even without polling.
func TestUnattended(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	w := verbs.NewWaker()
	cqB, err := r.cb.CreateCQ(verbs.CQConfig{Depth: 4, Waker: w})
	must(t, err)
	qa, qb := r.pair(verbs.RC, newCQ(t, r.ca, 4), cqB, 4)
	wr := verbs.SendWR{Opcode: verbs.OpSend}
	wr.SetSGE(verbs.SGE{Addr: src.Addr(), Length: 64, LKey: src.LKey()})
	if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	must(t, cqB.Arm(false))
	var recv verbs.RecvWR
	recv.SetSGE(verbs.SGE{Addr: dst.Addr(), Length: 64, LKey: dst.LKey()})
	postRecv(t, qb, []verbs.RecvWR{recv})
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := w.Wait(ctx); err != nil {
		t.Fatalf("the message did not come: %v", err)
	}
}

// TestPortDown: packets are lost while the port is down, contexts get an event, and RC resumes when the port
// is up again.
func TestPortDown(t *testing.T) {
	w := newWorld(t, softnic.FaultConfig{})
	r := newRig(t, w.link)
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	cqA := newCQ(t, r.ca, 4)
	qa, _ := r.pair(verbs.RC, cqA, newCQ(t, r.cb, 4), 4)
	r.a.SetPort(false)
	if p, err := r.ca.QueryPort(1); err != nil || p.State != verbs.PortDown {
		t.Errorf("port state = %v, %v, want %v", p.State, err, verbs.PortDown)
	}
	if _, err := qa.PostSend([]verbs.SendWR{writeWR(src, dst, 64)}); err != nil {
		t.Fatal(err)
	}
	w.now += int64(3 * verbs.AckTimeout(verbs.DefaultTimeout))
	w.link.Step()
	r.a.SetPort(true)
	w.settle(t)
	if got := poll(t, cqA); len(got) != 1 || got[0].Status != verbs.StatusSuccess {
		t.Errorf("completions = %+v, want one success", got)
	}
	events := make([]verbs.Event, 4)
	n, err := r.ca.Events(events)
	if err != nil || n != 2 || events[0].Type != verbs.EventPortErr || events[1].Type != verbs.EventPortActive {
		t.Errorf("events = %v, %v; want port error, port active", events[:n], err)
	}
}

// TestDeviceFatal: a failed device flushes its QPs, raises an event, and refuses to create new objects.
func TestDeviceFatal(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	cqA := newCQ(t, r.ca, 4)
	qa, _ := r.pair(verbs.RC, cqA, newCQ(t, r.cb, 4), 4)
	postRecv(t, qa, make([]verbs.RecvWR, 2))
	r.a.Fail()
	if got := poll(t, cqA); len(got) != 2 || got[0].Status != verbs.StatusWRFlushErr {
		t.Errorf("completions = %+v, want two flushes", got)
	}
	events := make([]verbs.Event, 4)
	if n, err := r.ca.Events(events); err != nil || n != 1 || events[0].Type != verbs.EventDeviceFatal {
		t.Errorf("events = %v, %v; want %v", events[:n], err, verbs.EventDeviceFatal)
	}
	if _, err := r.ca.Events(events); !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("Events after a failure: err = %v, want %v", err, verbs.ErrDeviceFatal)
	}
	if _, err := r.ca.AllocPD(); !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("AllocPD after a failure: err = %v, want %v", err, verbs.ErrDeviceFatal)
	}
	if _, err := r.a.Open(); !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("Open after a failure: err = %v, want %v", err, verbs.ErrDeviceFatal)
	}
}

// TestClosedPeer: packets to a closed NIC are lost, and the sender notices.
func TestClosedPeer(t *testing.T) {
	var now int64
	link := softnic.NewMemoryLink(&softnic.MemoryConfig{Now: func() int64 { return now }})
	r := newRig(t, link)
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	cqA := newCQ(t, r.ca, 4)
	qa, _ := r.pair(verbs.RC, cqA, newCQ(t, r.cb, 4), 4)
	wr := writeWR(src, dst, 64)
	must(t, r.b.Close())
	if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		next, pending := link.Step()
		if !pending {
			break
		}
		now = next
	}
	if got := poll(t, cqA); len(got) != 1 || got[0].Status != verbs.StatusRetryExcErr {
		t.Errorf("completions = %+v, want %v", got, verbs.StatusRetryExcErr)
	}
}

// TestManyQPs: thousands of QPs on one device, all in use.
func TestManyQPs(t *testing.T) {
	const pairs = 4096
	r := newRig(t, softnic.NewMemoryLink(nil))
	src, srcMR := memory(t, r.pa, 8*pairs)
	dst, dstMR := memory(t, r.pb, 8*pairs)
	cqA, cqB := newCQ(t, r.ca, pairs), newCQ(t, r.cb, 4)
	for i := range pairs {
		qa, _ := r.pair(verbs.RC, cqA, cqB, 1)
		wr := writeWR(srcMR, dstMR, 8)
		wr.WRID = uint64(i)
		wr.RemoteAddr += uint64(8 * i)
		wr.SGE[0].Addr += uint64(8 * (pairs - 1 - i))
		if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
			t.Fatal(err)
		}
	}
	wcs := poll(t, cqA)
	if len(wcs) != pairs {
		t.Fatalf("%d completions, want %d", len(wcs), pairs)
	}
	for i := range pairs {
		if wcs[i].Status != verbs.StatusSuccess || wcs[i].WRID != uint64(i) {
			t.Fatalf("completion %d = %+v", i, wcs[i])
		}
		want := src.Bytes()[8*(pairs-1-i)]
		if got := dst.Bytes()[8*i]; got != want {
			t.Fatalf("byte %d = %#x, want %#x", 8*i, got, want)
		}
	}
}
