package sim

import (
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Options are how a plan is run.
type Options struct {
	// Pool is where memory comes from. Nil is an error.
	Pool *Pool
	// Trace gets one line of JSON for everything that happens. Nil means no trace.
	Trace io.Writer

	// wrap stands between the engine and a NIC, tamper and meddle between the world and
	// the engine: tests plant faults with them that the checkers must find.
	wrap   func(verbs.Context) verbs.Context
	tamper func(poll pollFunc) pollFunc
	meddle func(post postFunc) postFunc
}

type (
	pollFunc = func([]ibverbx.WC) (int, error)
	postFunc = func([]ibverbx.SendWR) (int, error)
)

// Failure is a promise that was not kept.
type Failure struct {
	// Check is the checker that saw it.
	Check string `json:"check"`
	// End is the end of a connection that it happened to, empty if it is not of one.
	End string `json:"end,omitempty"`
	// At is when, in virtual time.
	At   time.Duration `json:"at_ns"`
	Text string        `json:"text"`
}

func (f *Failure) Error() string {
	where := ""
	if f.End != "" {
		where = " end " + f.End + ":"
	}
	return fmt.Sprintf("%s: at %v:%s %s", f.Check, f.At, where, f.Text)
}

// Report is what a run was.
type Report struct {
	Plan    *Plan
	Failure *Failure // nil if every promise was kept
	// Messages counts requests, and Bytes what they carried.
	Messages, Bytes int
	// Faults counts what happened, by kind.
	Faults [numFaults]int
	// FailedQPs counts VirtualQPs that ended in an error.
	FailedQPs int
	// Deaths counts lanes that were lost, and Replayed what left over another one then.
	Deaths, Replayed uint64
	// Goodput is what ends a carried, in bytes per second, and Capacity what the rails can
	// carry, if the plan wants that to be measured.
	Goodput, Capacity float64
	// Turns counts how often everybody looked.
	Turns int
	// Virtual is how long the world lasted.
	Virtual time.Duration
	// NICs is the sum of what all NICs counted.
	NICs softnic.Stats
}

// Run builds the world of a plan, lets it run, and says what came of it. A panic is a failure
// like any other, but leaves memory behind.
func (p *Plan) Run(o Options) (report *Report) {
	w := &world{}
	defer func() {
		if x := recover(); x != nil {
			// A lock may be held: nothing of the world can be closed any more.
			w.fail("panic", "", "%v\n%s", x, debug.Stack())
			report = &Report{Plan: p, Failure: w.failure, Messages: w.stats.messages, Faults: w.stats.faults}
		}
	}()
	if err := w.build(p, &o); err != nil {
		w.fail("world", "", "it could not be built: %v", err)
	} else {
		w.run()
	}
	nics := w.nicStats()
	deaths, replayed := w.laneStats()
	w.verdict()
	if err := w.trace.flush(); err != nil {
		w.fail("world", "", "the trace could not be written: %v", err)
	}
	report = &Report{
		Plan: p, Failure: w.failure, Messages: w.stats.messages, Bytes: w.stats.bytes, Faults: w.stats.faults,
		FailedQPs: w.stats.failedQPs, Deaths: deaths, Replayed: replayed, Turns: w.stats.turns, Virtual: time.Duration(w.now), NICs: nics,
	}
	if p.Goodput > 0 {
		report.Goodput, report.Capacity = w.meter.rate(), w.capable
	}
	return report
}

// fail notes that a promise was broken. The first one counts: what follows may follow from
// it.
func (w *world) fail(check, end, format string, args ...any) {
	if w.failure == nil {
		w.failure = &Failure{Check: check, End: end, At: time.Duration(w.now), Text: fmt.Sprintf(format, args...)}
	}
}

func (e *end) fail(check, format string, args ...any) { e.w.fail(check, e.name, format, args...) }

// nicStats adds up what all NICs counted.
func (w *world) nicStats() (sum softnic.Stats) {
	for _, h := range w.hosts {
		for _, nic := range h.nics {
			s := nic.Stats()
			sum.PacketsSent += s.PacketsSent
			sum.Retransmits += s.Retransmits
			sum.Timeouts += s.Timeouts
			sum.NAKsSent += s.NAKsSent
			sum.RNRNAKsSent += s.RNRNAKsSent
			sum.Duplicates += s.Duplicates
			sum.OutOfOrder += s.OutOfOrder
			sum.BadICRC += s.BadICRC
			sum.PortDownDrops += s.PortDownDrops
		}
	}
	return sum
}
