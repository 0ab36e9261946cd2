package reliable

import (
	"fmt"

	"ibverbx/verbs"
)

// cqBudget counts the entries of an engine's CQ, so that it never overruns: every request on an inner QP needs one
// until its completion is polled, also an unsignaled send, which is flushed if the QP fails.
//
//	receives, and the sends of control QPs, RC handshake QPs and the copier  reserved when they are made, else ErrLimit
//	sends of paths and cards                                          a quarter; more wait, and cards are repeated
type cqBudget struct {
	depth    int // the depth of the CQ
	reserved int // the entries of the first kind, at most depth - sendLimit
	sends    int // the sends of the second kind that were posted and have not completed, at most sendLimit
}

// sendLimit is the number of entries for sends of the second kind.
func (r *cqBudget) sendLimit() int { return r.depth / 4 }

// available is how many more sends may be posted.
func (r *cqBudget) available() int { return r.sendLimit() - r.sends }

// hold counts n more sends of a QP, whose count is held.
func (r *cqBudget) hold(held *int, n int) {
	*held += n
	r.sends += n
}

// reserve takes n entries, until release.
func (r *cqBudget) reserve(n int) error {
	if most := r.depth - r.sendLimit(); r.reserved+n > most {
		return fmt.Errorf("%w: the QPs that share a send CQ need more than the %d of %d entries that a CQ of the device (MaxCQE) has for receives: give them up to %d send CQs, or set Flows so that QPs share connections",
			verbs.ErrLimit, most, r.depth, maxEngines)
	}
	r.reserved += n
	return nil
}

// release undoes reserve.
func (r *cqBudget) release(n int) { r.reserved -= n }
