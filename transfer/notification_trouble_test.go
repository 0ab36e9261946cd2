package transfer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ibverbx/cuda/cudatest"
	"ibverbx/softnic"
)

// troubles are the disturbances of a pair while it sends notifications.
var troubles = map[string]func(p *pair, i int){
	"lanes": func(p *pair, i int) {
		h := []*host{p.here, p.there}[i%2]
		lanes := p.peer.Node().Stats().QP.Lanes
		if i%2 == 1 {
			lanes = p.back.Node().Stats().QP.Lanes
		}
		if len(lanes) == 0 || i > 8 {
			return
		}
		l := lanes[rand.IntN(len(lanes))]
		_ = h.nics[l.Rail].FailQP(l.QPN) // it may be closed already
	},
	"NICs": func(p *pair, i int) {
		h := []*host{p.here, p.there}[i/2%2]
		switch {
		case i >= 8:
		case i%2 == 0:
			h.nics[i/4%2].Fail()
		default:
			h.nics[i/4%2].Recover()
		}
	},
	"sessions": func(p *pair, i int) {
		if i == 1 || i == 20 { // the time between attempts doubles
			lose([]*Peer{p.peer, p.back}[i%2])
		}
	},
}

// TestNotifyAcrossTrouble: every notification arrives once, in order and after its block, whatever fails
// meanwhile.
func TestNotifyAcrossTrouble(t *testing.T) { acrossTrouble(t, nil) }

// TestGPUAcrossTrouble is TestNotifyAcrossTrouble with blocks of a GPU at both sides.
func TestGPUAcrossTrouble(t *testing.T) { acrossTrouble(t, cudatest.Open(t)) }

func acrossTrouble(t *testing.T, d device) {
	lossy := softnic.Impairment{Loss: 0.002, Reorder: 0.01, Duplicate: 0.001, Delay: 20 * time.Microsecond}
	for link, network := range map[string]func() *network{
		"memory":  func() *network { return memoryNetwork(2) },
		"fault":   func() *network { return faultNetwork(t, 2, lossy) },
		"wrapped": func() *network { return faultNetwork(t, 2, lossy).wrap() },
	} {
		for what, disturb := range troubles {
			t.Run(fmt.Sprintf("%s/%s", link, what), func(t *testing.T) {
				p := newPairOn(t, network(), 1<<20, d, d)
				steadyNotes(t, p, 300, func(i int) { disturb(p, i) })
			})
		}
	}
}

// TestNotifyAcrossRestarts restarts both sides alternately while notifications are sent. A process gets only
// notifications meant for it, from the first one on, once, in order and after their blocks. A notification
// acknowledged to the sender is lost only if the receiver was restarted. The sender closes its Engine before
// it exits, because notifications of a killed process may be lost.
func TestNotifyAcrossRestarts(t *testing.T) {
	for link, network := range map[string]func() *network{
		"memory":  func() *network { return memoryNetwork(2) },
		"wrapped": func() *network { return faultNetwork(t, 2, softnic.Impairment{Loss: 0.001}).wrap() },
	} {
		t.Run(link, func(t *testing.T) {
			n := network()
			a, b := n.start(t, hostConfig{name: "a"}), n.start(t, hostConfig{name: "b"})
			for round := range 4 {
				receiver := round%2 == 1 // is restarted in this round
				sent, got := roundOfNotes(t, a, b, round, func() (more bool) {
					if receiver {
						b = b.restart()
					} else {
						a = a.startAgain()
					}
					return !receiver
				})
				if !receiver && got < sent {
					t.Errorf("round %d: %d notifications came, want those %d that were sent before the restart", round, got, sent)
				}
			}
		})
	}
}

// roundOfNotes sends notifications from a to b and calls restart after some of them, which reports whether
// more may arrive. It returns the number acknowledged to the sender and the number received.
func roundOfNotes(t *testing.T, a, b *host, round int, restart func() (more bool)) (sent, got int) {
	t.Helper()
	const size, count = 64, 200
	target, local := b.alloc(fmt.Sprint("target ", round), count*size, Read|Write), a.alloc("", count*size, 0)
	p := a.to(b)
	remote := open2(t, p, target.Name(), Write)
	for i := range count {
		fill(local.Bytes()[i*size:][:size], uint64(i)) // now, because the memory is freed with its process
	}
	body := func(i int) string { return fmt.Sprintf("round %d note %d", round, i) }
	done := make(chan int, 1)
	go func() {
		arrived := 0
		for i := range count {
			b := p.Batch().Put(remote.At(int64(i*size)), local.Slice(int64(i*size), size)).Notify([]byte(body(i)))
			if b.Do(soon(t)) != nil {
				break
			}
			arrived++
		}
		done <- arrived
	}()
	want := make([]byte, size)
	take := func(i int, wait time.Duration) bool {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		note, err := b.Recv(ctx)
		if err != nil {
			return false
		}
		if string(note.Body) != body(i) || note.Seq != uint64(i) {
			t.Fatalf("got %q with number %d, want %q with number %d", note.Body, note.Seq, body(i), i)
		}
		fill(want, uint64(i))
		wantSame(t, "the block of a notification", target.Bytes()[i*size:][:size], want)
		return true
	}
	for got < count/2 && take(got, time.Minute) {
		got++
	}
	more := restart()
	for sent = <-done; more && got < sent && take(got, time.Minute); {
		got++
	}
	for more && take(got, 20*time.Millisecond) { // the last one may not have been acknowledged
		got++
	}
	return sent, got
}
