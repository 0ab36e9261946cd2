package interop_test

import (
	"os"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// end is one QP, with a CQ and some memory.
type end struct {
	t   *testing.T
	ctx verbs.Context
	pd  verbs.PD
	cq  verbs.CQ
	qp  verbs.QP
	mr  verbs.MR
	mem *verbs.Memory
	at  verbs.Endpoint
	row verbs.GIDEntry
}

// memory holds an end's bytes; recv posts its receives in the second half.
const memory = 512 << 10

// newEnd creates a QP with the address gid, closed at the end of the test.
func newEnd(t *testing.T, ctx verbs.Context, typ verbs.QPType, row verbs.GIDEntry) *end {
	t.Helper()
	e := &end{t: t, ctx: ctx, row: row}
	var err error
	e.mem, err = verbs.AllocMemory(memory, nil)
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, e.mem.Free()) })
	e.pd, err = e.ctx.AllocPD()
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, e.pd.Close()) })
	e.cq, err = e.ctx.CreateCQ(verbs.CQConfig{Depth: 256})
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, e.cq.Close()) })
	e.mr, err = e.pd.RegisterMemory(e.mem, verbs.AccessAll)
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, e.mr.Close()) })
	e.qp, err = e.pd.CreateQP(verbs.QPConfig{
		Type: typ, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 64, MaxRecvWR: 64, GID: row.GID,
	})
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, e.qp.Close()) })
	e.at, err = e.qp.Endpoint()
	enginetest.Must(t, err)
	return e
}

// rowOf returns the GID table row with an address.
func rowOf(t *testing.T, ctx verbs.Context, gid verbs.GID) verbs.GIDEntry {
	t.Helper()
	for i := range 16 {
		if row, err := ctx.QueryGID(1, i); err == nil && row.GID == gid && row.Type == verbs.GIDTypeRoCEv2 {
			return row
		}
	}
	t.Fatalf("no row of the GID table has %s, want one", gid)
	return verbs.GIDEntry{}
}

// openDevice opens a kernel device for the duration of the test.
func openDevice(t *testing.T, name string) verbs.Context {
	t.Helper()
	wantMachine(t)
	lib, err := rdmacore.Load(rdmacore.Config{})
	enginetest.Must(t, err)
	devices, err := lib.Devices()
	enginetest.Must(t, err)
	for _, d := range devices {
		if d.Name() == name {
			ctx, err := d.Open()
			enginetest.Must(t, err)
			t.Cleanup(func() { enginetest.Must(t, ctx.Close()) })
			return ctx
		}
	}
	t.Fatalf("%d devices and none is %s, want the test machine", len(devices), name)
	return nil
}

// wantMachine skips a test outside the machine of test/rxe.
func wantMachine(t *testing.T) {
	t.Helper()
	if os.Getenv("IBVERBX_TEST_RXE") != "1" {
		t.Skip("needs the kernel's rxe devices: run test/rxe/all")
	}
}

// connect connects two ends with the given MTU; change may modify the attributes. Retries last
// longer than the default of 7 timeouts of 67 ms, because the emulated machine may stall for half a
// second.
func connect(t *testing.T, a, b *end, mtu verbs.MTU, change ...func(*verbs.QPAttr)) {
	t.Helper()
	for _, ends := range [][2]*end{{a, b}, {b, a}} {
		local, remote := ends[0], ends[1].at
		remote.MTU = mtu
		attr := verbs.ConnectAttr(local.at, remote, 1, local.row.Index)
		attr.Timeout, attr.RetryCount = 17, 7
		for _, f := range change {
			f(&attr)
		}
		enginetest.Must(t, verbs.ConnectWith(local.qp, attr))
	}
}

// send posts a request of n bytes at an offset of the memory.
func (e *end) send(wr verbs.SendWR, off, n int) {
	e.t.Helper()
	wr.Flags |= verbs.SendSignaled
	if n > 0 {
		wr.SetSGE(verbs.SGE{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()})
	}
	_, err := e.qp.PostSend([]verbs.SendWR{wr})
	enginetest.Must(e.t, err)
}

// recv posts a receive of n bytes in the second half of the memory.
func (e *end) recv(n int) { e.recvAt(memory/2, n) }

// recvAt posts a receive of n bytes at an offset of the memory.
func (e *end) recvAt(off, n int) {
	e.t.Helper()
	var wr verbs.RecvWR
	if n > 0 {
		wr.SetSGE(verbs.SGE{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()})
	}
	_, err := e.qp.PostRecv([]verbs.RecvWR{wr})
	enginetest.Must(e.t, err)
}

// patience is the timeout for a completion. The machine is emulated.
const patience = 60 * time.Second

// wait polls n completions and checks the status of each.
func (e *end) wait(n int, status verbs.Status) []verbs.WC {
	e.t.Helper()
	wcs := make([]verbs.WC, n)
	got := 0
	for deadline := time.Now().Add(patience); got < n; {
		k, err := e.cq.Poll(wcs[got:])
		enginetest.Must(e.t, err)
		for _, wc := range wcs[got : got+k] {
			if wc.Status != status {
				e.t.Fatalf("a completion with %v, want %v", wc.Status, status)
			}
		}
		if got += k; k > 0 {
			continue
		}
		if time.Now().After(deadline) {
			e.t.Fatalf("%d completions of %d after %v, want all", got, n, patience)
		}
		time.Sleep(time.Millisecond)
	}
	return wcs
}
