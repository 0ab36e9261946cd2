package measure

import (
	"context"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// controlRounds is the number of rounds between two looks at the control messages.
const controlRounds = 64

// Peer leads to the side in another process. Package remote implements it.
type Peer interface {
	// Connect makes a VirtualQP, connects it to the remote one, and registers memory at both sides.
	Connect(ctx context.Context, s SideConfig) (*Link, error)
	// Control starts the control messages of a run. stop ends them. They end early when ctx is done.
	Control(ctx context.Context, r *SizeRun) (c Control, stop func() error)
}

// Control exchanges control messages with the remote side during a run. Only the run's goroutine calls it.
type Control interface {
	// Attend handles a received message, if any, and reports a remote side that has been silent for too long. The run
	// calls it regularly, so that this side can send signs of life.
	Attend(now time.Duration) error
	// Rest follows a round without completions. It handles a received message, and may sleep for a moment if this side
	// is waiting for one.
	Rest() error
	// Start reports that this side has posted its receives, and waits for the remote side to do so.
	Start() error
	// Wait runs rounds until ok returns true.
	Wait(ok func() bool) error
	// Fill has the remote side write the patterns of n messages from first on, and waits until it has.
	Fill(first, n int64) error
	// Compare has the remote side compare n messages from first on. It does not wait.
	Compare(first, n int64) error
	// Compared waits for the result of the outstanding Compare, if any.
	Compared() error
	// Outstanding returns the first message of the outstanding Compare.
	Outstanding() (first int64, ok bool)
	// RemoteSent returns the number of messages that the remote side has sent, once it has sent its last.
	RemoteSent() (n int64, done bool)
	// Finish reports that this side has sent its last message, waits for the remote side's messages, and exchanges results.
	Finish(sent int64, mine *Outcome) (theirs *Outcome, err error)
	// Explain adds the remote side's reason to the error of a VirtualQP that the remote side has closed.
	Explain(err error) error
}

// SideConfig describes one side of a run to Peer.Connect. The two sides agree on the rest.
type SideConfig struct {
	// QP describes the VirtualQP. Its lanes, lane depth and fragment size are preferences; its send and receive depth are
	// required.
	QP ibverbx.Config
	// MTU is the preferred path MTU in bytes, 0 for none.
	MTU int
	// Schemes are the accepted schemes, the preferred one first.
	Schemes []ibverbx.Scheme
	// Direct makes a single lane pass requests through unchanged.
	Direct bool
	// Bytes is the size of this side's memory.
	Bytes int
	// Memory is this side's memory, which Connect registers. Nil means that Connect allocates host memory.
	Memory *verbs.Memory
}

// Link is a connected VirtualQP and the parameters that both sides agreed on.
type Link struct {
	QP       *ibverbx.VirtualQP
	CQ       *ibverbx.VirtualCQ
	Name     string // of the link, as in Report.Link
	Reason   string // why it is not shared memory
	Local    *ibverbx.Region
	Remote   *ibverbx.RemoteRegion
	Rails    []ibverbx.RailConfig // of this side
	Lanes    int                  // for data
	Fragment int                  // bytes
	MTU      int                  // bytes
	Scheme   ibverbx.Scheme
	Sealed   bool // packets are encrypted and authenticated
	// SetPort takes the port of this side's NIC of a rail down or up. It is nil if this program cannot do that.
	SetPort func(rail int, up bool)
	Close   func() error
}

// Outcome is the result of one side of a run.
type Outcome struct {
	// Messages is the number of measured messages, without warm-up.
	Messages int64 `json:"messages"`
	// Elapsed is the time in which they were sent; 0 if this side measured latency.
	Elapsed time.Duration `json:"elapsed_ns"`
	// Peak is the best rate, in messages per second.
	Peak float64 `json:"peak"`
	// Latency is nil unless this side measured it.
	Latency *LatencyResult `json:"latency,omitempty"`
	// Lanes has the traffic of the lanes, empty if this side has sent nothing.
	Lanes []Lane `json:"lanes"`
	// Health has the counters of the NICs.
	Health SideHealth `json:"vitals"`
	// Interrupted is set when the user has stopped the test.
	Interrupted bool `json:"interrupted"`

	lost      int64 // messages that did not arrive
	histogram []Bucket
	hdr       string  // Result.HDR
	copyRate  float64 // of Go's copy in bytes per second, 0 if it was not measured
}

// openRemote connects this side of a run to the one in the other process. Both lay out their memory alike.
func (t *Test) openRemote(ctx context.Context, r *SizeRun) error {
	cfg := t.sideConfig(&r.plan)
	if from := &t.own.Memory[t.side]; from.Alloc != nil {
		mem, err := from.take(max(cfg.Bytes, 1), &r.closers)
		if err != nil {
			return err
		}
		cfg.Memory = mem
	}
	link, err := t.peer.Connect(ctx, cfg)
	if err != nil && t.side == 0 && ctx.Err() != nil {
		return errCancelled
	}
	if err != nil {
		return err
	}
	if t.side == 0 {
		ctx = context.WithoutCancel(ctx) // a connected client tells the server that it stops
	}
	r.link = link
	r.closers.Add(link.Close)
	mine, theirs := r.sides[t.side], r.sides[1-t.side]
	if need := uint64(r.plan.endBytes(1 - t.side)); link.Remote.Length < need {
		return fmt.Errorf("the remote side exposes %d bytes, and this size needs %d", link.Remote.Length, need)
	}
	if r.cfg.Kill.On && r.cfg.Kill.Rail >= len(link.Rails) {
		return Refuse("kill-rail", r.cfg.Kill.Rail, fmt.Sprintf("the two sides agreed on %d rails", len(link.Rails)), "use a smaller rail")
	}
	if r.cfg.Kill.On && link.SetPort == nil {
		return r.cfg.Kill.refuse()
	}
	r.cfg.Kill.SetPort = link.SetPort
	mine.sideQPs = &virtualQPs{run: r, cq: link.CQ, qp: link.QP, nics: len(link.Rails)}
	mine.rails = link.Rails
	mine.memory = memory{region: link.Local, nics: deviceNames(t.rails[t.side])}
	theirs.memory = memory{remote: link.Remote, nics: "the partner"}
	if err := mine.attach(link.Local.Bytes(), cfg.Memory, r.plan.size); err != nil {
		return err
	}
	control, stop := t.peer.Control(ctx, r)
	r.control = control
	r.closers.Add(stop)
	return nil
}

// sideConfig describes this side of a run.
func (t *Test) sideConfig(p *plan) SideConfig {
	s := SideConfig{
		QP: p.virtualConfig(&t.cfg), MTU: t.own.MTU, Schemes: allSchemes(t.own.Scheme),
		Direct: t.cfg.direct() || t.own.QPs == 1, Bytes: p.endBytes(t.side),
	}
	s.QP.Scheme, s.QP.Policy = 0, t.own.Policy
	if t.side == 1 {
		s.QP.Lanes, s.QP.FragmentSize = t.own.QPs, uint32(t.own.Fragment)
	}
	return s
}

// allSchemes returns all schemes, the given one first.
func allSchemes(first ibverbx.Scheme) []ibverbx.Scheme {
	all := []ibverbx.Scheme{first}
	for _, s := range []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray} {
		if s != first {
			all = append(all, s)
		}
	}
	return all
}

// Turn runs a round, and rests if it found nothing.
func (r *SizeRun) Turn() error {
	if err := r.step(); err != nil || r.moved {
		return err
	}
	return r.control.Rest()
}

// Now is the time since the run was opened. It reads the monotonic clock once.
func (r *SizeRun) Now() time.Duration { return time.Since(r.epoch) }

// Passive reports whether this side never sees a completion: it only grants access to its memory.
func (r *SizeRun) Passive() bool { return r.own().out == nil && r.own().in.recvs == 0 }

// Arm requests interrupts from the NICs, before this side sleeps: software NICs then work meanwhile.
func (r *SizeRun) Arm() { r.own().arm() }

// Cancel stops the run as the user of this side would.
func (r *SizeRun) Cancel() { r.cancelled.Store(true) }

// Server reports whether this is the server's side.
func (r *SizeRun) Server() bool { return r.side == 1 }

// Arrived reports whether the first n messages of the remote side have arrived, as far as this side can tell.
func (r *SizeRun) Arrived(n int64) bool {
	in := r.own().in
	return in == nil || in.recvs == 0 || in.received >= n
}

// Accepts reports whether the remote side may request that n messages are filled or compared here.
func (r *SizeRun) Accepts(fill bool, n int64) bool {
	return r.own().in != nil && r.cfg.Check && n <= int64(r.plan.depth()) && fill == (r.cfg.Op == Read && n > 0)
}

// Fill writes the patterns of n messages from first on, which the remote side will fetch.
func (r *SizeRun) Fill(first, n int64) error { return r.own().in.fill(0, first, first+n) }

// Compare compares n received messages from first on.
func (r *SizeRun) Compare(first, n int64) error {
	f, end := r.own().in, first+n
	if f.op == Atomic {
		return f.compareCounter(f.target.message(0, 0), 0, end, uint64(end))
	}
	if err := f.compare(0, first, end); err != nil {
		return fmt.Errorf("at the other end: %w", err)
	}
	return nil
}

// attend lets the control messages proceed, reports progress, and gives up a run that was cancelled too long ago.
func (r *SizeRun) attend() error {
	now := r.Now()
	if err := r.control.Attend(now); err != nil {
		return err
	}
	r.tell(now, r.pace.done)
	return r.drain.over(now, r.cancelled.Load())
}

// compared waits for the remote side's comparison, if one is outstanding.
func (r *SizeRun) compared() error {
	if r.control == nil {
		return nil
	}
	return r.control.Compared()
}

// freed waits until the remote side has compared the messages whose slots those up to end take.
func (r *SizeRun) freed(end int64) error {
	if r.control == nil {
		return nil
	}
	if first, ok := r.control.Outstanding(); !ok || end <= first+int64(r.plan.depth()) {
		return nil
	}
	return r.control.Compared()
}

// finish ends the run when both sides are done, and adds the remote side's result.
func (r *SizeRun) finish(found *[2]*Outcome) error {
	out, mine, sent := r.own().out, found[r.side], int64(0)
	if out != nil {
		sent = out.sent
		if err := r.control.Wait(func() bool { return out.inFlight == 0 }); err != nil {
			return err
		}
	}
	r.count(found)
	mine.Interrupted = r.cancelled.Load()
	theirs, err := r.control.Finish(sent, mine)
	if theirs != nil {
		found[1-r.side] = theirs
	}
	return err
}
