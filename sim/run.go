package sim

import (
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// Options say how a plan is run.
type Options struct {
	// Pool provides memory. It must not be nil.
	Pool *Pool
	// Trace receives one line of JSON for every event. Nil means no trace.
	Trace io.Writer

	// wrap replaces the context of a NIC. Tests use it to plant mistakes below the engine.
	wrap func(verbs.Context) verbs.Context
	// tamper replaces Poll. Tests use it to plant mistakes above the engine.
	tamper func(poll pollFunc) pollFunc
	// meddle replaces PostSend. Tests use it to plant mistakes above the engine.
	meddle func(post postFunc) postFunc
}

type (
	pollFunc = func([]ibverbx.WC) (int, error)
	postFunc = func([]ibverbx.SendWR) (int, error)
)

// Failure is a broken promise.
type Failure struct {
	// Check is the checker that reports it.
	Check string `json:"check"`
	// End is the end of a connection at which it happened, such as 0a. It may be empty.
	End string `json:"end,omitempty"`
	// At is the virtual time.
	At time.Duration `json:"at_ns"`
	// Text says what happened.
	Text string `json:"text"`

	// kind is the text without its values. Failures of one kind break the same promise.
	kind string
}

// same reports whether two failures are of one kind.
func (f *Failure) same(o *Failure) bool {
	return f != nil && o != nil && f.Check == o.Check && f.kind == o.kind
}

func (f *Failure) Error() string {
	where := ""
	if f.End != "" {
		where = " end " + f.End + ":"
	}
	return fmt.Sprintf("%s: at %v:%s %s", f.Check, f.At, where, f.Text)
}

// Totals counts what happened in one world or in several.
type Totals struct {
	Messages  int           // requests posted
	Bytes     int           // payload of the requests posted
	FailedQPs int           // VirtualQPs that ended in an error
	Virtual   time.Duration // virtual time that passed
	Packets   uint64        // packets sent by all NICs
	Resent    uint64        // packets sent again
	Timeouts  uint64        // acknowledgement timers that fired
	RNRs      uint64        // RNR NAKs sent
	Deaths    uint64        // lanes that were lost
	Replayed  uint64        // requests of lost lanes that were sent over another lane
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
	Plan *Plan
	// Failure is the first broken promise. Nil means that every promise was kept.
	Failure *Failure
	// Faults counts the faults that happened, by kind.
	Faults [numFaults]int
	// Goodput is the rate of all ends a together in bytes per second, 0 if it is not measured.
	Goodput float64
	// Capacity is what the rails can carry in bytes per second, 0 if it is not measured.
	Capacity float64
	// Turns counts the rounds in which every host could poll and post.
	Turns int
	// TraceErr is the first error of the writer of Options.Trace. It is not a broken promise.
	TraceErr error
}

// Run builds the world of a plan, runs it and reports the result. A panic counts as a failure, but
// the memory of that world is not returned to the pool.
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

// fail records a broken promise. Only the first counts, because it may cause others.
func (w *world) fail(check, end, format string, args ...any) {
	if !w.failed() {
		w.report.Failure = &Failure{Check: check, End: end, At: time.Duration(w.now), Text: fmt.Sprintf(format, args...), kind: format}
	}
}

func (e *end) fail(check, format string, args ...any) { e.w.fail(check, e.name, format, args...) }

// failed reports whether a promise was broken.
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
