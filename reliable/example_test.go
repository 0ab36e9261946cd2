package reliable_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Write 1 MiB over a link that loses 2 % of all packets. The QP uses 16 UC paths; to the program it looks
// like any RC QP.
func Example() {
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{
		Seed: 1, Impairment: softnic.Impairment{Loss: 0.02, Delay: 5 * time.Microsecond},
	})
	check(err)
	a, b := newEnd(link), newEnd(link)
	defer a.close()
	defer b.close()
	check(a.qp.Connect(value(b.qp.Endpoint())))
	check(b.qp.Connect(value(a.qp.Endpoint())))

	copy(a.mem.Bytes(), "every byte arrives")
	wr := verbs.SendWR{WRID: 7, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	wr.SetSGE(verbs.SGE{Addr: a.mr.Addr(), Length: 1 << 20, LKey: a.mr.LKey()})
	value(a.qp.PostSend([]verbs.SendWR{wr}))
	done := make([]verbs.WC, 1)
	for n := 0; n == 0; {
		n = value(verbs.Wait(context.Background(), a.cq, a.waker, done))
	}
	check(done[0].Err())
	fmt.Printf("request %d: %s\n", done[0].WRID, b.mem.Bytes()[:18])
	// Output:
	// request 7: every byte arrives
}

// end is a wrapped NIC with one QP and 1 MiB of memory.
type end struct {
	nic   *softnic.NIC
	ctx   verbs.Context
	waker *verbs.Waker
	cq    verbs.CQ
	qp    verbs.QP
	mem   *verbs.Memory
	mr    verbs.MR
}

func newEnd(link softnic.Link) *end {
	e := &end{nic: value(softnic.New(link, softnic.Config{})), waker: verbs.NewWaker()}
	e.ctx = value(reliable.Wrap(value(e.nic.Open()), reliable.Config{}))
	pd := value(e.ctx.AllocPD())
	e.mem = value(verbs.AllocMemory(1<<20, nil))
	e.mr = value(pd.RegisterMemory(e.mem, verbs.AccessAll))
	e.cq = value(e.ctx.CreateCQ(verbs.CQConfig{Depth: 16, Waker: e.waker}))
	e.qp = value(pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: e.cq, RecvCQ: e.cq, MaxSendWR: 16}))
	return e
}

// close closes the context with all its objects, then the NIC.
func (e *end) close() {
	check(e.ctx.Close())
	check(e.nic.Close())
	check(e.mem.Free())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func value[T any](v T, err error) T {
	check(err)
	return v
}
