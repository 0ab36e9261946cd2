package transfers

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"ibverbx/internal/broadcast"
	"ibverbx/softnic"
)

// Summary holds the counters of a world.
type Summary struct {
	// Batches counts successful batches, Canceled canceled ones, and Lost those that failed because a
	// process was killed.
	Batches, Canceled, Lost int
	// Notifications and Gets count the consumed and verified ones.
	Notifications, Gets int
	Streams             int             // verified streams
	Faults              [faultKinds]int // injected faults by kind
}

// Add adds the counters of o.
func (s *Summary) Add(o Summary) {
	s.Batches, s.Canceled, s.Lost = s.Batches+o.Batches, s.Canceled+o.Canceled, s.Lost+o.Lost
	s.Notifications, s.Gets, s.Streams = s.Notifications+o.Notifications, s.Gets+o.Gets, s.Streams+o.Streams
	for i, n := range o.Faults {
		s.Faults[i] += n
	}
}

// String formats the counters in one line.
func (s Summary) String() string {
	line := fmt.Sprintf("%d batches (%d canceled, %d lost), %d notifications, %d reads and %d streams right;",
		s.Batches+s.Canceled+s.Lost, s.Canceled, s.Lost, s.Notifications, s.Gets, s.Streams)
	for k, n := range s.Faults {
		line += fmt.Sprintf(" %d %v,", n, FaultKind(k))
	}
	return line[:len(line)-1]
}

// world is a running Plan.
type world struct {
	plan  *Plan
	links []*softnic.FaultLink
	hosts []*host
	// ctx ends with the first failure. Its cause is the failure.
	ctx  context.Context
	fail context.CancelCauseFunc

	mu  sync.Mutex
	sum Summary
	// owed holds the notifications that must still arrive.
	owed map[notice]bool
	// changed is raised when owed becomes smaller.
	changed broadcast.Signal
}

// notice identifies a notification: a batch from one process to another. Lives number the processes of a host from 0.
type notice struct {
	From, FromIncarnation, To, ToIncarnation int
	Batch                                    int
}

// Run runs the world of a Plan. An error names the violated guarantee. ctx bounds the real time.
func Run(ctx context.Context, plan *Plan) (Summary, error) {
	if plan.Sockets && runtime.GOOS != "linux" { // software NICs over UDP need Linux
		memory := *plan
		memory.Sockets, memory.Fabric.Link, memory.Fabric.Unsealed, memory.Fabric.RequireSealed = false, "", true, false
		plan = &memory
	}
	w := &world{plan: plan, owed: map[notice]bool{}}
	w.ctx, w.fail = context.WithCancelCause(ctx)
	defer w.fail(nil)
	if err := w.run(); err != nil {
		return w.sum, fmt.Errorf("seed %d: %w", plan.Seed, err)
	}
	return w.sum, nil
}

func (w *world) run() (err error) {
	for i := range w.plan.Rails {
		link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: w.plan.Seed + uint64(i), Impairment: w.plan.Impairment})
		if err != nil {
			return err
		}
		w.links = append(w.links, link)
	}
	defer func() {
		for _, h := range w.hosts {
			err = errors.Join(err, h.stop())
		}
	}()
	for i := range w.plan.Hosts {
		r, err := newRelay()
		if err != nil {
			return err
		}
		w.hosts = append(w.hosts, &host{world: w, index: i, relay: r})
	}
	for _, h := range w.hosts {
		h.mu.Lock()
		err := h.start()
		h.mu.Unlock()
		if err != nil {
			return err
		}
	}
	for _, h := range w.hosts {
		h.mu.Lock()
		h.begin()
		h.mu.Unlock()
	}
	w.strike()
	for _, h := range w.hosts {
		if err := h.finished(); err != nil {
			return w.cause("sending", err)
		}
	}
	return w.settled()
}

// strike injects all faults on time, and returns when all are over.
func (w *world) strike() {
	begin := time.Now()
	var faults sync.WaitGroup
	for _, f := range w.plan.Faults {
		faults.Go(func() {
			if !w.sleep(f.At - time.Since(begin)) {
				return
			}
			if w.hosts[f.Host].suffer(f) {
				w.mu.Lock()
				w.sum.Faults[f.Kind]++
				w.mu.Unlock()
			}
		})
	}
	faults.Wait()
}

// sleep waits and reports whether the world is still running.
func (w *world) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// settled waits until every owed notification has arrived.
func (w *world) settled() error {
	for {
		w.mu.Lock()
		owed, changed := len(w.owed), w.changed.Next()
		var one notice
		for one = range w.owed {
			break
		}
		w.mu.Unlock()
		if owed == 0 {
			return context.Cause(w.ctx)
		}
		select {
		case <-changed:
		case <-w.ctx.Done():
			return w.cause(fmt.Sprintf("waiting for %d notifications, such as %+v", owed, one), w.ctx.Err())
		}
	}
}

// cause returns the failure that ended the world, or an error that names the unfinished work.
func (w *world) cause(doing string, err error) error {
	if c := context.Cause(w.ctx); c != nil && !errors.Is(c, context.DeadlineExceeded) {
		return c
	}
	return fmt.Errorf("%s did not end: %w", doing, err)
}

// broken ends the world because a guarantee was violated.
func (w *world) broken(format string, args ...any) { w.fail(fmt.Errorf(format, args...)) }

// owe records that a notification must arrive, unless it already has, or its sender or receiver was killed.
func (w *world) owe(n notice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if to := w.hosts[n.To]; to.incarnation == n.ToIncarnation && w.hosts[n.From].incarnation == n.FromIncarnation && !to.taken[n] {
		w.owed[n] = true
	}
}

// arrived records a notification, and reports whether it is new.
func (w *world) arrived(n notice) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hosts[n.To]
	if h.taken[n] {
		return false
	}
	h.taken[n] = true
	w.sum.Notifications++
	w.pay(n)
	return true
}

// pay removes a notification from owed. The caller holds mu.
func (w *world) pay(n notice) {
	if w.owed[n] {
		delete(w.owed, n)
		w.changed.Raise()
	}
}

// forgive removes the notifications from or to a killed process from owed. One that has reached the receiver's NIC may be lost with the
// session, and then only the sender could repeat it.
func (w *world) forgive(host, incarnation int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n := range w.owed {
		if (n.To == host && n.ToIncarnation == incarnation) || (n.From == host && n.FromIncarnation == incarnation) {
			w.pay(n)
		}
	}
}
