package traffic_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// duplex is one side of two that send to each other.
type duplex struct {
	*enginetest.Host
	sender, messages, slot int
	local                  *ibverbx.Region // source, a slot for each message
	target                 *ibverbx.Region // target of the peer's WRITEs
	inbox                  *ibverbx.Region // target of the peer's SENDs
	remote                 *ibverbx.RemoteRegion
	over                   *atomic.Bool // one side has failed: the other stops

	posted, completed int
	delivered, taken  []int  // received messages, notified and sent
	recvs, due        [2]int // receives posted and messages expected, by kind
}

func newDuplex(h *enginetest.Host, sender, messages, slot int) *duplex {
	d := &duplex{Host: h, sender: sender, messages: messages, slot: slot}
	d.local, d.target, d.inbox = h.Region(messages*slot), h.Region(messages*slot), h.Region(messages*slot)
	for i := range messages {
		enginetest.Stamp(d.local.Bytes()[i*slot:][:slot], sender, i)
		d.due[duplexKind(1-sender, i)]++
	}
	return d
}

// duplexKind returns whether message i is a WRITE_WITH_IMM (0) or a SEND_WITH_IMM (1). Both
// sides know.
func duplexKind(sender, i int) int { return (i*7 + sender) % 3 / 2 }

// length returns the length of message i in bytes. Both sides know.
func (d *duplex) length(sender, i int) int { return 1 + (i*977+sender*31)%d.slot }

// run sends all messages and receives all of the peer's, in its own goroutine.
func (d *duplex) run() error {
	var p stallGuard
	var wcs [32]ibverbx.WC
	for !d.over.Load() && (d.completed < d.messages || len(d.delivered) < d.due[0] || len(d.taken) < d.due[1]) {
		if err := d.postReceives(); err != nil {
			return err
		}
		if err := d.postSend(); err != nil {
			return err
		}
		n, err := d.CQ.Poll(wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:n] {
			if err := d.checkCompletion(&wcs[i]); err != nil {
				return err
			}
		}
		if n == 0 {
			yield()
		}
		if err := p.step(n > 0); err != nil {
			return fmt.Errorf("side %d: %w: %d posted, %d completed, %d delivered, %d taken; %w",
				d.sender, err, d.posted, d.completed, len(d.delivered), len(d.taken), d.QP.Err())
		}
	}
	return nil
}

// postReceives keeps both queues of receives full. IDs: sends count from 0, notification
// receives from 1<<32, data receives from 2<<32.
func (d *duplex) postReceives() error {
	for kind := range d.recvs {
		for d.recvs[kind] < d.due[kind] {
			nth := d.recvs[kind]
			wr := ibverbx.RecvWR{WRID: uint64(kind+1)<<32 | uint64(nth)}
			if kind == 1 {
				wr.SetSGE(d.inbox.SGE(uint64(nth*d.slot), uint32(d.slot)))
			}
			n, err := d.QP.PostRecv([]ibverbx.RecvWR{wr})
			d.recvs[kind] += n
			if errors.Is(err, verbs.ErrQueueFull) {
				break
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *duplex) postSend() error {
	if d.posted == d.messages {
		return nil
	}
	i := d.posted
	wr := ibverbx.SendWR{
		WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(i),
		Remote: d.remote, RemoteOffset: uint64(i * d.slot),
	}
	if duplexKind(d.sender, i) == 1 {
		wr.Opcode = verbs.OpSendWithImm
	}
	wr.SetSGE(d.local.SGE(uint64(i*d.slot), uint32(d.length(d.sender, i))))
	n, err := d.QP.PostSend([]ibverbx.SendWR{wr})
	d.posted += n
	if err != nil && !errors.Is(err, verbs.ErrQueueFull) {
		return err
	}
	return nil
}

// checkCompletion checks a completion of either kind.
func (d *duplex) checkCompletion(wc *ibverbx.WC) error {
	if err := wc.Err(); err != nil {
		return err
	}
	switch wc.WRID >> 32 {
	case 0:
		if wc.WRID != uint64(d.completed) {
			return fmt.Errorf("side %d: completion of request %d, want %d", d.sender, wc.WRID, d.completed)
		}
		d.completed++
		return nil
	case 1:
		i := d.next(d.delivered, 0)
		d.delivered = append(d.delivered, i)
		return d.check(wc, i, len(d.delivered)-1, d.target.Bytes()[i*d.slot:])
	}
	i := d.next(d.taken, 1)
	d.taken = append(d.taken, i)
	return d.check(wc, i, len(d.taken)-1, d.inbox.Bytes()[(len(d.taken)-1)*d.slot:])
}

// next returns the next message of a kind that the peer must send.
func (d *duplex) next(came []int, kind int) int {
	i := 0
	if len(came) > 0 {
		i = came[len(came)-1] + 1
	}
	for duplexKind(1-d.sender, i) != kind {
		i++
	}
	return i
}

func (d *duplex) check(wc *ibverbx.WC, i, nth int, at []byte) error {
	n := d.length(1-d.sender, i)
	if uint32(wc.WRID) != uint32(nth) {
		return fmt.Errorf("side %d: receive %d of its kind ended as number %d", d.sender, uint32(wc.WRID), nth)
	}
	if wc.Flags&ibverbx.WCHasImm != 0 && wc.Imm != uint32(i) {
		return fmt.Errorf("side %d: immediate %d, want %d", d.sender, wc.Imm, i)
	}
	if wc.Flags&ibverbx.WCHasLength != 0 && wc.ByteLen != uint32(n) {
		return fmt.Errorf("side %d: message %d of %d bytes, want %d", d.sender, i, wc.ByteLen, n)
	}
	if !bytes.Equal(at[:n], enginetest.Stamped(n, 1-d.sender, i)) {
		return fmt.Errorf("side %d: message %d did not arrive as it was sent", d.sender, i)
	}
	return nil
}

// TestBothDirections: two sides, each in its own goroutine, concurrently send each other alternating notified
// WRITEs and SENDs.
func TestBothDirections(t *testing.T) {
	const messages, slot = 300, 6000
	each(t, 5, func(t *testing.T, scheme ibverbx.Scheme, links func() []softnic.Link) {
		a, b := enginetest.NewPair(t, links(), ibverbx.Config{Lanes: 5, Scheme: scheme, FragmentSize: 1000, SendDepth: 64})
		sides := [2]*duplex{newDuplex(a, 0, messages, slot), newDuplex(b, 1, messages, slot)}
		sides[0].remote, sides[1].remote = sides[1].target.Remote(), sides[0].target.Remote()
		done, over := make(chan error, len(sides)), new(atomic.Bool)
		for _, d := range sides {
			d.over = over
			go func() { done <- d.run() }()
		}
		for range sides {
			if err := <-done; err != nil {
				over.Store(true)
				t.Error(err)
			}
		}
	})
}
