package ibverbx_test

import (
	"encoding/json"
	"expvar"
	"fmt"
	"log"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Write 16 MiB over two rails and sixteen lanes, and notify the receiver.
func Example() {
	a, b := newPair(ibverbx.Config{Lanes: 16}, ibverbx.Config{Lanes: 16})
	defer a.close()
	defer b.close()

	copy(a.region.Bytes(), "hello over sixteen lanes")
	value(b.qp.PostRecv([]ibverbx.RecvWR{{WRID: 7}})) // a receive without bytes matches a notification
	wr := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWriteWithImm, Imm: 42, Flags: verbs.SendSignaled, Remote: b.region.Remote()}
	wr.SetSGE(a.region.SGE(0, 16<<20))
	value(a.qp.PostSend([]ibverbx.SendWR{wr}))

	sent, received := a.poll(), b.poll()
	fmt.Println(sent.WRID, sent.Status)
	fmt.Println(received.WRID, received.Imm, received.ByteLen)
	fmt.Printf("%s\n", b.region.Bytes()[:24])
	// Output:
	// 1 success
	// 7 42 16777216
	// hello over sixteen lanes
}

// Lose a NIC while a request is in flight. With a control channel the request still completes: the other NIC
// carries the rest.
func ExampleConfig_control() {
	toB, toA := ibverbx.ControlPair() // between hosts, package peer provides one
	a, b := newPair(ibverbx.Config{Control: toB}, ibverbx.Config{Control: toA})
	defer a.close()
	defer b.close()

	wr := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: b.region.Remote()}
	wr.SetSGE(a.region.SGE(0, 16<<20))
	a.nics[1].SetPort(false) // pull the cable
	value(a.qp.PostSend([]ibverbx.SendWR{wr}))
	for {
		_, _, err := b.cq.PollOne() // both ends poll, even the one that only exports its memory
		check(err)
		wc, ok, err := a.cq.PollOne()
		check(err)
		if ok {
			fmt.Println(wc.WRID, wc.Status)
			break
		}
	}
	events := make([]ibverbx.Event, 16)
	for _, e := range events[:a.cq.Events(events)] {
		if e.Kind == ibverbx.EventRailDown {
			fmt.Println(e.Kind, e.Rail)
		}
	}
	// Output:
	// 1 success
	// rail down 1
}

// Poll the physical queues in your own event loop, and pass their completions to the virtual CQ.
func ExampleVirtualCQ_ProcessCompletions() {
	a, b := newPair(ibverbx.Config{}, ibverbx.Config{})
	defer a.close()
	defer b.close()

	wr := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: b.region.Remote()}
	wr.SetSGE(a.region.SGE(0, 16<<20))
	value(a.qp.PostSend([]ibverbx.SendWR{wr}))
	physical, virtual := make([]verbs.WC, 64), make([]ibverbx.WC, 64)
	for rail := 0; ; rail = 1 - rail {
		n := value(value(a.cq.CQ(rail)).Poll(physical))
		n = value(a.cq.ProcessCompletions(rail, physical[:n], virtual))
		for i := range virtual[:n] {
			fmt.Println(virtual[i].WRID, virtual[i].Status)
		}
		if n > 0 {
			break
		}
	}
	// Output: 1 success
}

// Read the peer's memory, then add to a counter in it. The fence orders the second request after the first;
// without it, requests on different lanes are unordered.
func ExampleVirtualQP_PostSend() {
	a, b := newPair(ibverbx.Config{}, ibverbx.Config{})
	defer a.close()
	defer b.close()

	copy(b.region.Bytes()[8:], "from the peer")
	read := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: b.region.Remote(), RemoteOffset: 8}
	read.SetSGE(a.region.SGE(8, 1<<20))
	add := ibverbx.SendWR{
		WRID: 2, Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled | verbs.SendFence,
		Remote: b.region.Remote(), CompareAdd: 5,
	}
	add.SetSGE(a.region.SGE(0, 8))
	value(a.qp.PostSend([]ibverbx.SendWR{read, add}))
	for range 2 {
		wc := a.poll()
		check(wc.Err())
		fmt.Println(wc.WRID, wc.Status)
	}
	fmt.Printf("%s, counter %d\n", a.region.Bytes()[8:21], b.region.Bytes()[0])
	// Output:
	// 1 success
	// 2 success
	// from the peer, counter 5
}

// Serve 500 clients with 64 receives. Without a pool, each client's VirtualQP would need its own.
func ExampleVirtualCQ_PostRecv() {
	const clients, receives, size = 500, 64, 4096
	links := []softnic.Link{softnic.NewMemoryLink(nil)}
	server, peers := newHost(links, ibverbx.CQConfig{SharedData: receives}), newHost(links, ibverbx.CQConfig{})
	defer server.close()
	defer peers.close()
	post := func(ids ...uint64) {
		wrs := make([]ibverbx.RecvWR, len(ids))
		for i, id := range ids {
			wrs[i].WRID = id
			wrs[i].SetSGE(server.region.SGE(id*size, size))
		}
		value(server.cq.PostRecv(wrs))
	}
	for id := range uint64(receives) {
		post(id)
	}

	names, greeting := map[*ibverbx.VirtualQP]int{}, []byte("hello")
	copy(peers.region.Bytes(), greeting)
	for i := range clients {
		client, end := value(peers.cq.NewQP(ibverbx.Config{Lanes: 1})), value(server.cq.NewQP(ibverbx.Config{Lanes: 1}))
		check(client.Connect(value(end.Card())))
		check(end.Connect(value(client.Card())))
		names[end] = i
		wr := ibverbx.SendWR{Opcode: verbs.OpSend}
		wr.SetSGE(peers.region.SGE(0, uint32(len(greeting))))
		value(client.PostSend([]ibverbx.SendWR{wr}))
	}
	heard := map[int]bool{}
	for len(heard) < clients {
		wc := server.poll()
		check(wc.Err())
		if text := server.region.Bytes()[wc.WRID*size:][:wc.ByteLen]; string(text) == "hello" {
			heard[names[wc.QP]] = true
		}
		post(wc.WRID)
	}
	fmt.Printf("%d clients, %d receives\n", len(heard), receives)
	// Output:
	// 500 clients, 64 receives
}

// Show the traffic of each NIC.
func ExampleVirtualQP_Stats() {
	a, b := newPair(ibverbx.Config{Lanes: 4}, ibverbx.Config{Lanes: 4})
	defer a.close()
	defer b.close()

	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: b.region.Remote()}
	wr.SetSGE(a.region.SGE(0, 4<<20))
	value(a.qp.PostSend([]ibverbx.SendWR{wr}))
	a.poll()
	for i, rail := range a.qp.Stats().Rails {
		fmt.Printf("rail %d: %d bytes in %d fragments\n", i, rail.Bytes, rail.Fragments)
	}
	// Output:
	// rail 0: 2097152 bytes in 2 fragments
	// rail 1: 2097152 bytes in 2 fragments
}

// Publish the counters with expvar from the standard library. A program passes the variable to expvar.Publish
// to serve it at /debug/vars.
func ExampleVirtualQP_Stats_expvar() {
	a, b := newPair(ibverbx.Config{Lanes: 2}, ibverbx.Config{Lanes: 2})
	defer a.close()
	defer b.close()

	stats := expvar.Func(func() any { return a.qp.Stats() })
	var got struct {
		Lanes []struct{ Role, State string }
	}
	check(json.Unmarshal([]byte(stats.String()), &got))
	fmt.Println(got.Lanes)
	// Output:
	// [{data up} {data up} {message up}]
}

// newPair returns two connected sides, each with a NIC on each of two links.
func newPair(ca, cb ibverbx.Config) (a, b *side) {
	links := []softnic.Link{softnic.NewMemoryLink(nil), softnic.NewMemoryLink(nil)}
	a, b = newSide(links, ca), newSide(links, cb)
	check(a.qp.Connect(value(b.qp.Card())))
	check(b.qp.Connect(value(a.qp.Card())))
	return a, b
}

// side is one side of an example.
type side struct {
	nics   []*softnic.NIC
	rails  *ibverbx.Rails
	mem    *verbs.Memory
	region *ibverbx.Region
	cq     *ibverbx.VirtualCQ
	qp     *ibverbx.VirtualQP
}

func newSide(links []softnic.Link, cfg ibverbx.Config) *side {
	p := newHost(links, ibverbx.CQConfig{})
	p.qp = value(p.cq.NewQP(cfg))
	return p
}

// newHost returns a side without a VirtualQP.
func newHost(links []softnic.Link, cfg ibverbx.CQConfig) *side {
	p := &side{}
	var rails []ibverbx.RailConfig
	for _, link := range links {
		nic := value(softnic.New(link, softnic.Config{}))
		p.nics = append(p.nics, nic)
		rails = append(rails, ibverbx.RailConfig{Context: value(nic.Open())})
	}
	p.rails = value(ibverbx.NewRails(rails...))
	p.mem = value(verbs.AllocMemory(16<<20, nil))
	p.region = value(p.rails.Register(p.mem, verbs.AccessAll))
	p.cq = value(p.rails.NewCQ(cfg))
	return p
}

// poll returns the next completion.
func (p *side) poll() ibverbx.WC {
	for {
		var wcs [1]ibverbx.WC
		if n := value(p.cq.Poll(wcs[:])); n == 1 {
			return wcs[0]
		}
	}
}

func (p *side) close() {
	for _, nic := range p.nics {
		check(nic.Close())
	}
	check(p.mem.Free())
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
