package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx"
	"ibverbx/internal/closer"
	"ibverbx/internal/live"
	"ibverbx/verbs"
)

const (
	demoSize  = 256 << 10 // bytes of a message
	demoDepth = 16        // messages in flight
	// demoDeadline is how long both cables may be out before the transfer fails.
	demoDeadline = time.Hour
	demoSample   = 100 * time.Millisecond
	// demoIdle is how long the transfer sleeps when nothing has come.
	demoIdle = 100 * time.Microsecond
)

// demoTransfer writes messages from one end of a fabric to the other and compares every byte. One goroutine runs it.
type demoTransfer struct {
	ends    [2]demoEnd // the sender and the receiver
	sample  *sampler
	now     func() time.Duration // time since the start
	closers closer.Stack

	posted   uint64 // messages that were posted
	sent     uint64 // of these, completed at the sender
	arrived  uint64 // of these, notified at the receiver, and right
	want     []byte // the message that is expected
	postedAt [demoDepth]time.Duration
	times    []float64 // how long messages took since the last sample, in microseconds
	wcs      [demoDepth]ibverbx.WC
}

// demoEnd is one end of the transfer. Message n is in place n%demoDepth of its memory.
type demoEnd struct {
	rails  *ibverbx.Rails
	cq     *ibverbx.VirtualCQ
	qp     *ibverbx.VirtualQP
	region *ibverbx.Region
	events [16]ibverbx.Event
}

// place is the memory of a message.
func (e *demoEnd) place(message uint64) []byte {
	at := message % demoDepth * demoSize
	return e.region.Bytes()[at : at+demoSize]
}

// newTransfer connects the two ends of a fabric. The caller closes the transfer, also after an error.
func newTransfer(f *fabric, rec *live.Record) (t *demoTransfer, err error) {
	start := time.Now()
	t = &demoTransfer{now: func() time.Duration { return time.Since(start) }, want: make([]byte, demoSize)}
	var cards [2]*ibverbx.Card
	var controls [2]ibverbx.Control
	controls[0], controls[1] = ibverbx.ControlPair()
	for i := range t.ends {
		if cards[i], err = t.open(&t.ends[i], f.ends[i], controls[i]); err != nil {
			return t, err
		}
	}
	for i := range t.ends {
		if err := t.ends[i].qp.Connect(cards[1-i]); err != nil {
			return t, err
		}
	}
	for range demoDepth {
		if _, err := t.ends[1].qp.PostRecv([]ibverbx.RecvWR{{}}); err != nil {
			return t, err
		}
	}
	t.sample = newSampler(rec, f.railContexts(), t.ends[0].qp.Stats().Lanes)
	t.sample.faults = f.faults
	return t, nil
}

// open makes the memory and the VirtualQP of an end.
func (t *demoTransfer) open(e *demoEnd, rails []ibverbx.RailConfig, control ibverbx.Control) (card *ibverbx.Card, err error) {
	if e.rails, err = ibverbx.NewRails(rails...); err != nil {
		return nil, err
	}
	t.closers.Add(e.rails.Close)
	mem, err := verbs.AllocMemory(demoDepth*demoSize, nil)
	if err != nil {
		return nil, err
	}
	t.closers.Add(mem.Free)
	if e.region, err = e.rails.Register(mem, verbs.AccessAll); err != nil {
		return nil, err
	}
	t.closers.Add(e.region.Close)
	if e.cq, err = e.rails.NewCQ(ibverbx.CQConfig{}); err != nil {
		return nil, err
	}
	t.closers.Add(e.cq.Close)
	// A lane is chosen by its speed: rails do not stay equal here.
	cfg := ibverbx.Config{Policy: ibverbx.TwoChoices, Control: control, Deadline: demoDeadline, SendDepth: demoDepth, RecvDepth: demoDepth}
	if e.qp, err = e.cq.NewQP(cfg); err != nil {
		return nil, err
	}
	t.closers.Add(e.qp.Close)
	return e.qp.Card()
}

// run transfers until ctx ends. each is called after every sample, and returns whether that was the last.
func (t *demoTransfer) run(ctx context.Context, each func(at time.Duration) (more bool, err error)) error {
	for due := demoSample; ctx.Err() == nil; {
		moved, err := t.step()
		if err != nil {
			return err
		}
		now := t.now()
		if now >= due {
			due = now - now%demoSample + demoSample
			t.take(now)
			if more, err := each(now); err != nil || !more {
				return err
			}
		}
		if !moved {
			time.Sleep(demoIdle)
		}
	}
	return nil
}

// step posts what there is room for and takes what has come. moved says that something has.
func (t *demoTransfer) step() (moved bool, err error) {
	for t.posted < min(t.sent, t.arrived)+demoDepth {
		if err := t.post(); err != nil {
			return false, err
		}
	}
	for i := range t.ends {
		e := &t.ends[i]
		n, err := e.cq.Poll(t.wcs[:])
		for k := range t.wcs[:n] {
			if err == nil {
				err = t.complete(i, &t.wcs[k])
			}
		}
		if err != nil {
			return false, errors.Join(err, e.qp.Err())
		}
		for e.cq.Events(e.events[:]) > 0 {
			continue // the sampler sees what happened to the lanes
		}
		moved = moved || n > 0
	}
	return moved, nil
}

// post writes the next message. Its number is its immediate.
func (t *demoTransfer) post() error {
	m := t.posted
	fillMessage(t.ends[0].place(m), m)
	wr := ibverbx.SendWR{
		WRID: m, Opcode: verbs.OpRDMAWriteWithImm, Imm: uint32(m), Flags: verbs.SendSignaled,
		Remote: t.ends[1].region.Remote(), RemoteOffset: m % demoDepth * demoSize,
	}
	wr.SetSGE(t.ends[0].region.SGE(m%demoDepth*demoSize, demoSize))
	t.postedAt[m%demoDepth] = t.now()
	if _, err := t.ends[0].qp.PostSend([]ibverbx.SendWR{wr}); err != nil {
		return err
	}
	t.posted++
	return nil
}

// complete takes a completion of an end. Each message must complete once and in order at both ends, and be right.
func (t *demoTransfer) complete(end int, wc *ibverbx.WC) error {
	if err := wc.Err(); err != nil {
		return err
	}
	if end == 0 {
		if wc.WRID != t.sent {
			return fmt.Errorf("message %d completed at the sender instead of message %d", wc.WRID, t.sent)
		}
		t.sent++
		return nil
	}
	if wc.Imm != uint32(t.arrived) || wc.ByteLen != demoSize {
		return fmt.Errorf("message %d of %d bytes arrived instead of message %d of %d", wc.Imm, wc.ByteLen, uint32(t.arrived), demoSize)
	}
	if err := compareMessage(t.ends[1].place(t.arrived), t.want, t.arrived); err != nil {
		return err
	}
	t.times = append(t.times, float64(t.now()-t.postedAt[t.arrived%demoDepth])/1e3)
	t.arrived++
	_, err := t.ends[1].qp.PostRecv([]ibverbx.RecvWR{{}})
	return err
}

// take adds a sample.
func (t *demoTransfer) take(at time.Duration) {
	s := live.Sample{Messages: int64(t.arrived), Bytes: int64(t.arrived) * demoSize}
	if n := len(t.times); n > 0 {
		slices.Sort(t.times)
		s.P50, s.P99 = t.times[n/2], t.times[n*99/100]
	}
	t.times = t.times[:0]
	t.sample.take(at, s, t.ends[0].qp.Stats().Lanes)
}

// fillMessage fills b with the bytes of a message. No two messages share a word, and no two words of a message are equal.
func fillMessage(b []byte, message uint64) {
	word := message << 20
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], word*0x9e3779b97f4a7c15) // odd: the product is different for every word
		word++
	}
}

// compareMessage compares all bytes of a message. want is memory for what is expected.
func compareMessage(got, want []byte, message uint64) error {
	fillMessage(want, message)
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d of message %d is %#02x, want %#02x", i, message, got[i], want[i])
		}
	}
	return nil
}
