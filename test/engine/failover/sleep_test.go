package failover_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// asleep runs a test in a time that stands still while any goroutine runs. synctest.Wait returns when all
// programs sleep, so no time has passed by then.
func asleep(t *testing.T, test func(t *testing.T)) { synctest.Test(t, test) }

// TestPortEventWakesSleepers: a port goes down while all programs sleep. Every VirtualCQ on the NIC is woken
// immediately: two of one Rails and one of a fork.
func TestPortEventWakesSleepers(t *testing.T) {
	asleep(t, func(t *testing.T) {
		links := enginetest.MemoryLinks(2)
		a := enginetest.NewRails(t, links)
		fork, err := a.Rails.Fork()
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, fork.Close()) })
		here := []*enginetest.Host{a, enginetest.NewOn(t, a.Rails), enginetest.NewOn(t, fork)}
		for _, h := range here {
			there := enginetest.NewRails(t, links)
			connectSleepers(t, h, there, ibverbx.Config{Lanes: 4})
			serve(t, h)
			serve(t, there)
		}
		synctest.Wait()
		a.NICs[0].SetPort(false)
		synctest.Wait()
		for i, h := range here {
			if out := h.QP.Stats().Out; out < 2 {
				t.Errorf("user %d sleeps on: %d lanes are out of service, want at least 2", i, out)
			}
		}
		a.NICs[0].SetPort(true)
		time.Sleep(10 * time.Second)
		for i, h := range here {
			if out := h.QP.Stats().Out; out != 0 {
				t.Errorf("user %d: %d lanes are out of service 10 s after the port came back, want none", i, out)
			}
		}
	})
}

// connectSleepers connects a VirtualQP of each host, with a Control, and a VirtualCQ that can sleep.
func connectSleepers(t *testing.T, a, b *enginetest.Host, cfg ibverbx.Config) {
	t.Helper()
	var ends [2]ibverbx.Control
	ends[0], ends[1] = ibverbx.ControlPair()
	for i, h := range []*enginetest.Host{a, b} {
		h.NewCQ(ibverbx.CQConfig{Waker: verbs.NewWaker()})
		cfg.Control = ends[i]
		h.NewQP(cfg)
	}
	enginetest.Connect(t, a.QP, b.QP)
}

// TestControlWakesSleeper: a lane is lost at the peer. The Control wakes a sleeping program immediately.
func TestControlWakesSleeper(t *testing.T) {
	asleep(t, func(t *testing.T) {
		links := enginetest.MemoryLinks(1)
		a, b := enginetest.NewRails(t, links), enginetest.NewRails(t, links)
		connectSleepers(t, a, b, ibverbx.Config{Lanes: 2})
		serve(t, a)
		synctest.Wait()
		enginetest.Must(t, b.QP.KillLane(0))
		for s := "up"; s == "up" || s == "dying"; s = b.QP.Stats().Lanes[0].State {
			b.Poll() // until the peer is notified
		}
		synctest.Wait()
		if out := a.QP.Stats().Out; out != 1 {
			t.Errorf("%d lanes are out of service, want 1", out)
		}
	})
}

// TestDeadlineEndsSleep: responses never arrive. A sleeping program is woken when its request's deadline has
// passed, and not much later. One without requests is never woken.
func TestDeadlineEndsSleep(t *testing.T) {
	asleep(t, func(t *testing.T) {
		links := enginetest.MemoryLinks(1)
		a, b := enginetest.NewRails(t, links), enginetest.NewRails(t, links)
		connectSleepers(t, a, b, ibverbx.Config{Lanes: 2, Deadline: 3 * time.Second})
		wr := ibverbx.SendWR{WRID: 7, Opcode: verbs.OpSend, Flags: verbs.SendSignaled} // without a receive it waits
		wr.SetSGE(a.Region(8).SGE(0, 8))
		a.PostSend(wr)
		start := time.Now()
		var wcs [1]ibverbx.WC
		n, err := a.CQ.Wait(t.Context(), wcs[:])
		if n != 1 || err != nil || !errors.Is(a.QP.Err(), ibverbx.ErrDeadline) {
			t.Errorf("Wait = %d, %v, and Err = %v; want a completion and %v", n, err, a.QP.Err(), ibverbx.ErrDeadline)
		}
		if took := time.Since(start); took < 3*time.Second || took > 3*time.Second+100*time.Millisecond {
			t.Errorf("Wait took %v, want 3 s", took)
		}
	})
}

// counted is a Control and a clock that count their calls.
type counted struct {
	ibverbx.Control
	recvs, reads int
}

func (c *counted) Recv(b []byte) (int, error) {
	c.recvs++
	return c.Control.Recv(b)
}

func (c *counted) now() int64 {
	c.reads++
	return int64(c.reads)
}

// TestIdleSessionCostsNoPoll: an empty poll skips idle VirtualQPs: it checks neither their Control nor the
// clock. It checks one whose Control has a message.
func TestIdleSessionCostsNoPoll(t *testing.T) {
	h := enginetest.NewRailsOn(t, ibverbx.RailConfig{Context: nullnic.New("null0", 0x11)})
	h.NewCQ(ibverbx.CQConfig{})
	var all [8]counted
	var far [8]ibverbx.Control
	for i := range all {
		all[i].Control, far[i] = ibverbx.ControlPair()
		q := h.NewQP(ibverbx.Config{Lanes: 2, Control: &all[i], Now: all[i].now})
		card, err := q.Card()
		enginetest.Must(t, err)
		enginetest.Must(t, q.Connect(card))
	}
	counts := func() (s string) {
		for i := range all {
			s += fmt.Sprintf("%d %d, ", all[i].recvs, all[i].reads)
		}
		return s
	}
	h.Poll()
	before := counts()
	for range 200 {
		h.Poll()
	}
	if after := counts(); after != before {
		t.Errorf("200 empty polls asked Controls and clocks: %s; before: %s", after, before)
	}
	was := all[5].recvs
	enginetest.Must(t, far[5].Send([]byte("not a message")))
	h.Poll()
	if all[5].recvs == was || h.CQ.Stats().Unknown != 0 {
		t.Errorf("a datagram has come, and the Control was asked %d times", all[5].recvs-was)
	}
}

// TestMarksOfManyGoroutines: Controls wake their VirtualQPs from many goroutines while the program waits. No
// message is missed.
func TestMarksOfManyGoroutines(t *testing.T) {
	const sessions, rounds = 8, 50
	h := enginetest.NewRailsOn(t, ibverbx.RailConfig{Context: nullnic.New("null0", 0x11)})
	h.NewCQ(ibverbx.CQConfig{Waker: verbs.NewWaker()})
	var far [sessions]ibverbx.Control
	var qps [sessions]*ibverbx.VirtualQP
	for i := range qps {
		var near ibverbx.Control
		near, far[i] = ibverbx.ControlPair()
		qps[i] = h.NewQP(ibverbx.Config{Lanes: 2, Control: near})
		card, err := qps[i].Card()
		enginetest.Must(t, err)
		enginetest.Must(t, qps[i].Connect(card))
	}
	stop := serve(t, h)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, sessions)
	for i := range qps {
		go func() {
			for round := range uint64(rounds) {
				err := far[i].Send([]byte("not a message")) // it is counted as an error
				for err == nil && qps[i].Stats().ControlErrors <= round {
					if err = ctx.Err(); err == nil {
						time.Sleep(time.Microsecond)
					}
				}
				if err != nil {
					done <- fmt.Errorf("session %d, round %d: %w", i, round, err)
					return
				}
			}
			done <- nil
		}()
	}
	for range qps {
		enginetest.Must(t, <-done)
	}
	stop()
}
