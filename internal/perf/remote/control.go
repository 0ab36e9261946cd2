package remote

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"ibverbx"
	"ibverbx/internal/perf/measure"
)

const (
	// passiveSleep is the sleep of a side that only grants access to its memory.
	passiveSleep = 2 * time.Millisecond
	// quietSleep is the sleep of a side that waits for a message.
	quietSleep = 200 * time.Microsecond
	// progressEvery is the interval of signs of life.
	progressEvery = time.Second
	// silenceTimeout limits the time without any message from the remote side.
	silenceTimeout = 90 * time.Second
	// resultTimeout limits the wait for the result of a remote side that has closed its VirtualQP.
	resultTimeout = 10 * time.Second
	// reasonTimeout limits the wait for the reason of a remote side that has closed its VirtualQP.
	reasonTimeout = 3 * time.Second
)

// control exchanges the control messages of a run. One goroutine reads messages; the goroutine of the run does all else.
type control struct {
	ctx      context.Context // done when nothing may be sent any longer
	remote   Remote
	run      *measure.SizeRun
	messages chan received
	ended    chan struct{} // closed when the reader has ended
	timer    *time.Timer
	every    time.Duration // between two signs of life
	sentAt   time.Duration // of the last sign of life
	heardAt  time.Duration // of the last message from the remote side

	waiting    bool             // this side can only continue after a message
	finished   bool             // this side has sent its last message of the run
	started    bool             // the remote side has posted its receives
	remoteDone bool             // the remote side will send no more data
	remoteSent int64            // data messages that it has sent; valid if remoteDone
	pending    *controlMessage  // a requested comparison whose data has not arrived
	asked      *controlMessage  // this side's outstanding request
	answer     *controlMessage  // the response to asked
	theirs     *measure.Outcome // nil until the remote side's last message
}

// received is a message from the remote side, or the reason why there are no more.
type received struct {
	controlMessage
	err error
}

// Control implements measure.Peer.
func (s *session) Control(ctx context.Context, r *measure.SizeRun) (measure.Control, func() error) {
	c := &control{
		ctx: ctx, remote: s.Remote, run: r, messages: make(chan received, 64), ended: make(chan struct{}),
		timer: time.NewTimer(time.Hour), every: s.every, heardAt: r.Now(),
	}
	ctx, cancel := context.WithCancel(ctx)
	go c.read(ctx)
	return c, func() error {
		cancel()
		<-c.ended
		return nil
	}
}

// read receives messages until the last one of the run, an error, or the end of ctx.
func (c *control) read(ctx context.Context) {
	defer close(c.ended)
	for {
		var m received
		b, err := c.remote.Recv(ctx)
		if err == nil {
			err = decode(b, &m.controlMessage)
		}
		if err == nil {
			err = m.check()
		}
		m.err = err
		select {
		case c.messages <- m: // even if ctx is done: the run must see the error
		default:
			select {
			case c.messages <- m:
			case <-ctx.Done():
				return
			}
		}
		if m.err != nil || m.Kind == kindOver {
			return
		}
	}
}

func (c *control) send(m *controlMessage) error { return send(c.ctx, c.remote, m) }

// Attend implements measure.Control.
func (c *control) Attend(now time.Duration) error {
	if err := c.poll(); err != nil {
		return err
	}
	if now-c.sentAt >= c.every && !c.finished {
		c.sentAt = now
		if err := c.send(&controlMessage{Kind: kindProgress}); err != nil {
			return err
		}
	}
	if now-c.heardAt > silenceTimeout {
		return fmt.Errorf("no message about the test from the remote side for %v", silenceTimeout)
	}
	return nil
}

// poll handles one message, if there is one, and a pending comparison whose data has arrived.
func (c *control) poll() error {
	select {
	case m := <-c.messages:
		if err := c.handle(&m); err != nil {
			return err
		}
	default:
	}
	if p := c.pending; p != nil && c.run.Arrived(p.First+p.N) {
		c.pending = nil
		return c.send(&controlMessage{Kind: kindAnswer, Text: brief(c.run.Compare(p.First, p.N))})
	}
	return nil
}

// Rest implements measure.Control. A waiting side sleeps until a message arrives or a short time has passed: spinning would
// keep Go's scheduler from polling the network, and messages would take ten milliseconds.
func (c *control) Rest() error {
	if err := c.poll(); err != nil {
		return err
	}
	passive := c.run.Passive()
	if !c.waiting && !passive {
		runtime.Gosched()
		return nil
	}
	c.run.Arm()
	c.timer.Reset(quietSleep)
	if passive {
		c.timer.Reset(passiveSleep)
	}
	select {
	case m := <-c.messages:
		return c.handle(&m)
	case <-c.timer.C:
		return nil
	}
}

// handle processes a message, or the error that ended them. A message out of turn ends the run.
func (c *control) handle(r *received) error {
	if r.err != nil {
		return r.err
	}
	m := &r.controlMessage
	c.heardAt = c.run.Now()
	switch m.Kind {
	case kindStart:
		c.started = true
	case kindProgress:
	case kindFill, kindCompare:
		if c.pending != nil || !c.run.Accepts(m.Kind == kindFill, m.N) {
			return fmt.Errorf("unexpected request from the remote side: %s of %d messages", m.Kind, m.N)
		}
		if m.Kind == kindFill {
			return c.send(&controlMessage{Kind: kindAnswer, Text: brief(c.run.Fill(m.First, m.N))})
		}
		c.pending = m
	case kindAnswer:
		c.answer = m
	case kindDone:
		c.remoteDone, c.remoteSent = true, m.N
		if m.Stop && c.run.Server() {
			c.run.Cancel()
		}
	case kindOver:
		c.theirs = m.Over
	}
	return nil
}

// Wait implements measure.Control.
func (c *control) Wait(ok func() bool) error {
	c.waiting = true
	defer func() { c.waiting = false }()
	for !ok() {
		if err := c.run.Turn(); err != nil {
			return err
		}
	}
	return nil
}

// Start implements measure.Control.
func (c *control) Start() error {
	if err := c.send(&controlMessage{Kind: kindStart}); err != nil {
		return err
	}
	return c.Wait(func() bool { return c.started })
}

// Fill implements measure.Control.
func (c *control) Fill(first, n int64) error {
	if err := c.request(kindFill, first, n); err != nil {
		return err
	}
	return c.Compared()
}

// Compare implements measure.Control.
func (c *control) Compare(first, n int64) error { return c.request(kindCompare, first, n) }

func (c *control) request(kind messageKind, first, n int64) error {
	c.answer, c.asked = nil, &controlMessage{Kind: kind, First: first, N: n}
	return c.send(c.asked)
}

// Compared implements measure.Control. It waits for the response to any outstanding request.
func (c *control) Compared() error {
	if c.asked == nil {
		return nil
	}
	if err := c.Wait(func() bool { return c.answer != nil }); err != nil {
		return err
	}
	c.asked = nil
	if c.answer.Text != "" {
		return fmt.Errorf("the partner found %q", c.answer.Text)
	}
	return nil
}

// Outstanding implements measure.Control.
func (c *control) Outstanding() (first int64, ok bool) {
	if c.asked == nil {
		return 0, false
	}
	return c.asked.First, true
}

// RemoteSent implements measure.Control.
func (c *control) RemoteSent() (n int64, done bool) { return c.remoteSent, c.remoteDone }

// Finish implements measure.Control.
func (c *control) Finish(sent int64, mine *measure.Outcome) (*measure.Outcome, error) {
	if len(mine.Health.Lanes) > maxHealthLanes {
		mine.Health.Lanes = []measure.Health{}
	}
	if err := c.send(&controlMessage{Kind: kindDone, N: sent, Stop: mine.Interrupted}); err != nil {
		return c.theirs, err
	}
	if err := c.Wait(func() bool { return c.remoteDone && c.pending == nil && c.run.Arrived(c.remoteSent) }); err != nil {
		return c.theirs, err
	}
	c.finished = true // a later message would be taken for one of the next run
	if err := c.send(&controlMessage{Kind: kindOver, Over: mine}); err != nil {
		return c.theirs, err
	}
	for c.theirs == nil {
		err := c.run.Turn()
		if errors.Is(err, ibverbx.ErrPeerGone) {
			err = c.lastResult()
		}
		if err != nil {
			return c.theirs, err
		}
	}
	return c.theirs, nil
}

// lastResult waits for the result of a remote side that has closed its VirtualQP: the close can be noticed before the
// result arrives.
func (c *control) lastResult() (err error) {
	c.drain(resultTimeout, func(m *received) bool {
		err = c.handle(m)
		return err != nil || c.theirs != nil
	})
	if err == nil && c.theirs == nil {
		err = fmt.Errorf("%w, and has not reported its result", ibverbx.ErrPeerGone)
	}
	return err
}

// Explain implements measure.Control. A remote side that gives up closes its VirtualQP, and then the connection with the
// reason.
func (c *control) Explain(err error) error {
	if errors.Is(err, ibverbx.ErrPeerGone) {
		c.drain(reasonTimeout, func(m *received) bool {
			if m.err != nil {
				err = fmt.Errorf("%w (%w)", m.err, err)
			}
			return m.err != nil
		})
	}
	return err
}

// drain takes messages until one is the last, for at most the given time.
func (c *control) drain(limit time.Duration, last func(*received) bool) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case m := <-c.messages:
			if last(&m) {
				return
			}
		case <-timer.C:
			return
		}
	}
}
