package reliable

import (
	"fmt"

	"ibverbx/verbs"
)

// cqBudget counts the entries of an engine's CQ, so that it never overruns: every request on an inner QP needs one
// until its completion is polled, even an unsignaled send, which is flushed if the QP fails.
//
//	receives, and sends of control QPs, RC handshake QPs and the copier  reserved with the QP, else ErrLimit
//	sends of paths and cards                                             a quarter; the others wait
type cqBudget struct {
	depth    int // the depth of the CQ
	reserved int // the entries of the first kind, at most depth - sendLimit
	sends    int // the outstanding sends of the second kind, at most sendLimit
}

// sendLimit is the number of entries for sends of the second kind.
func (r *cqBudget) sendLimit() int { return r.depth / 4 }

// available is the number of further sends that may be posted.
func (r *cqBudget) available() int { return r.sendLimit() - r.sends }

// hold adds n sends, which held counts for a QP.
func (r *cqBudget) hold(held *int, n int) {
	*held += n
	r.sends += n
}

// reserve reserves n entries until release.
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
