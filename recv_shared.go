package ibverbx

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"ibverbx/verbs"
)

// sharedReceives are the engine's receives for all lanes of all VirtualQPs of a VirtualCQ, in one SRQ per
// rail. Their cost does not depend on the number of lanes. The index of a receive is the place of its
// record:
//
//	rail 0: | 0 | 1 | ... | depth-1 |  rail 1: | 0 | 1 | ...      16 bytes each
//
// When fewer than low receives are left in an SRQ, all used ones are posted again at once. So a peer
// cannot be held back by RNR: if it sends more than its VirtualQP can hold, that VirtualQP fails, and
// the others continue.
type sharedReceives struct {
	depth  int     // of every SRQ
	low    int     // half of depth
	region *Region // where records arrive
	rails  []sharedRail
	chain  []verbs.RecvWR // where refill makes receives
	stats  *cqCounters    // counts what refill posts
}

// sharedRail is the SRQ of one rail.
type sharedRail struct {
	srq  verbs.SRQ // nil if the device had failed
	free []uint32  // indices of the receives that are not in the SRQ
}

func newSharedReceives(c *VirtualCQ, depth int) (*sharedReceives, error) {
	r := c.rails
	h := &sharedReceives{depth: depth, low: depth / 2, chain: make([]verbs.RecvWR, depth), stats: &c.stats}
	var err error
	if h.region, err = r.allocRegion(len(r.rails) * depth * recordSize); err != nil {
		return nil, err
	}
	h.rails = make([]sharedRail, len(r.rails))
	for i := range r.rails {
		if err := h.open(r, i); err != nil && !errors.Is(err, verbs.ErrDeviceFatal) {
			return nil, errors.Join(fmt.Errorf("rail %d (%s): %w", i, r.rails[i].name, err), h.close())
		}
	}
	return h, nil
}

// open creates the SRQ of a rail, unless it exists, and fills it.
func (h *sharedReceives) open(r *Rails, rail int) error {
	one := &h.rails[rail]
	if !h.region.registered(uint8(rail)) {
		return errUnregistered
	}
	if one.srq == nil {
		pd, err := r.domain(rail)
		if err != nil {
			return err
		}
		srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: h.depth, MaxSGE: 1})
		if err != nil {
			return err
		}
		one.srq, one.free = srq, make([]uint32, h.depth)
		for k := range one.free {
			one.free[k] = uint32(k)
		}
	}
	return h.refill(rail)
}

func (h *sharedReceives) close() error {
	for i := range h.rails {
		if h.rails[i].srq == nil {
			continue // its device had failed
		}
		if err := h.rails[i].srq.Close(); err != nil {
			return err // its lanes exist, so the memory must stay
		}
	}
	return h.region.free()
}

// place is the offset of the record of a receive.
func (h *sharedReceives) place(rail uint8, index uint32) int {
	return (int(rail)*h.depth + int(index)) * recordSize
}

// record returns the bytes of a receive.
func (h *sharedReceives) record(rail uint8, index uint32) []byte {
	return h.region.Bytes()[h.place(rail, index):][:recordSize]
}

// used takes a receive back, and refills the SRQ when it has run low.
func (h *sharedReceives) used(rail uint8, index uint32) error {
	r := &h.rails[rail]
	r.free = append(r.free, index)
	if h.depth-len(r.free) >= h.low {
		return nil
	}
	return h.refill(int(rail))
}

// refill posts every receive that is not in the SRQ, in one call. Those that the NIC refuses are posted
// again later.
func (h *sharedReceives) refill(rail int) error {
	r := &h.rails[rail]
	chain := h.chain[:len(r.free)]
	for i, index := range r.free {
		chain[i].WRID = uint64(newTag(0, kindRecv, 0, index))
		chain[i].NumSGE = 1
		chain[i].SGE[0] = verbs.SGE{
			Addr: h.region.addr + uint64(h.place(uint8(rail), index)), Length: recordSize, LKey: h.region.lkeys[rail],
		}
	}
	n, err := r.srq.PostRecv(chain)
	h.stats.refills.Add(1)
	h.stats.refilled.Add(uint64(n))
	r.free = append(r.free[:0], r.free[n:]...)
	if err != nil && !isBackPressure(err) {
		return err
	}
	return nil
}

// shareReceives creates the SRQs and reserves CQ space for their completions.
func (c *VirtualCQ) shareReceives(depth int) (err error) {
	if depth < 2 || depth > maxDepth {
		return verbs.Invalidf("CQConfig.SharedReceives is %d: want 2 to %d, or 0", depth, maxDepth)
	}
	if err := c.reserveAll(depth); err != nil {
		return err
	}
	c.shared, err = newSharedReceives(c, depth)
	return err
}

// drainTurns bounds how often a VirtualQP that is being closed polls for the completions of its lanes. A
// software NIC has them at once, and others within microseconds.
const drainTurns = 10_000

// drain ends everything that the lanes have in flight, so that the receives that they took from an SRQ
// come back before the QPs are destroyed. A completion that is destroyed with its QP would take its
// receive along.
func (q *VirtualQP) drain() {
	for _, l := range q.setup.all {
		l.errState()
	}
	q.mu.Lock()
	q.failover.state = stateClosed // what ends now is no failure
	q.mu.Unlock()
	c := q.setup.cq
	for range drainTurns {
		empty := true
		for rail, cq := range c.cqs {
			got, err := cq.Poll(c.buf[:])
			if got > 0 {
				empty = false
				c.process(rail, c.buf[:got], nil, 0) // completions of others are kept
			}
			if err != nil && c.err == nil {
				c.err = err
			}
		}
		if empty && !slices.ContainsFunc(q.setup.all, (*lane).owes) {
			return
		}
		if empty {
			runtime.Gosched()
		}
	}
}

// owes reports whether the NIC has not given back everything that a lane has posted.
func (l *lane) owes() bool {
	v := &l.life
	return v.state <= laneDying && l.head != l.posted && (!v.failing || v.drained != l.posted)
}
