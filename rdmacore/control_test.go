//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// event waits for one event of the context.
func (r *rig) event(t *testing.T, w *verbs.Waker) verbs.Event {
	t.Helper()
	var evs [2]verbs.Event
	for {
		n, err := r.ctx.Events(evs[:])
		if n == 1 && err == nil {
			return evs[0]
		}
		if n > 1 || err != nil {
			t.Fatalf("Events = %d, %v with %v, want one event", n, err, evs[:n])
		}
		ok(t, w.Wait(t.Context()), "Wait for an event")
	}
}

// Asynchronous events name their object and wake the Waker.
func TestEvents(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	w := verbs.NewWaker()
	ok(t, r.ctx.NotifyEvents(w), "NotifyEvents")
	srq, err := r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16, Limit: 3})
	ok(t, err, "CreateSRQ")
	if ev := r.event(t, w); ev.Type != verbs.EventSRQLimitReached || ev.SRQ != srq || ev.QP != nil || ev.CQ != nil {
		t.Errorf("event = %+v, want the limit of the SRQ", ev)
	}
	ok(t, srq.SetLimit(2), "SetLimit")
	if ev := r.event(t, w); ev.SRQ != srq {
		t.Errorf("event = %+v, want the limit of the SRQ again", ev)
	}
}

// An overrun wakes the goroutine that waits for completions: the CQ gets no more of them.
func TestOverrunWakes(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	w := verbs.NewWaker()
	ok(t, r.ctx.NotifyEvents(w), "NotifyEvents")
	r.state.cq.overrun = 1
	ok(t, r.cq.Arm(false), "Arm")
	if ev := r.event(t, w); ev.Type != verbs.EventCQErr || ev.CQ != r.cq {
		t.Errorf("event = %+v, want the error of the CQ", ev)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	ok(t, r.waker.Wait(done), "Wait for the Waker of the CQ")
	_, err := r.cq.Poll(make([]verbs.WC, 1))
	wants(t, "Poll", err, verbs.ErrCQOverrun)
}

// Closing an object removes its events, whether consumed or not, and Close does not wait for their
// acknowledgement.
func TestEventsOfClosed(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	for range 200 {
		srq, err := r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16, Limit: 3})
		ok(t, err, "CreateSRQ")
		ok(t, srq.SetLimit(1), "SetLimit")
		ok(t, srq.Close(), "Close of an SRQ with events")
	}
	w := verbs.NewWaker()
	ok(t, r.ctx.NotifyEvents(w), "NotifyEvents")
	last, err := r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16, Limit: 3})
	ok(t, err, "CreateSRQ")
	if ev := r.event(t, w); ev.SRQ != last {
		t.Errorf("event = %+v, want that of the open SRQ", ev)
	}
}

// A device whose events can no longer be read counts as failed.
func TestEventsFail(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	w := verbs.NewWaker()
	ok(t, r.ctx.NotifyEvents(w), "NotifyEvents")
	r.state.failWith(verbAsync, syscall.EIO)
	srq, err := r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16, Limit: 3}) // its event wakes the reader
	ok(t, err, "CreateSRQ")
	if ev := r.event(t, w); ev.Type != verbs.EventDeviceFatal {
		t.Errorf("event = %v, want %v", ev, verbs.EventDeviceFatal)
	}
	_, err = r.ctx.Events(make([]verbs.Event, 1))
	wants(t, "Events after a failure", err, verbs.ErrDeviceFatal)
	ok(t, srq.Close(), "Close of the SRQ")
}

// A device that the kernel has removed can be closed, with or without its objects first, and the memory
// can be freed, although libibverbs refuses to destroy the objects.
func TestCloseRemovedDevice(t *testing.T) {
	lib, s := loadStandin(t, rdmacore.Config{})
	openFirst(t, lib) // Go's poller has a descriptor, too
	for _, byHand := range []bool{true, false} {
		before := measure(t).fds
		r := newRigOn(t, lib, s, verbs.RC)
		w := verbs.NewWaker()
		ok(t, r.ctx.NotifyEvents(w), "NotifyEvents")
		s.failWith(verbAsync, syscall.EIO)
		srq, err := r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16, Limit: 3}) // its event wakes the reader
		ok(t, err, "CreateSRQ")
		if ev := r.event(t, w); ev.Type != verbs.EventDeviceFatal {
			t.Fatalf("event = %v, want %v", ev, verbs.EventDeviceFatal)
		}
		verbsThatDestroy := []int{verbDestroyQP, verbDereg, verbDestroyCQ, verbDeallocPD}
		for _, verb := range verbsThatDestroy {
			s.failWith(verb, syscall.EIO)
		}
		if byHand {
			for _, c := range []interface{ Close() error }{r.qp, srq, r.mr, r.cq, r.pd} {
				ok(t, c.Close(), fmt.Sprintf("Close of a %T", c))
			}
			ok(t, r.mem.Free(), "Free before the Close of the context")
		}
		ok(t, r.ctx.Close(), "Close of the context")
		ok(t, r.mem.Free(), "Free")
		_, err = r.qp.PostSend([]verbs.SendWR{{}})
		wants(t, "PostSend after Close", err, verbs.ErrClosed)
		if after := measure(t).fds; after > before {
			t.Errorf("%d descriptors are open after the Close, want %d", after, before)
		}
		s.live = [16]int64{liveContext: 1} // libibverbs leaks the other objects; the first context is open
		for _, verb := range append(verbsThatDestroy, verbAsync) {
			s.failWith(verb, 0)
		}
	}
}

// After Close of a region, the NIC does not access the memory, even if another goroutine is closing the region too.
func TestCloseRegionTwice(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	r.state.linger = 1 << 24
	first := make(chan error)
	go func() { first <- r.mr.Close() }()
	for atomic.LoadUint64(&r.state.deregs) == 0 {
		runtime.Gosched()
	}
	ok(t, r.mr.Close(), "Close during the other Close")
	if n := atomic.LoadInt64(&r.state.live[liveMR]); n != 0 {
		t.Errorf("%d regions are registered after Close, want 0", n)
	}
	ok(t, r.mem.Free(), "Free")
	ok(t, <-first, "the first Close")
	r.state.linger = 0
}

// A driver's failure returns an error with its errno, and leaks nothing.
func TestControlErrors(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	ep, err := r.qp.Endpoint()
	ok(t, err, "Endpoint")
	for _, tt := range []struct {
		name  string
		verb  int
		errno syscall.Errno
		want  error
		word  string
		try   func() error
	}{
		{"AllocPD", verbPD, syscall.ENOMEM, verbs.ErrLimit, "ENOMEM", func() error { _, err := r.ctx.AllocPD(); return err }},
		{"CreateCQ", verbCQ, syscall.ENOMEM, verbs.ErrLimit, "create CQ", func() error { _, err := r.ctx.CreateCQ(verbs.CQConfig{Depth: 1}); return err }},
		{"CreateSRQ", verbSRQ, syscall.EOPNOTSUPP, verbs.ErrNotSupported, "create SRQ", func() error { _, err := r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 1}); return err }},
		{"CreateQP", verbQP, syscall.EINVAL, verbs.ErrInvalid, "create QP", func() error {
			_, err := r.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: r.cq, RecvCQ: r.cq})
			return err
		}},
		{"CreateAH", verbAH, syscall.EHOSTUNREACH, syscall.EHOSTUNREACH, "10.0.0.1", func() error { _, err := r.pd.CreateAH(verbs.AHAttr{DGID: ep.GID}); return err }},
		{"RegisterMemory", verbMR, syscall.ENOMEM, verbs.ErrLimit, "RLIMIT_MEMLOCK", func() error { _, err := r.pd.RegisterMemory(r.mem, verbs.AccessAll); return err }},
		{"RegisterMemory", verbMR, syscall.EPERM, syscall.EPERM, "ulimit -l unlimited", func() error { _, err := r.pd.RegisterMemory(r.mem, verbs.AccessAll); return err }},
		{"RegisterMemory", verbMR, syscall.EFAULT, syscall.EFAULT, "bad address", func() error { _, err := r.pd.RegisterMemory(r.mem, verbs.AccessAll); return err }},
		{"Modify", verbModifyQP, syscall.EINVAL, verbs.ErrInvalid, "from RTS to ERR", func() error {
			return r.qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.AttrState)
		}},
		{"Query", verbQueryQP, syscall.EIO, verbs.ErrDeviceFatal, "query QP", func() error { _, err := r.qp.Query(); return err }},
		{"QueryGID", verbGID, syscall.EACCES, syscall.EACCES, "query GID", func() error { _, err := r.ctx.QueryGID(1, 1); return err }},
		{"Close of a QP", verbDestroyQP, syscall.EBUSY, verbs.ErrBusy, "close QP", r.qp.Close},
		{"Close of an MR", verbDereg, syscall.EBUSY, verbs.ErrBusy, "deregister memory", r.mr.Close},
		{"Close of a context", verbDestroyQP, syscall.EIO, verbs.ErrDeviceFatal, "close device", r.ctx.Close},
	} {
		live := r.state.live
		r.state.failWith(tt.verb, tt.errno)
		wants(t, tt.name, tt.try(), tt.want, tt.word)
		r.state.failWith(tt.verb, 0)
		if tt.name != "Close of a context" && r.state.live != live {
			t.Errorf("objects alive after a refused %s = %v, want %v", tt.name, r.state.live, live)
		}
		switch tt.name {
		case "Close of a QP": // it is unchanged
			r.post(t, r.qp, 1, 1)
		case "Close of an MR": // the NIC may still access the memory
			wants(t, "Free of memory whose region could not be closed", r.mem.Free(), verbs.ErrBusy)
		}
	}
}

// A context of an older library works without the newer operations.
func TestOldContext(t *testing.T) {
	lib, s := loadStandin(t, rdmacore.Config{})
	s.device.oldContext, s.device.noUC = 1, 1
	devices, err := lib.Devices()
	ok(t, err, "Devices")
	ctx, err := devices[0].Open()
	ok(t, err, "Open")
	defer func() { ok(t, ctx.Close(), "Close") }()
	attr, err := ctx.QueryDevice()
	ok(t, err, "QueryDevice")
	const want = verbs.CapRC | verbs.CapUD | verbs.CapSRQ | verbs.CapSRQOnUD | verbs.CapFlushOnPost
	if attr.Capabilities != want || attr.Provider != "rdmacore" || attr.Link != "Ethernet" || attr.MaxSGE != 4 || attr.Ports != 2 {
		t.Errorf("QueryDevice = %+v, want capabilities %#x and the stand-in's limits", attr, want)
	}
	port, err := ctx.QueryPort(2)
	ok(t, err, "QueryPort")
	if port.SpeedMbps != 100000 || port.ActiveMTU != verbs.MTU1024 || s.extendedCalls != 0 {
		t.Errorf("QueryPort = %+v with %d extended calls, want 100 Gb/s, 1024 and none", port, s.extendedCalls)
	}
	row, err := ctx.QueryGID(2, 1)
	if err != nil || row.GID.String() != "::ffff:10.0.0.2" || row.Index != 1 {
		t.Errorf("QueryGID(2, 1) = %+v, %v, want ::ffff:10.0.0.2", row, err)
	}
	_, err = ctx.QueryGID(2, 0)
	wants(t, "QueryGID of an empty row", err, verbs.ErrNotFound)
	pd, err := ctx.AllocPD()
	ok(t, err, "AllocPD")
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 4})
	ok(t, err, "CreateCQ")
	_, err = pd.CreateQP(verbs.QPConfig{Type: verbs.UC, SendCQ: cq, RecvCQ: cq})
	wants(t, "CreateQP of a type that the device lacks", err, verbs.ErrNotSupported, "UC")
	qp, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Port: 2})
	ok(t, err, "CreateQP")
	ep, err := qp.Endpoint()
	if err != nil || ep.GID != row.GID || ep.MTU != verbs.MTU1024 {
		t.Errorf("Endpoint = %+v, %v, want the GID of port 2 and MTU 1024", ep, err)
	}
}

// Connect passes the driver values that both sides support.
func TestConnectAttributes(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	qp := r.newQP(t, verbs.QPConfig{Type: verbs.RC})
	ep, err := qp.Endpoint()
	ok(t, err, "Endpoint")
	remote := ep
	remote.QPN, remote.PSN, remote.MTU, remote.MaxDestRdAtomic = 0x123456, 0x654321, verbs.MTU512, 3
	ok(t, qp.Connect(remote), "Connect")
	got, err := qp.Query()
	ok(t, err, "Query")
	if got.State != verbs.StateRTS || got.PathMTU != verbs.MTU512 || got.DestQPN != 0x123456 || got.RQPSN != 0x654321 ||
		got.SQPSN != ep.PSN || got.MaxRdAtomic != 3 || got.AH.DGID != remote.GID {
		t.Errorf("Query after Connect = %+v, want the smaller MTU, the peer's numbers and depth 3", got)
	}
	// The last Modify set RTS: max_rd_atomic is a byte of struct ibv_qp_attr.
	if mask := verbs.QPAttrMask(r.state.modifyMask); mask&verbs.AttrSQPSN == 0 || mask&verbs.AttrState == 0 || r.state.modify[0] != uint32(verbs.StateRTS) || r.state.modify[6] != ep.PSN {
		t.Errorf("the driver got mask %v, state %d, PSN %#x, want RTS and %#x", mask, r.state.modify[0], r.state.modify[6], ep.PSN)
	}
}

// TestFlowLabel: the driver gets the flow labels of QP paths and address handles. More than 20 bits
// are refused.
func TestFlowLabel(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	qp := r.newQP(t, verbs.QPConfig{Type: verbs.UC})
	ep, err := qp.Endpoint()
	ok(t, err, "Endpoint")
	attr := verbs.ConnectAttr(ep, ep, 1, 1)
	ok(t, verbs.InitQP(qp, 1), "InitQP")
	const mask = verbs.AttrState | verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN
	attr.State, attr.AH.FlowLabel = verbs.StateRTR, 1<<20
	wants(t, "Modify with a label of 21 bits", qp.Modify(attr, mask), verbs.ErrInvalid, "flow label")
	attr.AH.FlowLabel = 0xabcde
	ok(t, qp.Modify(attr, mask), "Modify to RTR")
	// ah_attr.grh.flow_label is at offset 72 of struct ibv_qp_attr.
	if got := r.state.modify[72/4]; got != 0xabcde || r.state.modifyMask&uint64(verbs.AttrAV) == 0 {
		t.Errorf("the driver got flow label %#x with mask %v, want 0xabcde", got, verbs.QPAttrMask(r.state.modifyMask))
	}
	attr.AH.FlowLabel = 0x54321
	ah, err := r.pd.CreateAH(attr.AH)
	ok(t, err, "CreateAH")
	if r.state.flowLabel != 0x54321 {
		t.Errorf("the driver got an address handle with flow label %#x, want 0x54321", r.state.flowLabel)
	}
	ok(t, ah.Close(), "Close")
	attr.AH.FlowLabel = 1 << 20
	_, err = r.pd.CreateAH(attr.AH)
	wants(t, "CreateAH with a label of 21 bits", err, verbs.ErrInvalid, "flow label")
}

// Concurrent posting, polling, arming and closing is safe, as checked by the race detector.
func TestConcurrentClose(t *testing.T) {
	r := newRig(t, rdmacore.Config{}, verbs.RC)
	for range 50 {
		qp := r.newQP(t, verbs.QPConfig{Type: verbs.RC})
		ok(t, connect(qp), "Connect")
		done := make(chan error, 3)
		go func() {
			for {
				if _, err := qp.PostSend(make([]verbs.SendWR, 4)); err != nil {
					done <- err
					return
				}
			}
		}()
		go func() {
			for {
				if _, err := qp.PostRecv(make([]verbs.RecvWR, 4)); err != nil {
					done <- err
					return
				}
			}
		}()
		go func() {
			wcs := make([]verbs.WC, 8)
			for {
				_, err := r.cq.Poll(wcs)
				if _, closed := qp.Query(); err != nil || closed != nil {
					done <- errors.Join(err, closed)
					return
				}
			}
		}()
		for range 10 {
			runtime.Gosched()
		}
		ok(t, qp.Close(), "Close")
		for range 3 {
			if err := <-done; !errors.Is(err, verbs.ErrClosed) {
				t.Fatalf("a call on a closed QP = %v, want ErrClosed", err)
			}
		}
	}
}
