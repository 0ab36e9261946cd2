package stream

import (
	"context"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"ibverbx"
	"ibverbx/internal/service"
)

// stage is a session that records being closed and discards sent messages.
type stage struct {
	service.Session
	ended bool
}

func (s *stage) End(error)                                      { s.ended = true }
func (s *stage) Send(context.Context, service.ID, []byte) error { return nil }

// TestHostilePeer feeds a host almost valid messages and immediates in any order. It must not panic, memory
// stays below its limit, and all resources are released when the session is closed.
func TestHostilePeer(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing, Memory: 16 * MinRing, Backlog: 4})
	mine, _ := p.dial(t)
	ring := mine.block.grant() // the host writes only there
	h, err := serviceOf(p.there.Node)
	wantOK(t, "hostOf", err)
	victim := h.All()[0]
	victim.Mu.Lock()
	session := victim.Session
	victim.Mu.Unlock()
	var next *peer // the one that h knows instead of victim
	h.Init(service.StreamID, func(service.Peer) *peer { return next })
	know := func(p *peer) {
		next = p
		h.Clear()
		h.Of(victim.service)
	}
	rapid.Check(t, func(rt *rapid.T) {
		s := &stage{Session: session}
		fresh := h.newPeer(victim.service)
		wantOK(t, "Up", fresh.Up(s, nil))
		know(fresh)
		actors := &actors{rt: rt, h: h, s: s, p: fresh, ring: ring, l: p.l.(*Listener)}
		for !s.ended && actors.step() {
		}
		if used := h.reserved(); used > 32*MinRing { // including victim's
			rt.Errorf("rings have %d bytes", used)
		}
		fresh.Down(s, errors.New("the end"))
		actors.closeAll()
		fresh.Gone(errors.New("gone"), false)
		know(victim)
		eventually(t, "all streams but one are gone", func() bool { return NodeStats(h.node).Streams == 1 })
	})
}

// actors are a false peer and the program that uses its streams.
type actors struct {
	rt    *rapid.T
	h     *streamService
	s     *stage
	p     *peer
	ring  ibverbx.RemoteRegion
	l     *Listener
	conns []*Conn
}

// id returns the id of an existing stream, or another one.
func (a *actors) id() uint16 {
	if len(a.conns) > 0 && rapid.Bool().Draw(a.rt, "known") {
		return rapid.SampledFrom(a.conns).Draw(a.rt, "stream").id
	}
	return rapid.Uint16().Draw(a.rt, "id")
}

// step does one thing. It reports false at the end.
func (a *actors) step() bool {
	switch rapid.IntRange(0, 49).Draw(a.rt, "action") {
	case 0:
		return false
	case 1:
		a.h.Message(a.s, rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(a.rt, "bytes"))
	case 2, 3, 4, 5, 6:
		a.h.Message(a.s, (&open{rapid.Uint16Range(0x100, 0xffff).Draw(a.rt, "from"), a.ring, "test"}).encode())
		if len(a.l.queue) > 0 {
			a.conns = append(a.conns, <-a.l.queue)
		}
	case 7, 8, 9, 10, 11:
		d := data{id: a.id(), end: rapid.Bool().Draw(a.rt, "end"), cut: rapid.Bool().Draw(a.rt, "cut")}
		d.cut = d.cut && d.end
		length := rapid.OneOf(rapid.Uint32Range(0, 100), rapid.Uint32Range(0, MinRing/2), rapid.Uint32()).Draw(a.rt, "length")
		a.h.Immediate(a.s, d.encode(), length)
	case 12, 13:
		c := credit{a.id(), rapid.Bool().Draw(a.rt, "stop"), rapid.Uint32Range(0, countMask).Draw(a.rt, "count")}
		a.h.Immediate(a.s, c.encode(), 0)
	case 14:
		class := rapid.SampledFrom([]uint8{classData, classCredit}).Draw(a.rt, "class")
		a.h.Immediate(a.s, service.Immediate(class, rapid.Uint32().Draw(a.rt, "argument")), 0)
	case 15:
		answer := []encoder{&accept{to: a.id(), from: a.id(), ring: a.ring}, &refuse{a.id(), codeBusy, "no"}}
		a.h.Message(a.s, rapid.SampledFrom(answer).Draw(a.rt, "answer").encode())
	case 16, 17, 18:
		if n := len(a.conns); n > 0 {
			c := a.conns[n-1]
			a.conns = a.conns[:n-1]
			c.abandon()
		}
	default:
		a.use()
	}
	return true
}

// use reads or writes as much as possible without blocking.
func (a *actors) use() {
	if len(a.conns) == 0 {
		return
	}
	c := rapid.SampledFrom(a.conns).Draw(a.rt, "used")
	c.mu.Lock()
	unread, free := c.in.tail-c.in.head, len(c.out.ring)-int(c.out.tail-c.out.done)
	c.mu.Unlock()
	if n := rapid.IntRange(1, MinRing).Draw(a.rt, "bytes"); n <= free {
		_, _ = c.Write(make([]byte, n))
	}
	if unread > 0 {
		_, _ = c.Read(make([]byte, rapid.IntRange(1, MinRing).Draw(a.rt, "read")))
	}
}

func (a *actors) closeAll() {
	for _, c := range a.conns {
		_ = c.Close()
	}
	for len(a.l.queue) > 0 {
		_ = (<-a.l.queue).Close()
	}
}
