package reliable

import "ibverbx/verbs"

// SplitEngines gives the PDs of a wrapped context several engines also on a clock of the test. It is called
// before any QP is made.
func SplitEngines(ctx verbs.Context) { ctx.(*pathContext).maxEngines = maxEngines }

// EngineOf names the engine of a wrapped QP: two QPs of one engine have the same.
func EngineOf(q verbs.QP) any { return q.(*qp).engine }
