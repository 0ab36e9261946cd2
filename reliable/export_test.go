package reliable

import (
	"os"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// CarrierEnv makes the tests run on NICs with UD alone if it is "ud".
const CarrierEnv = "IBVERBX_TEST_CARRIER"

// OverUC skips a test of what only UC has.
func OverUC(tb testing.TB, what string) {
	tb.Helper()
	if os.Getenv(CarrierEnv) == "ud" {
		tb.Skip("only UC has " + what)
	}
}

// NICConfig returns the configuration of NICs that carry paths.
func NICConfig() (cfg softnic.Config) {
	if os.Getenv(CarrierEnv) == "ud" {
		cfg.QPTypes = []verbs.QPType{verbs.UD}
	}
	return cfg
}

// SplitEngines allows several engines per PD of a wrapped context even on a test clock. Call it before
// creating QPs.
func SplitEngines(ctx verbs.Context) { ctx.(*pathContext).maxEngines = maxEngines }

// EngineOf names the engine of a wrapped QP: two QPs of one engine have the same.
func EngineOf(q verbs.QP) any { return q.(*qp).engine }

// SealOf returns the Seal of a wrapped QP.
func SealOf(q verbs.QP) verbs.Seal { return q.(*qp).cfg.Path.Seal }

// Receives returns the number of receive buffers in use of a wrapped QP's engine, and of all that exist.
func Receives(q verbs.QP) (inUse, exist int) {
	h := &q.(*qp).engine.resources
	h.engine.mu.Lock()
	defer h.engine.mu.Unlock()
	return h.receives(), h.allocated()
}

// SendsOf returns the number of sends of paths that hold CQ entries of a wrapped QP's engine, and the most that may.
func SendsOf(q verbs.QP) (sends, most int) {
	e := q.(*qp).engine
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.inbox.entries.sends, e.inbox.entries.sendLimit()
}
