package interop_test

import (
	"os"
	"testing"
	"time"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("got the error %v, want none", err)
	}
}

// end is one QP on a device of the kernel, with a CQ and some memory.
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

const memory = 8192

// newEnd makes a QP on a device; row is the row of the GID table that it uses.
func newEnd(t *testing.T, device string, typ verbs.QPType, row int) *end {
	t.Helper()
	e := &end{t: t, ctx: openDevice(t, device)}
	var err error
	e.row, err = e.ctx.QueryGID(1, row)
	must(t, err)
	e.pd, err = e.ctx.AllocPD()
	must(t, err)
	e.cq, err = e.ctx.CreateCQ(verbs.CQConfig{Depth: 256})
	must(t, err)
	e.mem, err = verbs.AllocMemory(memory, nil)
	must(t, err)
	t.Cleanup(func() { must(t, e.mem.Free()) })
	t.Cleanup(func() { must(t, e.ctx.Close()) })
	e.mr, err = e.pd.RegisterMemory(e.mem, verbs.AccessAll)
	must(t, err)
	e.qp, err = e.pd.CreateQP(verbs.QPConfig{
		Type: typ, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 64, MaxRecvWR: 64, GID: e.row.GID,
	})
	must(t, err)
	e.at, err = e.qp.Endpoint()
	must(t, err)
	return e
}

// openDevice opens a device of the kernel; whoever calls it closes the context.
func openDevice(t *testing.T, name string) verbs.Context {
	t.Helper()
	if os.Getenv("IBVERBX_RXE") != "1" {
		t.Skip("needs the kernel's rxe devices: run test/rxe/all")
	}
	lib, err := rdmacore.Load(rdmacore.Config{})
	must(t, err)
	devices, err := lib.Devices()
	must(t, err)
	for _, d := range devices {
		if d.Name() == name {
			ctx, err := d.Open()
			must(t, err)
			return ctx
		}
	}
	t.Fatalf("%d devices and none is %s, want the test machine", len(devices), name)
	return nil
}

// connect connects two ends with the given MTU.
func connect(t *testing.T, a, b *end, mtu verbs.MTU) {
	t.Helper()
	for _, ends := range [][2]*end{{a, b}, {b, a}} {
		local, remote := ends[0], ends[1].at
		remote.MTU = mtu
		must(t, verbs.ConnectWith(local.qp, verbs.ConnectAttr(local.at, remote, 1, local.row.Index)))
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
	must(e.t, err)
}

// recv posts a receive of n bytes at the second half of the memory.
func (e *end) recv(n int) {
	e.t.Helper()
	var wr verbs.RecvWR
	wr.SetSGE(verbs.SGE{Addr: e.mr.Addr() + memory/2, Length: uint32(n), LKey: e.mr.LKey()})
	_, err := e.qp.PostRecv([]verbs.RecvWR{wr})
	must(e.t, err)
}

// patience is how long a test waits for a completion. The machine is emulated.
const patience = 60 * time.Second

// wait takes so many completions and wants that status of each.
func (e *end) wait(n int, status verbs.Status) {
	e.t.Helper()
	wcs := make([]verbs.WC, n)
	for deadline := time.Now().Add(patience); n > 0; {
		k, err := e.cq.Poll(wcs[:n])
		must(e.t, err)
		for _, wc := range wcs[:k] {
			if wc.Status != status {
				e.t.Fatalf("a completion with %v, want %v", wc.Status, status)
			}
		}
		if n -= k; n > 0 && time.Now().After(deadline) {
			e.t.Fatalf("%d completions are missing after %v, want all", n, patience)
		}
		time.Sleep(time.Millisecond)
	}
}
