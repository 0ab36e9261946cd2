package sim

import (
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// Options configure a run of a plan.
type Options struct {
	// Pool provides memory. It must not be nil.
	Pool *Pool
	// Trace receives one line of JSON for every event. Nil disables the trace.
	Trace io.Writer

	// wrap replaces the context of a NIC. Tests use it to plant mistakes below the engine.
	wrap func(verbs.Context) verbs.Context
	// wrapPoll replaces Poll. Tests use it to plant mistakes above the engine.
	wrapPoll func(poll pollFunc) pollFunc
	// wrapPost replaces PostSend. Tests use it to plant mistakes above the engine.
	wrapPost func(post postFunc) postFunc
}

type (
	pollFunc = func([]ibverbx.WC) (int, error)
	postFunc = func([]ibverbx.SendWR) (int, error)
)

// Failure is a violated guarantee.
type Failure struct {
	// Check is the name of the checker that found it.
	Check string `json:"check"`
	// End is the affected end of a connection, such as 0a. It may be empty.
	End string `json:"end,omitempty"`
	// At is the virtual time.
	At time.Duration `json:"at_ns"`
	// Text describes the violation.
	Text string `json:"text"`

	// kind is the text without its values. Failures of one kind violate the same guarantee.
	kind string
}

// same reports whether two failures are of one kind.
func (f *Failure) same(o *Failure) bool {
	return f != nil && o != nil && f.Check == o.Check && f.kind == o.kind
}

// Error returns the checker, the end, the time and the text.
func (f *Failure) Error() string {
	where := ""
	if f.End != "" {
		where = " end " + f.End + ":"
	}
	return fmt.Sprintf("%s: at %v:%s %s", f.Check, f.At, where, f.Text)
}

// Totals are the counters of one world or of several.
type Totals struct {
	Messages  int           // requests posted
	Bytes     int           // payload of the requests posted
	FailedQPs int           // failed VirtualQPs
	Virtual   time.Duration // elapsed virtual time
	Packets   uint64        // packets sent by all NICs
	Resent    uint64        // retransmitted packets
	Timeouts  uint64        // acknowledgement timers that fired
	RNRs      uint64        // RNR NAKs sent
	Deaths    uint64        // lost lanes
	Replayed  uint64        // requests moved from lost lanes to other lanes
}

func (t *Totals) add(o *Totals) {
	t.Messages += o.Messages
	t.Bytes += o.Bytes
	t.FailedQPs += o.FailedQPs
	t.Virtual += o.Virtual
	t.Packets += o.Packets
	t.Resent += o.Resent
	t.Timeouts += o.Timeouts
	t.RNRs += o.RNRs
	t.Deaths += o.Deaths
	t.Replayed += o.Replayed
}

// Report is the result of one run.
type Report struct {
	Totals
	// Plan is the plan that was run.
	Plan *Plan
	// Failure is the first violated guarantee, or nil.
	Failure *Failure
	// Faults counts the injected faults by kind.
	Faults [numFaults]int
	// Goodput is the combined rate of all ends a in bytes per second, 0 if not measured.
	Goodput float64
	// Capacity is the capacity of the rails in bytes per second, 0 if not measured.
	Capacity float64
	// Turns is the number of rounds in which every host could poll and post.
	Turns int
	// TraceErr is the first write error of Options.Trace. It is not a Failure.
	TraceErr error
}

// Run builds the world of a plan, runs it and reports the result. A panic is reported as a Failure; the
// memory of that world is not returned to the pool. Concurrent calls need separate pools.
func (p *Plan) Run(o Options) (report *Report) {
	report = &Report{Plan: p}
	w := &world{report: report}
	defer func() {
		if x := recover(); x != nil {
			// Locks may be held, so nothing can be closed.
			w.fail("panic", "", "%v\n%s", x, debug.Stack())
		}
	}()
	if err := w.build(p, &o); err != nil {
		w.fail("world", "", "cannot build the world: %v", err)
	} else {
		w.run()
	}
	w.total()
	w.verdict()
	report.TraceErr = w.trace.flush()
	return report
}

// fail records a violated guarantee. Only the first counts, because it may cause others.
func (w *world) fail(check, end, format string, args ...any) {
	if !w.failed() {
		w.report.Failure = &Failure{Check: check, End: end, At: time.Duration(w.now), Text: fmt.Sprintf(format, args...), kind: format}
	}
}

func (e *end) fail(check, format string, args ...any) { e.w.fail(check, e.name, format, args...) }

// failed reports whether a guarantee was violated.
func (w *world) failed() bool { return w.report.Failure != nil }

// total adds the counters of NICs and lanes to the report.
func (w *world) total() {
	r := w.report
	r.Virtual = time.Duration(w.now)
	for _, h := range w.hosts {
		for _, nic := range h.nics {
			s := nic.Stats()
			r.Packets += s.PacketsSent
			r.Resent += s.Retransmits
			r.Timeouts += s.Timeouts
			r.RNRs += s.RNRNAKsSent
		}
	}
	for _, e := range w.ends {
		for _, l := range e.qp.Stats().Lanes {
			r.Deaths += l.Deaths
			r.Replayed += l.Replayed
		}
	}
}
