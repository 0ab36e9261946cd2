package ibverbx

// barrier is a point in the polling of one rail's CQ. It is passed when the CQ has been found
// empty twice since the barrier was set: the first of these polls may have been under way
// already, and the second proves that the CQ holds no completion that is older than the barrier.
//
// Its value is the count of empty polls at which it is passed. The zero barrier is passed.
type barrier uint64

// barriers has one barrier for each rail.
type barriers [MaxRails]barrier

// barrier returns a barrier on a rail, set now.
func (c *VirtualCQ) barrier(rail uint8) barrier { return barrier(c.idle[rail] + 2) }

// passed reports whether a barrier on a rail is passed.
func (c *VirtualCQ) passed(rail uint8, b barrier) bool { return c.idle[rail] >= uint64(b) }

// barriers returns a barrier on every rail, set now.
func (c *VirtualCQ) barriers() (all barriers) {
	for rail := range c.cqs {
		all[rail] = c.barrier(uint8(rail))
	}
	return all
}

// passedAll reports whether the barriers of all rails are passed.
func (c *VirtualCQ) passedAll(all *barriers) bool {
	for rail := range c.cqs {
		if !c.passed(uint8(rail), all[rail]) {
			return false
		}
	}
	return true
}
