package traffic_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/debugcheck"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/testslice"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// poolRoom is the size of a pooled receive in these tests.
const poolRoom = 512

// over is a layer between the NICs and the engine.
type over func(verbs.Context) verbs.Context

func bare(inner verbs.Context) verbs.Context { return inner }

// pooled is a server whose VirtualQPs share data receives, and its clients.
type pooled struct {
	tb      testing.TB
	server  *enginetest.Host
	at      []*ibverbx.VirtualQP // the server's, by client
	clients []*enginetest.Host   // each has one VirtualQP and its own VirtualCQ
	out     []*ibverbx.Region    // what clients send from
	buffers *ibverbx.Region      // the receives of the pool
	sent    []int                // messages posted, by client
	got     []int                // messages received, by client
	done    []int                // SENDs completed, by client
	held    []uint64             // WRIDs of receives that wait to be posted again
}

// newPooled connects a server with a pool of depth receives, all posted, and clients.
func newPooled(tb testing.TB, links []softnic.Link, layer over, depth, clients int, cfg ibverbx.Config) *pooled {
	tb.Helper()
	wrap := func(_ int, inner verbs.Context) verbs.Context { return layer(inner) }
	p := &pooled{tb: tb, server: enginetest.NewRailsOver(tb, links, wrap)}
	p.sent, p.got, p.done = make([]int, clients), make([]int, clients), make([]int, clients)
	p.server.NewCQ(ibverbx.CQConfig{SharedData: depth})
	p.buffers = p.server.Region(depth * poolRoom)
	for i := range depth {
		p.held = append(p.held, uint64(i))
	}
	p.repost()
	for range clients {
		h := enginetest.NewRailsOver(tb, links, wrap)
		h.NewCQ(ibverbx.CQConfig{})
		p.clients = append(p.clients, h)
		p.out = append(p.out, h.Region(64*poolRoom))
		p.at = append(p.at, p.server.NewQP(cfg))
		enginetest.Connect(tb, h.NewQP(cfg), p.at[len(p.at)-1])
	}
	return p
}

// repost posts the held receives again.
func (p *pooled) repost() {
	p.tb.Helper()
	wrs := make([]ibverbx.RecvWR, len(p.held))
	for i, id := range p.held {
		wrs[i].WRID = id
		wrs[i].SetSGE(p.buffers.SGE(id*poolRoom, poolRoom))
	}
	if n, err := p.server.CQ.PostRecv(wrs); n != len(wrs) || err != nil {
		p.tb.Fatalf("VirtualCQ.PostRecv = %d, %v; want %d", n, err, len(wrs))
	}
	p.held = p.held[:0]
}

// size is the length of a client's message.
func size(client, k int) uint32 { return uint32(1 + (client*131+k*37)%poolRoom) }

// send posts the next message of a client, and reports whether it was accepted.
func (p *pooled) send(client int) bool {
	p.tb.Helper()
	k := p.sent[client]
	if k-p.done[client] >= 64 {
		return false // its buffer is in use
	}
	at, n := uint64(k%64)*poolRoom, size(client, k)
	enginetest.Stamp(p.out[client].Bytes()[at:at+uint64(n)], client, k)
	wr := ibverbx.SendWR{Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: uint32(k)}
	wr.SetSGE(p.out[client].SGE(at, n))
	n1, err := p.clients[client].QP.PostSend([]ibverbx.SendWR{wr})
	if n1 == 0 && !errors.Is(err, verbs.ErrQueueFull) {
		p.tb.Fatal(err)
	}
	p.sent[client] += n1
	return n1 == 1
}

// poll polls every host once, checks the received messages and keeps their receives.
func (p *pooled) poll() {
	p.tb.Helper()
	wcs := make([]ibverbx.WC, 16)
	for i, h := range p.clients {
		p.done[i] += len(pollGood(p.tb, h, wcs))
	}
	for _, wc := range pollGood(p.tb, p.server, wcs) {
		client := slices.Index(p.at, wc.QP)
		if client < 0 || wc.Opcode != verbs.WCRecv || wc.Flags != ibverbx.WCHasImm|ibverbx.WCHasLength {
			p.tb.Fatalf("completion %+v of client %d", wc, client)
		}
		k := p.got[client]
		got := p.buffers.Bytes()[wc.WRID*poolRoom:][:wc.ByteLen]
		if wc.Imm != uint32(k) || wc.ByteLen != size(client, k) || enginetest.FirstDifference(got, enginetest.Stamped(len(got), client, k)) >= 0 {
			p.tb.Fatalf("client %d: message %d of %d bytes, want message %d of %d with its bytes", client, wc.Imm, wc.ByteLen, k, size(client, k))
		}
		p.got[client]++
		p.held = append(p.held, wc.WRID)
	}
}

// TestSharedData: three clients send to VirtualQPs that share four receives. Every message arrives once, in order,
// with the VirtualQP that it was sent to.
func TestSharedData(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		for _, rails := range []int{1, 2} {
			for _, lanes := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/rails=%d/lanes=%d", scheme, rails, lanes), func(t *testing.T) {
					p := newPooled(t, enginetest.MemoryLinks(rails), bare, 4, 3, ibverbx.Config{Scheme: scheme, Lanes: lanes})
					p.exchange(200)
				})
			}
		}
	}
}

// TestSharedDataOnWrappedRails does the same over package reliable, on links that lose packets.
func TestSharedDataOnWrappedRails(t *testing.T) {
	for _, carrier := range []verbs.QPType{verbs.UC, verbs.UD} {
		for _, loss := range []float64{0, 0.01} {
			t.Run(fmt.Sprintf("%v/loss=%v", carrier, loss), func(t *testing.T) {
				links := enginetest.FaultLinks(t, 2, softnic.Impairment{Loss: loss})
				newPooled(t, links, wrapped(t, carrier), 4, 3, ibverbx.Config{Lanes: 2}).exchange(200)
			})
		}
	}
}

// wrapped wraps NICs with package reliable.
func wrapped(t *testing.T, carrier verbs.QPType) over {
	return func(inner verbs.Context) verbs.Context {
		ctx, err := reliable.Wrap(inner, reliable.Config{Carrier: carrier, Paths: 2, ChunkBytes: 4096})
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, ctx.Close()) })
		return ctx
	}
}

// exchange sends n messages from every client.
func (p *pooled) exchange(n int) {
	p.tb.Helper()
	for turn := 0; slices.Min(p.got) < n; turn++ {
		if turn > 10_000_000 {
			p.tb.Fatalf("messages arrived: %v, want %d of each", p.got, n)
		}
		for i := range p.clients {
			for p.sent[i] < n && p.send(i) {
			}
		}
		p.poll()
		p.repost()
	}
}

// TestSharedDataEmpty: while the pool is empty, senders wait without an error. They continue when receives are posted.
func TestSharedDataEmpty(t *testing.T) {
	for name, layer := range map[string]over{"bare": bare, "uc": wrapped(t, verbs.UC), "ud": wrapped(t, verbs.UD)} {
		t.Run(name, func(t *testing.T) {
			p := newPooled(t, enginetest.MemoryLinks(1), layer, 2, 3, ibverbx.Config{Lanes: 2})
			for i := range p.clients {
				for range 8 {
					p.send(i)
				}
			}
			for range 2000 {
				p.poll()
			}
			if len(p.held) != 2 {
				t.Fatalf("%d messages arrived with 2 receives", len(p.held))
			}
			p.repost()
			p.exchange(8)
		})
	}
}

// TestSharedDataMisuse: invalid uses are refused with an error that names the fix.
func TestSharedDataMisuse(t *testing.T) {
	h := enginetest.NewRails(t, enginetest.MemoryLinks(1))
	h.NewCQ(ibverbx.CQConfig{SharedData: 2})
	plain := enginetest.NewRails(t, enginetest.MemoryLinks(1))
	plain.NewCQ(ibverbx.CQConfig{})
	region, foreign := h.Region(64), plain.Region(64)
	recv := func(r *ibverbx.Region, n uint32) []ibverbx.RecvWR {
		wr := ibverbx.RecvWR{}
		if n > 0 {
			wr.SetSGE(r.SGE(0, n))
		}
		return []ibverbx.RecvWR{wr}
	}
	several, one := h.NewQP(ibverbx.Config{Lanes: 2}), h.NewQP(ibverbx.Config{Lanes: 1})
	long := recv(region, 64)
	long[0].SGE[0].Length = 65
	post := func(c interface {
		PostRecv([]ibverbx.RecvWR) (int, error)
	}, wrs []ibverbx.RecvWR,
	) error {
		n, err := c.PostRecv(wrs)
		if n != 0 {
			t.Errorf("a receive that should fail was accepted")
		}
		return err
	}
	closed, err := h.Rails.NewCQ(ibverbx.CQConfig{SharedData: 2})
	enginetest.Must(t, err)
	enginetest.Must(t, closed.Close())
	_, negative := h.Rails.NewCQ(ibverbx.CQConfig{SharedData: -1})
	_, huge := h.Rails.NewCQ(ibverbx.CQConfig{SharedData: 1 << 17})
	_, shallow := h.Rails.NewCQ(ibverbx.CQConfig{SharedData: 64, Depth: 32})
	for name, tt := range map[string]struct {
		err  error
		is   error
		text string
	}{
		"a data receive on a VirtualQP":          {post(several, recv(region, 64)), verbs.ErrInvalid, "use VirtualCQ.PostRecv"},
		"a receive on a single lane":             {post(one, recv(region, 0)), verbs.ErrInvalid, "use VirtualCQ.PostRecv"},
		"a receive without bytes in the pool":    {post(h.CQ, recv(region, 0)), verbs.ErrInvalid, "use VirtualQP.PostRecv"},
		"memory of other rails":                  {post(h.CQ, recv(foreign, 64)), verbs.ErrInvalid, "other rails"},
		"more bytes than the region has":         {post(h.CQ, long), verbs.ErrInvalid, "a region of 64"},
		"a VirtualCQ without a pool":             {post(plain.CQ, recv(foreign, 64)), verbs.ErrInvalid, "set CQConfig.SharedData"},
		"a VirtualCQ that is closed":             {post(closed, recv(region, 64)), verbs.ErrClosed, ""},
		"a negative size":                        {negative, verbs.ErrInvalid, "CQConfig.SharedData is -1"},
		"a size that no SRQ has":                 {huge, verbs.ErrInvalid, "CQConfig.SharedData is 131072"},
		"more receives than the CQ holds":        {shallow, verbs.ErrInvalid, "CQConfig.Depth"},
		"closing the VirtualCQ below VirtualQPs": {h.CQ.Close(), verbs.ErrBusy, "2 virtual QPs"},
	} {
		if !errors.Is(tt.err, tt.is) || !strings.Contains(tt.err.Error(), tt.text) {
			t.Errorf("%s: %v, want %v and %q", name, tt.err, tt.is, tt.text)
		}
	}
	if n, err := h.CQ.PostRecv(slices.Concat(recv(region, 64), recv(region, 64), recv(region, 64))); n != 2 || !errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("PostRecv of 3 receives to a pool of 2 = %d, %v; want 2 and ErrQueueFull", n, err)
	}
	if n, err := several.PostRecv(make([]ibverbx.RecvWR, 1)); n != 1 || err != nil {
		t.Errorf("PostRecv of a notification receive = %d, %v; want 1", n, err)
	}
}

// TestSharedDataTooLong: a message that is longer than the receive it takes fails its own VirtualQP, at both ends, and
// completes the receive with an error. The other VirtualQP and the rest of the pool are unaffected.
func TestSharedDataTooLong(t *testing.T) {
	for _, lanes := range []int{1, 2} {
		p := newPooled(t, enginetest.MemoryLinks(1), bare, 3, 2, ibverbx.Config{Lanes: lanes})
		wr := ibverbx.SendWR{WRID: 5, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		wr.SetSGE(p.out[0].SGE(0, poolRoom+1))
		p.clients[0].PostSend(wr)
		wc := p.server.Wait(1)[0]
		if wc.QP != p.at[0] || wc.Status != verbs.StatusLocLenErr || wc.WRID != 0 || p.at[0].Err() == nil {
			t.Errorf("%d lanes: completion %+v and error %v, want receive 0 with %v", lanes, wc, p.at[0].Err(), verbs.StatusLocLenErr)
		}
		if wc := p.clients[0].Wait(1)[0]; wc.Status != verbs.StatusRemInvReqErr {
			t.Errorf("%d lanes: the SEND ended with %v, want %v", lanes, wc.Status, verbs.StatusRemInvReqErr)
		}
		p.held = append(p.held, wc.WRID)
		p.repost()
		p.got[0] = 50 // no more of this client
		p.sent[0] = 50
		p.exchange(50)
	}
}

// TestSharedDataOutlivesVirtualQPs: a VirtualQP closed with unreported messages returns their receives
// to the pool. It has no completions after Close.
func TestSharedDataOutlivesVirtualQPs(t *testing.T) {
	for _, rails := range []int{1, 2} {
		for _, lanes := range []int{1, 2} {
			for _, polled := range []bool{false, true} {
				t.Run(fmt.Sprintf("rails=%d/lanes=%d/polled=%v", rails, lanes, polled), func(t *testing.T) {
					cfg := ibverbx.Config{Lanes: lanes}
					p := newPooled(t, enginetest.MemoryLinks(rails), bare, 4, 1, cfg)
					for range 20 {
						h := p.clients[0]
						qa, err := h.CQ.NewQP(cfg)
						enginetest.Must(t, err)
						qb, err := p.server.CQ.NewQP(cfg)
						enginetest.Must(t, err)
						enginetest.Connect(t, qa, qb)
						wr := ibverbx.SendWR{Opcode: verbs.OpSend}
						wr.SetSGE(p.out[0].SGE(0, 100))
						if n, err := qa.PostSend([]ibverbx.SendWR{wr, wr}); n != 2 {
							t.Fatalf("PostSend = %d, %v", n, err)
						}
						if polled { // but not reported
							cq, err := p.server.CQ.CQ(0)
							enginetest.Must(t, err)
							var wcs [4]verbs.WC
							n, err := cq.Poll(wcs[:])
							enginetest.Must(t, err)
							_, err = p.server.CQ.ProcessCompletions(0, wcs[:n], nil)
							enginetest.Must(t, err)
						}
						enginetest.Must(t, qb.Close())
						enginetest.Must(t, qa.Close())
						if wcs := p.server.Poll(); len(wcs) > 0 {
							t.Fatalf("%d completions after Close", len(wcs))
						}
						p.clients[0].Poll()
					}
					p.exchange(50)
				})
			}
		}
	}
}

// TestSharedDataFair: a client that always has 64 messages outstanding cannot starve one that sends single messages, although
// the pool is always empty. Between a message's post and its arrival, the other client gets few receives.
func TestSharedDataFair(t *testing.T) {
	const depth, greedy, modest = 4, 0, 1
	for name, layer := range map[string]over{"bare": bare, "uc": wrapped(t, verbs.UC), "ud": wrapped(t, verbs.UD)} {
		t.Run(name, func(t *testing.T) {
			p := newPooled(t, enginetest.MemoryLinks(1), layer, depth, 2, ibverbx.Config{Lanes: 2})
			worst := 0
			for round := range 50 {
				before := p.got[greedy]
				for sent := false; p.got[modest] == round; {
					for p.send(greedy) {
					}
					if p.poll(); len(p.held) == 0 {
						continue
					}
					if !sent && len(p.held) == depth { // the pool is empty, and the greedy client waits
						sent, before = p.send(modest), p.got[greedy]
					}
					if sent {
						last := p.held[len(p.held)-1]
						rest := p.held[:len(p.held)-1]
						p.held = []uint64{last}
						p.repost() // one at a time
						p.held = rest
					}
				}
				worst = max(worst, p.got[greedy]-before)
			}
			if worst > 2*depth {
				t.Errorf("the greedy client got up to %d receives while the other one waited, want at most %d", worst, 2*depth)
			}
		})
	}
}

// TestSharedDataManyClients: 500 clients of a server (200 in a slice) share 64 receives. Each gets 20 messages through. The server's receives
// and their part of its CQs do not grow with the number of clients.
func TestSharedDataManyClients(t *testing.T) {
	const receives, messages = 64, 20
	clients := 500
	if !testslice.Of(t).Whole() {
		clients = 200 // the time is quadratic
	}
	if debugcheck.On {
		clients = 50 // with the race detector, the refused SENDs of 500 take the time of the others
	}
	cfg := ibverbx.Config{Lanes: 1, LaneDepth: 8, SendDepth: 8}
	links := enginetest.MemoryLinks(1)
	p := newPooled(t, links, bare, receives, 1, cfg)
	h := p.clients[0]
	memory := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	perClient := map[string]uint64{}
	for name, cq := range map[string]*ibverbx.VirtualCQ{"pool": p.server.CQ, "own receives": newCQ(t, p.server)} {
		before := memory()
		for range clients {
			q, err := cq.NewQP(cfg)
			enginetest.Must(t, err)
			t.Cleanup(func() { enginetest.Must(t, q.Close()) })
			if name == "pool" {
				p.at = append(p.at, q)
			} else {
				wrs := make([]ibverbx.RecvWR, 16)
				for k := range wrs {
					wrs[k].SetSGE(p.buffers.SGE(0, poolRoom))
				}
				if n, err := q.PostRecv(wrs); n != len(wrs) {
					t.Fatal(err)
				}
			}
		}
		perClient[name] = (memory() - before) / uint64(clients)
	}
	t.Logf("heap per VirtualQP of a server: %d bytes with a pool, %d with 16 receives each; buffers of 4 KiB: %d and %d bytes",
		perClient["pool"], perClient["own receives"], receives*4096/clients, 16*4096)
	senders := make([]*ibverbx.VirtualQP, 0, clients)
	for _, q := range p.at[1:] {
		s := h.NewQP(cfg)
		enginetest.Connect(t, s, q)
		senders = append(senders, s)
	}
	p.flood(senders, messages)
}

// flood sends messages on every VirtualQP of the first client, as fast as they are accepted.
func (p *pooled) flood(senders []*ibverbx.VirtualQP, messages int) {
	t, h := p.tb, p.clients[0]
	t.Helper()
	got := map[*ibverbx.VirtualQP]int{}
	wcs := make([]ibverbx.WC, 64)
	wr := ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	wr.SetSGE(p.out[0].SGE(0, 8))
	sent, total := make([]int, len(senders)), 0
	for turn := 0; total < messages*len(senders); turn++ {
		if turn > 1_000_000 {
			t.Fatalf("%d messages of %d", total, messages*len(senders))
		}
		for i, s := range senders {
			for sent[i] < messages {
				n, err := s.PostSend([]ibverbx.SendWR{wr})
				if n == 0 && !errors.Is(err, verbs.ErrQueueFull) {
					t.Fatal(err)
				}
				if sent[i] += n; n == 0 {
					break
				}
			}
		}
		pollGood(t, h, wcs)
		for _, wc := range pollGood(t, p.server, wcs) {
			if got[wc.QP]++; got[wc.QP] > messages {
				t.Fatalf("%d messages on one VirtualQP, %d were sent", got[wc.QP], messages)
			}
			p.held = append(p.held, wc.WRID)
			total++
		}
		p.repost()
	}
	if len(got) != len(senders) {
		t.Errorf("messages came from %d clients, want %d", len(got), len(senders))
	}
}

// newCQ returns another VirtualCQ of a host.
func newCQ(t *testing.T, h *enginetest.Host) *ibverbx.VirtualCQ {
	cq, err := h.Rails.NewCQ(ibverbx.CQConfig{})
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, cq.Close()) })
	return cq
}
