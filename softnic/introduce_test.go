//go:build linux

package softnic_test

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"ibverbx/internal/shm"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// strangers returns two sides on UDPLinks that do not discover neighbors, connected with Seals if sealed is set.
func strangers(t *testing.T, sealed bool) (sides [2]*shmSide, seals [2]verbs.Seal) {
	t.Helper()
	for i := range sides {
		s := newShmSide(t, nearLink(t, false), 64<<10)
		sides[i] = s
		if !sealed {
			continue
		}
		seal, err := softnic.NewSeal(bytes.Repeat([]byte{7}, 32), i == 0)
		must(t, err)
		seals[i] = seal
		must(t, s.qp.Close())
		s.qp, err = s.pd.CreateQP(verbs.QPConfig{
			Type: verbs.RC, MaxSendWR: shmDepth, MaxRecvWR: shmDepth, MaxSendSGE: 4, SendCQ: s.cq, RecvCQ: s.cq,
			Path: verbs.PathConfig{AckTimeout: 12, Seal: seal},
		})
		must(t, err)
	}
	return sides, seals
}

// acquaint introduces the NICs of two sides to each other.
func acquaint(t *testing.T, sides [2]*shmSide, seals [2]verbs.Seal) (n [2]*softnic.Neighbor) {
	t.Helper()
	a, b := socketPair(t)
	made := make(chan error)
	go func() {
		var err error
		n[1], err = softnic.Introduce(sides[1].ctx, b, seals[1])
		made <- err
	}()
	var err error
	n[0], err = softnic.Introduce(sides[0].ctx, a, seals[0])
	must(t, err)
	must(t, <-made)
	return n
}

// TestIntroduce: introduced NICs execute WRITEs and READs directly, sealed or not, whether their QPs are connected
// before or after. When one side closes its Neighbor, packets carry the requests.
func TestIntroduce(t *testing.T) {
	noRaces(t)
	for name, sealed := range map[string]bool{"plain": false, "sealed": true} {
		for when, early := range map[string]bool{"before": true, "after": false} {
			t.Run(name+"/"+when, func(t *testing.T) {
				sides, seals := strangers(t, sealed)
				x, y := sides[0], sides[1]
				var n [2]*softnic.Neighbor
				if early {
					n = acquaint(t, sides, seals)
				}
				x.connect(y.card())
				y.connect(x.card())
				if !early {
					n = acquaint(t, sides, seals)
				}
				x.awaitPublished()
				y.awaitPublished()
				was := x.nic.Stats().Direct
				copy(x.mem.Bytes(), "to the neighbor")
				x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 64<<10)})
				x.await(1)
				if now := x.nic.Stats().Direct; now != was+1 || !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
					t.Errorf("a WRITE: %d were direct and the peer has %q, want 1 and the bytes", now-was, y.mem.Bytes()[:15])
				}
				must(t, n[0].Close())
				<-n[1].Done()
				must(t, n[1].Close())
				was = x.nic.Stats().Direct
				copy(x.mem.Bytes(), "as packets again")
				x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 64<<10)})
				x.await(1)
				if now := x.nic.Stats().Direct; now != was || !bytes.Equal(x.mem.Bytes(), y.mem.Bytes()) {
					t.Errorf("after Close: %d were direct and the peer has %q, want none and the bytes", now-was, y.mem.Bytes()[:15])
				}
				for i, s := range sides {
					must(t, s.qp.Close())
					if seal, ok := seals[i].(*softnic.Seal); ok {
						must(t, seal.Close())
					}
				}
			})
		}
	}
}

// TestIntroduceOther: QPs with another Seal, or without one, and QPs connected to another NIC cannot use an introduced neighbor.
func TestIntroduceOther(t *testing.T) {
	noRaces(t)
	sides, _ := strangers(t, true)
	x, y := sides[0], sides[1]
	x.connect(y.card())
	y.connect(x.card())
	var others [2]verbs.Seal
	for i := range others {
		seal, err := softnic.NewSeal(bytes.Repeat([]byte{7}, 32), i == 0)
		must(t, err)
		others[i] = seal
	}
	acquaint(t, sides, others)
	acquaint(t, sides, [2]verbs.Seal{})
	for range 100 {
		x.send([]verbs.SendWR{x.request(verbs.OpRDMAWrite, 64<<10)})
		x.await(1)
	}
	if n := x.nic.Stats().Direct; n != 0 {
		t.Errorf("%d requests of a QP with another Seal were direct", n)
	}
}

// TestIntroduceWrongKeys: a neighbor can access a region only if it presents its key and has a QP in
// its protection domain. After too many wrong keys, all its requests are refused.
func TestIntroduceWrongKeys(t *testing.T) {
	noRaces(t)
	sides, seals := strangers(t, true)
	x, y := sides[0], sides[1]
	x.connect(y.card())
	y.connect(x.card())
	other, err := y.ctx.AllocPD()
	must(t, err)
	_, hidden := memoryWith(t, other, 4096, &verbs.MemoryConfig{Shared: true})
	a, b := socketPair(t)
	made := make(chan *softnic.Neighbor)
	go func() {
		n, err := softnic.Introduce(y.ctx, b, seals[1])
		if err != nil {
			t.Error(err)
		}
		made <- n
	}()
	c, err := shm.NewConn(a)
	must(t, err)
	segment, fd, err := shm.Create(shm.NoRingSize, true)
	must(t, err)
	e, err := x.qp.Endpoint()
	must(t, err)
	shm.Segment(segment).Sign(1, netip.AddrPortFrom(e.GID.Addr(), e.LID))
	if !c.Send(shm.Message{Kind: shm.Hello, Addr: 1, Size: shm.NoRingSize}, fd) {
		t.Fatal("the hello was not sent")
	}
	shm.Close(fd)
	n := <-made
	must(t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	receive := func() (shm.Message, error) {
		m, fd, err := c.Receive()
		shm.Close(fd)
		return m, err
	}
	if m, err := receive(); err != nil || m.Kind != shm.Hello {
		t.Fatalf("the first message is %+v, %v, want a hello", m, err)
	}
	want := func(key uint32) { c.Send(shm.Message{Kind: shm.RequestRegion, Key: key}, -1) }
	want(hidden.RKey())
	want(y.mr.RKey())
	if m, err := receive(); err != nil || m.Kind != shm.ShareFile || m.Key != y.mr.RKey() {
		t.Fatalf("the first response is %+v, %v, want the region of the QP's protection domain", m, err)
	}
	for range 16 {
		want(hidden.RKey())
	}
	if m, err := receive(); err == nil {
		t.Errorf("after wrong keys: got %+v, want the end of the connection", m)
	}
	<-n.Done()
}
