package ibverbx_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

var schemes = []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray}

// each runs a test for every scheme, over one rail and over two, on links that hand
// packets over and on links that cut and queue them.
func each(t *testing.T, lanes int, run func(t *testing.T, scheme ibverbx.Scheme, links func() []softnic.Link)) {
	for _, scheme := range schemes {
		for _, rails := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/rails=%d/lanes=%d/memory", scheme, rails, lanes), func(t *testing.T) {
				run(t, scheme, func() []softnic.Link { return memoryLinks(rails) })
			})
			t.Run(fmt.Sprintf("%s/rails=%d/lanes=%d/packets", scheme, rails, lanes), func(t *testing.T) {
				run(t, scheme, func() []softnic.Link {
					links := make([]softnic.Link, rails)
					for i := range links {
						link, err := softnic.NewFaultLink(nil)
						must(t, err)
						links[i] = link
					}
					return links
				})
			})
		}
	}
}

// TestNotification: when the receiver is told of a message, its bytes and those of every
// request before it are in memory, and it learns what the scheme can carry.
func TestNotification(t *testing.T) {
	each(t, 6, func(t *testing.T, scheme ibverbx.Scheme, links func() []softnic.Link) {
		a, b := hostPair(t, links(), ibverbx.Config{Lanes: 6, Scheme: scheme, FragmentSize: 3000})
		const requests, size = 120, 20_000
		local, remote := a.region(requests*size), b.region(requests*size)
		rng := rand.New(rand.NewPCG(7, uint64(scheme)))
		fill(local.Bytes(), rng)
		recvs := make([]ibverbx.RecvWR, requests)
		for i := range recvs {
			recvs[i].WRID = uint64(i)
		}
		if n, err := b.qp.PostRecv(recvs); n != requests || err != nil {
			t.Fatal(n, err)
		}
		var notified []int
		lengths := make([]int, requests)
		sent, told, completed := 0, 0, 0
		for told < len(notified) || sent < requests || completed < requests {
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
				k, err := a.qp.PostSend([]ibverbx.SendWR{wr})
				if k == 1 {
					if lengths[sent] = n; wr.Opcode == verbs.OpRDMAWriteWithImm {
						notified = append(notified, sent)
					}
					sent++
				} else if err != verbs.ErrQueueFull { //nolint:errorlint // it must come bare
					t.Fatal(err)
				}
			}
			completed += pollOnce(t, a, completed)
			for _, wc := range poll(t, b) {
				i := notified[told]
				checkNotification(t, scheme, wc, told, i, lengths[i])
				for k := range i + 1 {
					if !bytes.Equal(remote.Bytes()[k*size:][:lengths[k]], local.Bytes()[k*size:][:lengths[k]]) {
						t.Fatalf("told of request %d, but request %d is not all there", i, k)
					}
				}
				told++
			}
		}
	})
}

func checkNotification(t *testing.T, scheme ibverbx.Scheme, wc ibverbx.WC, told, i, length int) {
	t.Helper()
	if wc.Status != verbs.StatusSuccess || wc.WRID != uint64(told) || wc.Opcode != verbs.WCRecvRDMAWithImm {
		t.Fatalf("notification %d = %+v", told, wc)
	}
	if want := scheme != ibverbx.DQPLB; want != (wc.Flags&ibverbx.WCHasImm != 0) || (want && wc.Imm != uint32(i)*7) {
		t.Fatalf("notification of request %d: flags %#x, immediate %d", i, wc.Flags, wc.Imm)
	}
	if want := scheme != ibverbx.Spray; want != (wc.Flags&ibverbx.WCHasLength != 0) || (want && wc.ByteLen != uint32(length)) {
		t.Fatalf("notification of request %d: flags %#x, %d bytes, want %d", i, wc.Flags, wc.ByteLen, length)
	}
}

// poll takes what is there.
func poll(t *testing.T, h *host) []ibverbx.WC {
	t.Helper()
	var wcs [16]ibverbx.WC
	n, err := h.cq.Poll(wcs[:])
	if err != nil {
		t.Fatal(err)
	}
	return wcs[:n]
}

// pollOnce polls sends, which must complete well and in order from next on.
func pollOnce(t *testing.T, h *host, next int) int {
	t.Helper()
	wcs := poll(t, h)
	for i, wc := range wcs {
		if err := wc.Err(); err != nil || wc.WRID != uint64(next+i) {
			t.Fatalf("completion of request %d = %d, %v", next+i, wc.WRID, err)
		}
	}
	return len(wcs)
}

// TestMoreMessagesThanReceives (G4): the engine holds a bounded number of messages, then
// the sender waits; when receives are posted every message is told, once and in order.
func TestMoreMessagesThanReceives(t *testing.T) {
	each(t, 3, func(t *testing.T, scheme ibverbx.Scheme, links func() []softnic.Link) {
		a, b := hostPair(t, links(), ibverbx.Config{Lanes: 3, Scheme: scheme, RecvDepth: 8, NotifyDepth: 4, SendDepth: 512})
		// Each has a place of its own: two rails write without knowing of each other.
		const messages = 300
		local, remote := a.region(messages*64), b.region(messages*64)
		for i := range messages {
			wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(i), Remote: remote.Remote(), RemoteOffset: uint64(i * 64)}
			wr.SetSGE(local.SGE(uint64(i*64), 64))
			if n, err := a.qp.PostSend([]ibverbx.SendWR{wr}); n != 1 {
				t.Fatal(i, err)
			}
		}
		for range 200 {
			poll(t, b)
		}
		completed := pollOnce(t, a, 0)
		if completed == messages {
			t.Fatal("all messages completed although nobody receives: nothing holds the sender back")
		}
		told := 0
		for told < messages {
			n, err := b.qp.PostRecv([]ibverbx.RecvWR{{WRID: uint64(told)}})
			if n == 0 && err != verbs.ErrQueueFull { //nolint:errorlint // it must come bare
				t.Fatal(err)
			}
			for {
				completed += pollOnce(t, a, completed)
				wcs := poll(t, b)
				for _, wc := range wcs {
					if wc.Status != verbs.StatusSuccess || wc.WRID != uint64(told) || (wc.Flags&ibverbx.WCHasImm != 0 && wc.Imm != uint32(told)) {
						t.Fatalf("message %d = %+v; %v, %v", told, wc, a.qp.Err(), b.qp.Err())
					}
					told++
				}
				if len(wcs) > 0 {
					break
				}
			}
		}
		for completed < messages {
			completed += pollOnce(t, a, completed)
			poll(t, b)
		}
	})
}

// TestMessages: SENDs and data receives beside notifications: two queues that do not
// disturb each other (G5), and a SEND that finds the WRITEs before it done.
func TestMessages(t *testing.T) {
	each(t, 4, func(t *testing.T, scheme ibverbx.Scheme, links func() []softnic.Link) {
		a, b := hostPair(t, links(), ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 1000})
		local, remote, inbox := a.region(8192), b.region(8192), b.region(64*64)
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
			if n, err := b.qp.PostRecv([]ibverbx.RecvWR{recv, {WRID: 11}}); n != 2 {
				t.Fatal(err)
			}
			if n, err := a.qp.PostSend([]ibverbx.SendWR{write, notify, send}); n != 3 {
				t.Fatal(err)
			}
			var got []ibverbx.WC
			done := 0
			for len(got) < 2 || done == 0 {
				for _, wc := range poll(t, a) {
					if err := wc.Err(); err != nil || wc.WRID != 3 {
						t.Fatalf("completion %+v, %v", wc, err)
					}
					done++
				}
				got = append(got, poll(t, b)...)
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

// TestAtomics: they stay on one rail, in order with what was posted before them.
func TestAtomics(t *testing.T) {
	a, b := hostPair(t, memoryLinks(2), ibverbx.Config{Lanes: 4})
	result, counter := a.region(8), b.region(8)
	const adds = 50
	for i := range adds {
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled, CompareAdd: 3, Remote: counter.Remote()}
		wr.SetSGE(result.SGE(0, 8))
		if n, err := a.qp.PostSend([]ibverbx.SendWR{wr}); n != 1 {
			t.Fatal(err)
		}
		if wc := a.wait(1)[0]; wc.Err() != nil || wc.Opcode != verbs.WCFetchAdd {
			t.Fatalf("completion = %+v", wc)
		}
		if got := binary.NativeEndian.Uint64(result.Bytes()); got != uint64(3*i) {
			t.Fatalf("addition %d returned %d, want %d", i, got, 3*i)
		}
	}
	if got := binary.NativeEndian.Uint64(counter.Bytes()); got != 3*adds {
		t.Errorf("counter = %d, want %d", got, 3*adds)
	}
}
