package traffic_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// each runs a test for every scheme, over one rail and over two, on links that hand
// packets over and on links that cut and queue them.
func each(t *testing.T, lanes int, run func(t *testing.T, scheme ibverbx.Scheme, links func() []softnic.Link)) {
	for _, scheme := range enginetest.Schemes {
		for _, rails := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/rails=%d/lanes=%d/memory", scheme, rails, lanes), func(t *testing.T) {
				run(t, scheme, func() []softnic.Link { return enginetest.MemoryLinks(rails) })
			})
			t.Run(fmt.Sprintf("%s/rails=%d/lanes=%d/packets", scheme, rails, lanes), func(t *testing.T) {
				run(t, scheme, func() []softnic.Link {
					links := make([]softnic.Link, rails)
					for i := range links {
						link, err := softnic.NewFaultLink(nil)
						enginetest.Must(t, err)
						links[i] = link
					}
					return links
				})
			})
		}
	}
}

// TestNotification: a notification arrives after its message's bytes and all earlier requests' bytes, and its
// completion has the fields that the scheme carries.
func TestNotification(t *testing.T) {
	each(t, 6, func(t *testing.T, scheme ibverbx.Scheme, links func() []softnic.Link) {
		a, b := enginetest.NewPair(t, links(), ibverbx.Config{Lanes: 6, Scheme: scheme, FragmentSize: 3000})
		const requests, size = 120, 20_000
		local, remote := a.Region(requests*size), b.Region(requests*size)
		rng := rand.New(rand.NewPCG(7, uint64(scheme)))
		enginetest.Fill(local.Bytes(), rng.Uint64())
		recvs := make([]ibverbx.RecvWR, requests)
		for i := range recvs {
			recvs[i].WRID = uint64(i)
		}
		b.PostRecv(recvs...)
		var notified []int
		lengths := make([]int, requests)
		sent, delivered, completed := 0, 0, 0
		for delivered < len(notified) || sent < requests || completed < requests {
			if sent < requests {
				n := rng.IntN(size)
				wr := ibverbx.SendWR{WRID: uint64(sent), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Imm: uint32(sent) * 7, Remote: remote.Remote(), RemoteOffset: uint64(sent * size)}
				if rng.IntN(2) == 0 {
					wr.Opcode = verbs.OpRDMAWriteWithImm
				} else {
					n = max(n, 1)
				}
				if n > 0 {
					wr.SetSGE(local.SGE(uint64(sent*size), uint32(n)))
				}
				k, err := a.QP.PostSend([]ibverbx.SendWR{wr})
				if k == 1 {
					if lengths[sent] = n; wr.Opcode == verbs.OpRDMAWriteWithImm {
						notified = append(notified, sent)
					}
					sent++
				} else if err != verbs.ErrQueueFull { //nolint:errorlint // it must not be wrapped
					t.Fatal(err)
				}
			}
			completed += pollOnce(t, a, completed)
			for _, wc := range b.Poll() {
				i := notified[delivered]
				checkNotification(t, scheme, wc, delivered, i, lengths[i])
				for k := range i + 1 {
					if !bytes.Equal(remote.Bytes()[k*size:][:lengths[k]], local.Bytes()[k*size:][:lengths[k]]) {
						t.Fatalf("request %d was delivered before all of request %d", i, k)
					}
				}
				delivered++
			}
		}
	})
}

func checkNotification(t *testing.T, scheme ibverbx.Scheme, wc ibverbx.WC, delivered, i, length int) {
	t.Helper()
	if wc.Status != verbs.StatusSuccess || wc.WRID != uint64(delivered) || wc.Opcode != verbs.WCRecvRDMAWithImm {
		t.Fatalf("notification %d = %+v", delivered, wc)
	}
	if want := scheme != ibverbx.DQPLB; want != (wc.Flags&ibverbx.WCHasImm != 0) || (want && wc.Imm != uint32(i)*7) {
		t.Fatalf("notification of request %d: flags %#x, immediate %d", i, wc.Flags, wc.Imm)
	}
	if want := scheme != ibverbx.Spray; want != (wc.Flags&ibverbx.WCHasLength != 0) || (want && wc.ByteLen != uint32(length)) {
		t.Fatalf("notification of request %d: flags %#x, %d bytes, want %d", i, wc.Flags, wc.ByteLen, length)
	}
}

// pollOnce polls sends, which must complete successfully and in order, starting with next.
func pollOnce(t *testing.T, h *enginetest.Host, next int) int {
	t.Helper()
	wcs := h.Poll()
	for i, wc := range wcs {
		if err := wc.Err(); err != nil || wc.WRID != uint64(next+i) {
			t.Fatalf("completion of request %d = %d, %v", next+i, wc.WRID, err)
		}
	}
	return len(wcs)
}

// TestMessages: SENDs and data receives next to notifications: the two queues are independent (G5), and a
// SEND arrives after the preceding WRITEs are done.
func TestMessages(t *testing.T) {
	each(t, 4, func(t *testing.T, scheme ibverbx.Scheme, links func() []softnic.Link) {
		a, b := enginetest.NewPair(t, links(), ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 1000})
		local, remote, inbox := a.Region(8192), b.Region(8192), b.Region(64*64)
		for round := range 40 {
			for i := range local.Bytes() {
				local.Bytes()[i] = byte(i*3 + round)
			}
			write := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWrite, Remote: remote.Remote()}
			write.SetSGE(local.SGE(0, 8192))
			notify := ibverbx.SendWR{WRID: 2, Opcode: verbs.OpRDMAWriteWithImm, Imm: uint32(round), Remote: remote.Remote()}
			notify.SetSGE(local.SGE(0, 100))
			send := ibverbx.SendWR{WRID: 3, Opcode: verbs.OpSendWithImm, Imm: 77, Flags: verbs.SendSignaled | verbs.SendInline}
			send.SetSGE(local.SGE(0, 48))
			recv := ibverbx.RecvWR{WRID: 10}
			recv.SetSGE(inbox.SGE(0, 64))
			b.PostRecv(recv, ibverbx.RecvWR{WRID: 11})
			a.PostSend(write, notify, send)
			var got []ibverbx.WC
			done := 0
			for len(got) < 2 || done == 0 {
				for _, wc := range a.Poll() {
					if err := wc.Err(); err != nil || wc.WRID != 3 {
						t.Fatalf("completion %+v, %v", wc, err)
					}
					done++
				}
				got = append(got, b.Poll()...)
			}
			for _, wc := range got {
				if err := wc.Err(); err != nil {
					t.Fatal(err)
				}
				if wc.WRID == 10 && (wc.ByteLen != 48 || wc.Imm != 77 || !bytes.Equal(inbox.Bytes()[:48], local.Bytes()[:48])) {
					t.Fatalf("message = %+v", wc)
				}
			}
			if !bytes.Equal(remote.Bytes(), local.Bytes()) {
				t.Fatal("the message came before the data that was posted before it")
			}
		}
	})
}

// TestCxxPeerNumbersComeLate: with Config.CxxPeer, the receiver fails when a number can no longer arrive.
// Loss, rails with very different delays, and plain requests between notified ones must not trigger that:
// every message arrives.
func TestCxxPeerNumbersComeLate(t *testing.T) {
	for _, policy := range []ibverbx.Policy{ibverbx.RoundRobin, ibverbx.TwoChoices} {
		t.Run(policy.String(), func(t *testing.T) {
			w := newWires(t,
				softnic.FaultConfig{Seed: 1, Impairment: softnic.Impairment{Loss: 0.02, Delay: 2 * time.Microsecond}},
				softnic.FaultConfig{Seed: 2, Impairment: softnic.Impairment{Loss: 0.02, Delay: 300 * time.Microsecond}})
			a, b := enginetest.NewPair(t, w.links, ibverbx.Config{
				Lanes: 6, Scheme: ibverbx.DQPLB, CxxPeer: true, Policy: policy, FragmentSize: 256, SendDepth: 512, Now: func() int64 { return w.now },
			})
			local, remote := a.Region(1<<16), b.Region(1<<16)
			const messages = 200
			delivered := 0
			for i := range messages {
				b.PostRecv(ibverbx.RecvWR{WRID: uint64(i)})
				ops := []verbs.Opcode{verbs.OpRDMAWriteWithImm, verbs.OpRDMAWrite, verbs.OpRDMARead}
				for _, op := range ops[:1+i%3] {
					wr := ibverbx.SendWR{Opcode: op, Remote: remote.Remote()}
					wr.SetSGE(local.SGE(0, uint32(1+i*37%1500)))
					for p := (stallGuard{limit: steps}); ; {
						n, err := a.QP.PostSend([]ibverbx.SendWR{wr})
						if n == 1 {
							break
						}
						if err != verbs.ErrQueueFull { //nolint:errorlint // it must not be wrapped
							t.Fatal(err)
						}
						enginetest.Must(t, p.step(false))
						delivered += len(b.Poll())
						a.Poll()
						w.step()
					}
				}
			}
			for p := (stallGuard{limit: steps}); delivered < messages; w.step() {
				got := b.Poll()
				delivered += len(got)
				a.Poll()
				if err := p.step(len(got) > 0); err != nil || a.QP.Err() != nil || b.QP.Err() != nil {
					t.Fatalf("%d of %d messages: %v, %v, %v", delivered, messages, err, a.QP.Err(), b.QP.Err())
				}
			}
		})
	}
}
