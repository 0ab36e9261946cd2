package ibverbx_test

import (
	"fmt"
	"log"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Write 16 MiB over two rails and sixteen lanes, and tell the receiver.
func Example() {
	links := []softnic.Link{softnic.NewMemoryLink(nil), softnic.NewMemoryLink(nil)}
	a, b := newPeer(links), newPeer(links)
	defer a.close()
	defer b.close()
	check(a.qp.Connect(value(b.qp.Card())))
	check(b.qp.Connect(value(a.qp.Card())))

	copy(a.region.Bytes(), "hello over sixteen lanes")
	value(b.qp.PostRecv([]ibverbx.RecvWR{{WRID: 7}})) // no bytes: it waits for a notification
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

// peer is one side of the example.
type peer struct {
	nics   []*softnic.NIC
	rails  *ibverbx.Rails
	mem    *verbs.Memory
	region *ibverbx.Region
	cq     *ibverbx.VirtualCQ
	qp     *ibverbx.VirtualQP
}

func newPeer(links []softnic.Link) *peer {
	p := &peer{}
	var rails []ibverbx.RailConfig
	for _, link := range links {
		nic := value(softnic.New(link, softnic.Config{}))
		p.nics = append(p.nics, nic)
		rails = append(rails, ibverbx.RailConfig{Context: value(nic.Open())})
	}
	p.rails = value(ibverbx.NewRails(rails...))
	p.mem = value(verbs.AllocMemory(16<<20, nil))
	p.region = value(p.rails.Register(p.mem, verbs.AccessAll))
	p.cq = value(p.rails.NewCQ(ibverbx.CQConfig{}))
	p.qp = value(p.cq.NewQP(ibverbx.Config{Lanes: 16}))
	return p
}

// poll returns the next completion.
func (p *peer) poll() ibverbx.WC {
	for {
		var wcs [1]ibverbx.WC
		if n := value(p.cq.Poll(wcs[:])); n == 1 {
			return wcs[0]
		}
	}
}

func (p *peer) close() {
	check(p.qp.Close())
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
