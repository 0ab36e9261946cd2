package softnic_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Two NICs in one process: one writes into the other's memory.
func Example() {
	link := softnic.NewMemoryLink(nil)
	a, b := newHost(link), newHost(link)
	defer a.close()
	defer b.close()
	connectHosts(a, b)

	copy(a.mem.Bytes(), "hello, remote memory")
	wr := verbs.SendWR{WRID: 42, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	wr.SetSGE(verbs.SGE{Addr: a.mr.Addr(), Length: 20, LKey: a.mr.LKey()})
	if _, err := a.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		log.Fatal(err)
	}
	done := make([]verbs.WC, 1)
	if _, err := verbs.Wait(context.Background(), a.cq, a.waker, done); err != nil {
		log.Fatal(err)
	}
	fmt.Println(done[0].WRID, done[0].Status)
	fmt.Printf("%s\n", b.mem.Bytes()[:20])
	// Output:
	// 42 success
	// hello, remote memory
}

// The NIC that owns the memory rejects a wrong key, and the completion reports the cause.
func Example_wrongKey() {
	link := softnic.NewMemoryLink(nil)
	a, b := newHost(link), newHost(link)
	defer a.close()
	defer b.close()
	connectHosts(a, b)

	wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: b.mr.Addr(), RKey: ^b.mr.RKey()}
	wr.SetSGE(verbs.SGE{Addr: a.mr.Addr(), Length: 8, LKey: a.mr.LKey()})
	if _, err := a.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		log.Fatal(err)
	}
	done := make([]verbs.WC, 1)
	if _, err := verbs.Wait(context.Background(), a.cq, a.waker, done); err != nil {
		log.Fatal(err)
	}
	fmt.Println(done[0].Status)
	fmt.Println(a.qp.State(), b.qp.State())
	// Output:
	// remote access error
	// ERR ERR
}

// A network that loses a tenth of its packets, in virtual time: the write arrives intact, after some retries.
func ExampleFaultLink() {
	var now int64
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{
		Seed:       1,
		Impairment: softnic.Impairment{Loss: 0.1, Delay: 5 * time.Microsecond},
		Now:        func() int64 { return now },
	})
	if err != nil {
		log.Fatal(err)
	}
	a, b := newHost(link), newHost(link)
	defer a.close()
	defer b.close()
	connectHosts(a, b)

	wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	wr.SetSGE(verbs.SGE{Addr: a.mr.Addr(), Length: 1 << 20, LKey: a.mr.LKey()})
	if _, err := a.qp.PostSend([]verbs.SendWR{wr}); err != nil {
		log.Fatal(err)
	}
	for next, pending := link.Step(); pending; next, pending = link.Step() {
		now = next
	}
	done := make([]verbs.WC, 1)
	n, err := a.cq.Poll(done)
	fmt.Println(n, done[0].Status, err)
	fmt.Println("packets lost:", link.Stats(a.nic, b.nic).Lost > 0)
	// Output:
	// 1 success <nil>
	// packets lost: true
}

// host is one side of the examples: a NIC, a megabyte of registered memory, a CQ that
// can be waited for, and a QP.
type host struct {
	nic   *softnic.NIC
	mem   *verbs.Memory
	mr    verbs.MR
	waker *verbs.Waker
	cq    verbs.CQ
	qp    verbs.QP
}

func newHost(link softnic.Link) *host {
	h := &host{waker: verbs.NewWaker()}
	h.nic = must1(softnic.New(link, softnic.Config{}))
	ctx := must1(h.nic.Open())
	pd := must1(ctx.AllocPD())
	h.mem = must1(verbs.AllocMemory(1<<20, nil))
	h.mr = must1(pd.RegisterMemory(h.mem, verbs.AccessAll))
	h.cq = must1(ctx.CreateCQ(verbs.CQConfig{Depth: 16, Waker: h.waker}))
	h.qp = must1(pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: h.cq, RecvCQ: h.cq, MaxSendWR: 16, MaxRecvWR: 16}))
	return h
}

func connectHosts(a, b *host) {
	ea, eb := must1(a.qp.Endpoint()), must1(b.qp.Endpoint())
	if err := a.qp.Connect(eb); err != nil {
		log.Fatal(err)
	}
	if err := b.qp.Connect(ea); err != nil {
		log.Fatal(err)
	}
}

// close closes the NIC and all objects created on it.
func (h *host) close() {
	if err := h.nic.Close(); err != nil {
		log.Fatal(err)
	}
	if err := h.mem.Free(); err != nil {
		log.Fatal(err)
	}
}

func must1[T any](v T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return v
}
