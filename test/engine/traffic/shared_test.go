package traffic_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/nullnic"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// sharedHost is a host whose VirtualQPs share one SRQ per rail.
func sharedHost(tb testing.TB, links []softnic.Link, depth int, cfgs ...ibverbx.Config) (*enginetest.Host, []*ibverbx.VirtualQP) {
	tb.Helper()
	return sharedHostOver(tb, links, depth, func(inner verbs.Context) verbs.Context { return inner }, cfgs...)
}

// sharedHostOver is sharedHost with a layer between the NICs and the engine.
func sharedHostOver(tb testing.TB, links []softnic.Link, depth int, over func(verbs.Context) verbs.Context, cfgs ...ibverbx.Config) (*enginetest.Host, []*ibverbx.VirtualQP) {
	tb.Helper()
	h := enginetest.NewRailsOver(tb, links, func(_ int, inner verbs.Context) verbs.Context { return over(inner) })
	h.NewCQ(ibverbx.CQConfig{SharedReceives: depth})
	var qps []*ibverbx.VirtualQP
	for _, cfg := range cfgs {
		qps = append(qps, h.NewQP(cfg))
	}
	return h, qps
}

// TestSharedReceives: two VirtualQPs on a host share a rail's receives, far fewer than their lanes. Many more
// messages arrive, complete and in order.
func TestSharedReceives(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		for _, rails := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/rails=%d", scheme, rails), func(t *testing.T) {
				exchangeShared(t, scheme, enginetest.MemoryLinks(rails), func(inner verbs.Context) verbs.Context { return inner })
			})
		}
	}
}

// TestSharedReceivesOnWrappedRails does the same over package reliable, with lanes that share paths and
// lanes that do not, on links that lose packets.
func TestSharedReceivesOnWrappedRails(t *testing.T) {
	for i, scheme := range enginetest.Schemes {
		for _, tt := range []struct {
			carrier verbs.QPType
			flows   int
		}{{verbs.UC, 1}, {verbs.UC, 8}, {verbs.UD, 1}, {verbs.UD, 8}} {
			t.Run(fmt.Sprintf("%s/%v/flows=%d", scheme, tt.carrier, tt.flows), func(t *testing.T) {
				link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: uint64(i), Impairment: softnic.Impairment{Loss: 0.01}})
				enginetest.Must(t, err)
				exchangeShared(t, scheme, []softnic.Link{link}, func(inner verbs.Context) verbs.Context {
					ctx, err := reliable.Wrap(inner, reliable.Config{Carrier: tt.carrier, Paths: 2, Flows: tt.flows, ChunkBytes: 4096})
					enginetest.Must(t, err)
					t.Cleanup(func() { enginetest.Must(t, ctx.Close()) })
					return ctx
				})
			})
		}
	}
}

// exchangeShared sends many messages over two VirtualQPs whose rails have eight receives each.
func exchangeShared(t *testing.T, scheme ibverbx.Scheme, links []softnic.Link, over func(verbs.Context) verbs.Context) {
	t.Helper()
	cfg := ibverbx.Config{Lanes: 16, Scheme: scheme, FragmentSize: 16, RecvDepth: 512}
	a, qa := sharedHostOver(t, links, 8, over, cfg, cfg)
	b, qb := sharedHostOver(t, links, 8, over, cfg, cfg)
	for i := range qa {
		enginetest.Connect(t, qa[i], qb[i])
	}
	const messages = 300
	for i, q := range qb {
		wrs := make([]ibverbx.RecvWR, messages)
		for k := range wrs {
			wrs[k].WRID = uint64(i*messages + k)
		}
		if n, err := q.PostRecv(wrs); n != messages {
			t.Fatalf("PostRecv = %d, %v", n, err)
		}
	}
	wcs := sendMany(t, a, b, qa, messages)
	wcs = append(wcs, b.Wait(len(qb)*messages-len(wcs))...)
	next := map[*ibverbx.VirtualQP]uint64{qb[0]: 0, qb[1]: messages}
	for _, wc := range wcs {
		if wc.Err() != nil || wc.WRID != next[wc.QP] {
			t.Fatalf("completion %d, %v; want %d", wc.WRID, wc.Err(), next[wc.QP])
		}
		if wc.Flags&ibverbx.WCHasImm != 0 && uint64(wc.Imm) != wc.WRID%messages {
			t.Fatalf("immediate %d of completion %d", wc.Imm, wc.WRID)
		}
		next[wc.QP]++
	}
}

// sendMany posts notified WRITEs on each VirtualQP of a, polls until all have completed, and returns the
// completions that the peer got meanwhile. Each WRITE has its own memory, because concurrent WRITEs are
// unordered.
func sendMany(t *testing.T, a, peer *enginetest.Host, qps []*ibverbx.VirtualQP, messages int) (received []ibverbx.WC) {
	t.Helper()
	const room = 64
	total := messages * len(qps)
	local, remote := a.Region(room*total), peer.Region(room*total)
	enginetest.Fill(local.Bytes(), 1)
	want := make([]byte, room*total)
	wcs := make([]ibverbx.WC, 64)
	sent, done := 0, 0
	for turns := 0; done < total; turns++ {
		if turns > 1_000_000 {
			t.Fatalf("%d of %d sends complete", done, total)
		}
		if sent < total {
			k, at := sent/len(qps), sent*room
			size := 1 + k%room
			wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(k), Remote: remote.Remote(), RemoteOffset: uint64(at)}
			wr.SetSGE(local.SGE(uint64(at), uint32(size)))
			n, err := qps[sent%len(qps)].PostSend([]ibverbx.SendWR{wr})
			if n == 0 && !errors.Is(err, verbs.ErrQueueFull) {
				t.Fatal(err)
			}
			copy(want[at:], local.Bytes()[at:at+size])
			sent += n
		}
		done += len(pollGood(t, a, wcs))
		received = append(received, pollGood(t, peer, wcs)...)
	}
	if !bytes.Equal(remote.Bytes(), want) {
		t.Error("the peer's memory has other bytes than were sent")
	}
	return received
}

// pollGood returns completions and fails the test if any reports an error.
func pollGood(tb testing.TB, h *enginetest.Host, wcs []ibverbx.WC) []ibverbx.WC {
	tb.Helper()
	n, err := h.CQ.Poll(wcs)
	enginetest.Must(tb, err)
	for i := range wcs[:n] {
		if wcs[i].Err() != nil {
			tb.Fatal(wcs[i].Err())
		}
	}
	return wcs[:n]
}

// TestSharedReceivesExcess: a VirtualQP fails with a descriptive error if its peer sends more than it has
// receives for. The other VirtualQP on the same SRQ continues.
func TestSharedReceivesExcess(t *testing.T) {
	links := enginetest.MemoryLinks(1)
	cfg := ibverbx.Config{Lanes: 2, RecvDepth: 4, SendDepth: 4}
	a, qa := sharedHost(t, links, 16, cfg, cfg)
	b, qb := sharedHost(t, links, 16, cfg, cfg)
	enginetest.Connect(t, qa[0], qb[0])
	enginetest.Connect(t, qa[1], qb[1])
	local, remote := a.Region(64), b.Region(64)
	post := func(q *ibverbx.VirtualQP) {
		wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, 8))
		_, _ = q.PostSend([]ibverbx.SendWR{wr}) // it fails once the peer has failed
	}
	wcs := make([]ibverbx.WC, 16)
	for range 10_000 {
		post(qa[0])
		_, err := a.CQ.Poll(wcs)
		enginetest.Must(t, err)
		_, err = b.CQ.Poll(wcs)
		enginetest.Must(t, err)
	}
	if err := qb[0].Err(); err == nil || !strings.Contains(err.Error(), "more messages than receives") {
		t.Fatalf("Err of the VirtualQP with too many messages = %v", err)
	}
	var events [4]ibverbx.Event
	if n := b.CQ.Events(events[:]); n != 1 || events[0].Kind != ibverbx.EventFailed || events[0].QP != qb[0] || events[0].Err == nil {
		t.Errorf("events %+v, want one of the VirtualQP that failed", events[:n])
	}
	recv := ibverbx.RecvWR{WRID: 9}
	if n, err := qb[1].PostRecv([]ibverbx.RecvWR{recv}); n != 1 {
		t.Fatal(err)
	}
	post(qa[1])
	if wc := b.Wait(1)[0]; wc.QP != qb[1] || wc.WRID != 9 || wc.Err() != nil {
		t.Errorf("completion of the other VirtualQP: %+v, %v", wc, wc.Err())
	}
	if qb[1].Err() != nil {
		t.Errorf("the other VirtualQP failed: %v", qb[1].Err())
	}
}

// TestSharedReceivesComeBack: VirtualQPs closed with work in flight return all their receives to the SRQ.
func TestSharedReceivesComeBack(t *testing.T) {
	links := enginetest.MemoryLinks(1)
	a, _ := sharedHost(t, links, 4)
	b, _ := sharedHost(t, links, 4)
	local, remote := a.Region(64), b.Region(64)
	cfg := ibverbx.Config{Lanes: 2}
	for i := range 50 {
		qa, err := a.CQ.NewQP(cfg)
		enginetest.Must(t, err)
		qb, err := b.CQ.NewQP(cfg)
		enginetest.Must(t, err)
		enginetest.Connect(t, qa, qb)
		wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, 8))
		wrs := []ibverbx.SendWR{wr, wr, wr}
		if n, err := qa.PostSend(wrs); n != 3 {
			t.Fatalf("round %d: PostSend = %d, %v", i, n, err)
		}
		enginetest.Must(t, qb.Close()) // three receives are filled and not polled
		enginetest.Must(t, qa.Close())
	}
	qa, err := a.CQ.NewQP(cfg)
	enginetest.Must(t, err)
	defer func() { enginetest.Must(t, qa.Close()) }()
	qb, err := b.CQ.NewQP(cfg)
	enginetest.Must(t, err)
	defer func() { enginetest.Must(t, qb.Close()) }()
	enginetest.Connect(t, qa, qb)
	if n, err := qb.PostRecv([]ibverbx.RecvWR{{WRID: 1}}); n != 1 {
		t.Fatal(err)
	}
	wcs := sendMany(t, a, b, []*ibverbx.VirtualQP{qa}, 1)
	wcs = append(wcs, b.Wait(1-len(wcs))...)
	if wcs[0].WRID != 1 {
		t.Errorf("completion of receive %d, want 1", wcs[0].WRID)
	}
}

// TestCloseLeavesNothing: after Close, a VirtualQP delivers neither completions nor events.
func TestCloseLeavesNothing(t *testing.T) {
	links := enginetest.MemoryLinks(1)
	for _, lanes := range []int{1, 2} {
		cfg := ibverbx.Config{Lanes: lanes}
		a, qa := sharedHost(t, links, 16, cfg)
		b, qb := sharedHost(t, links, 16, cfg)
		enginetest.Connect(t, qa[0], qb[0])
		if n, err := qb[0].PostRecv([]ibverbx.RecvWR{{WRID: 1}, {WRID: 2}}); n != 2 {
			t.Fatal(err)
		}
		local, remote := a.Region(64), b.Region(64)
		wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Remote: remote.Remote(), Flags: verbs.SendSignaled}
		wr.SetSGE(local.SGE(0, 8))
		if n, err := qa[0].PostSend([]ibverbx.SendWR{wr, wr, wr}); n != 3 {
			t.Fatal(err)
		}
		enginetest.Must(t, qb[0].Close())
		enginetest.Must(t, qa[0].Close())
		for _, h := range []*enginetest.Host{a, b} {
			for range 10 {
				if n, err := h.CQ.Poll(make([]ibverbx.WC, 4)); n != 0 || err != nil {
					t.Errorf("%d lanes: Poll after Close = %d, %v; want nothing", lanes, n, err)
				}
			}
			if n := h.CQ.Events(make([]ibverbx.Event, 4)); n != 0 {
				t.Errorf("%d lanes: %d events after Close, want none", lanes, n)
			}
		}
	}
}

// TestSharedReceivesAreRefilledAtOnce: receives are reposted only when half of them are used, and then all at
// once.
func TestSharedReceivesAreRefilledAtOnce(t *testing.T) {
	nic := nullnic.New("null0", 0x11)
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nic})
	enginetest.Must(t, err)
	const depth = 16
	cq, err := rails.NewCQ(ibverbx.CQConfig{SharedReceives: depth})
	enginetest.Must(t, err)
	q, err := cq.NewQP(ibverbx.Config{Lanes: 2, Scheme: ibverbx.Spray, RecvDepth: 64})
	enginetest.Must(t, err)
	card, err := q.Card()
	enginetest.Must(t, err)
	enginetest.Must(t, q.Connect(card))
	notify := nic.QPs()[3]
	wcs := make([]ibverbx.WC, 4)
	for i := range depth/2 + 1 {
		if left := len(notify.Waiting()); left != depth-i {
			t.Fatalf("%d receives left after %d messages, want %d", left, i, depth-i)
		}
		if !notify.Receive(verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm}) {
			t.Fatal("no receive for the message")
		}
		_, err := cq.Poll(wcs)
		enginetest.Must(t, err)
	}
	if left := len(notify.Waiting()); left != depth {
		t.Errorf("%d receives after the low-water mark, want %d", left, depth)
	}
}

// TestSharedReceivesDepth: a depth that cannot work is refused.
func TestSharedReceivesDepth(t *testing.T) {
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nullnic.New("null0", 0x11)})
	enginetest.Must(t, err)
	for _, depth := range []int{-1, 1, 1 << 20} {
		if _, err := rails.NewCQ(ibverbx.CQConfig{SharedReceives: depth}); err == nil {
			t.Errorf("NewCQ with SharedReceives %d works", depth)
		}
	}
}

// TestSharedReceivesFlushWithoutPoll: every receive of a failed VirtualQP is flushed, even with shared
// receives, and even if the caller polls the physical queues.
func TestSharedReceivesFlushWithoutPoll(t *testing.T) {
	for _, how := range []string{"Poll", "ProcessCompletions"} {
		t.Run(how, func(t *testing.T) {
			links, cfg := enginetest.MemoryLinks(2), ibverbx.Config{Lanes: 2}
			a, qa := sharedHost(t, links, 64, cfg)
			b, qb := sharedHost(t, links, 64, cfg)
			enginetest.Connect(t, qa[0], qb[0])
			local, remote := a.Region(64), b.Region(64)
			if n, err := qa[0].PostRecv([]ibverbx.RecvWR{{WRID: 7}}); n != 1 {
				t.Fatalf("PostRecv = %d, %v; want 1", n, err)
			}
			bad := remote.Remote()
			bad.RKeys[0] ^= 0x10000
			wr := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: bad}
			wr.SetSGE(local.SGE(0, 64))
			if n, err := qa[0].PostSend([]ibverbx.SendWR{wr}); n != 1 {
				t.Fatalf("PostSend = %d, %v; want 1", n, err)
			}
			ended := map[uint64]verbs.Status{}
			wcs, physical := make([]ibverbx.WC, 8), make([]verbs.WC, 8)
			for turn := range 1000 {
				rail, n := turn%2, 0
				var err error
				switch how {
				case "Poll":
					n, err = a.CQ.Poll(wcs)
				default:
					cq, found := a.CQ.CQ(rail)
					enginetest.Must(t, found)
					k, polled := cq.Poll(physical)
					enginetest.Must(t, polled)
					n, err = a.CQ.ProcessCompletions(rail, physical[:k], wcs)
				}
				enginetest.Must(t, err)
				for _, wc := range wcs[:n] {
					ended[wc.WRID] = wc.Status
				}
			}
			if ended[1] != verbs.StatusRemAccessErr || ended[7] != verbs.StatusWRFlushErr {
				t.Errorf("ended = %v, want request 1 with %v and receive 7 with %v", ended, verbs.StatusRemAccessErr, verbs.StatusWRFlushErr)
			}
		})
	}
}

// countedSRQs is a context that records the length of each chain posted to its SRQs.
type countedSRQs struct {
	verbs.Context
	chains []int
}

type countedPD struct {
	verbs.PD
	ctx *countedSRQs
}

type countedSRQ struct {
	verbs.SRQ
	ctx *countedSRQs
}

func (c *countedSRQs) AllocPD() (verbs.PD, error) {
	pd, err := c.Context.AllocPD()
	return countedPD{pd, c}, err
}

func (d countedPD) CreateSRQ(cfg verbs.SRQConfig) (verbs.SRQ, error) {
	srq, err := d.PD.CreateSRQ(cfg)
	return countedSRQ{srq, d.ctx}, err
}

func (d countedPD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	if srq, ok := cfg.SRQ.(countedSRQ); ok {
		cfg.SRQ = srq.SRQ
	}
	return d.PD.CreateQP(cfg)
}

func (s countedSRQ) PostRecv(wrs []verbs.RecvWR) (int, error) {
	n, err := s.SRQ.PostRecv(wrs)
	s.ctx.chains = append(s.ctx.chains, n)
	return n, err
}

// TestSharedReceivesRefillInChains: of 16 receives at least eight are reposted at once, on bare and on
// wrapped rails, and CQStats counts the receives posted to the provider.
func TestSharedReceivesRefillInChains(t *testing.T) {
	const depth, messages = 16, 300
	for name, wrap := range map[string]bool{"bare": false, "wrapped": true} {
		t.Run(name, func(t *testing.T) {
			links := enginetest.MemoryLinks(1)
			counted := map[*enginetest.Host]*countedSRQs{}
			var hosts [2]*enginetest.Host
			var qps [2][]*ibverbx.VirtualQP
			for i := range hosts {
				c := &countedSRQs{}
				cfg := ibverbx.Config{Lanes: 4, RecvDepth: messages}
				hosts[i], qps[i] = sharedHostOver(t, links, depth, func(inner verbs.Context) verbs.Context {
					c.Context = inner
					if wrap {
						var err error
						c.Context, err = reliable.Wrap(inner, reliable.Config{Paths: 2})
						enginetest.Must(t, err)
						t.Cleanup(func() { enginetest.Must(t, c.Close()) })
					}
					return c
				}, cfg, cfg)
				counted[hosts[i]] = c
			}
			a, b := hosts[0], hosts[1]
			for i := range qps[0] {
				enginetest.Connect(t, qps[0][i], qps[1][i])
				if n, err := qps[1][i].PostRecv(make([]ibverbx.RecvWR, messages)); n != messages {
					t.Fatalf("PostRecv = %d, %v, want %d", n, err, messages)
				}
			}
			got := sendMany(t, a, b, qps[0], messages)
			b.Wait(2*messages - len(got))
			chains, stats := counted[b].chains, b.CQ.Stats()
			total := 0
			for i, n := range chains {
				if total += n; n < depth/2 {
					t.Errorf("chain %d has %d receives, want at least %d: %v", i, n, depth/2, chains)
				}
			}
			if stats.Refills != uint64(len(chains)) || stats.Refilled != uint64(total) || total < 2*messages {
				t.Errorf("CQStats has %d receives in %d chains, the provider %d in %d, want as many, and 2 x %d receives",
					stats.Refilled, stats.Refills, total, len(chains), messages)
			}
		})
	}
}
