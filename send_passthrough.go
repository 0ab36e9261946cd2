package ibverbx

import (
	"fmt"

	"ibverbx/internal/counter"
	"ibverbx/verbs"
)

// passthrough replaces sender and receiver for a single lane without failover. It neither tracks nor fragments
// requests, and uses the user's WRID as wr_id.
type passthrough struct {
	setup         *setup
	failover      *failover
	chain         []verbs.SendWR  // buffer for the physical requests of a post
	recvChain     []verbs.RecvWR  // buffer for the physical receives of a post
	posted        counter.Counter // requests accepted by the NIC
	completed     counter.Counter // requests with a reported completion
	recvPosted    counter.Counter // receives accepted by the NIC
	recvCompleted counter.Counter // successful receives
	// highWater is the maximum number of incomplete requests, at most Config.LaneDepth.
	highWater counter.Counter
}

func (p *passthrough) post(wrs []SendWR) (n int, err error) {
	l := p.setup.lanes[0]
	rail, remoteRail := l.rail, l.remoteRail
	for n < len(wrs) {
		chain := p.chain[:min(len(wrs)-n, len(p.chain))]
		var bytes uint64
		for i := 0; i < len(chain); i++ {
			plain := wrs[n+i:][:p.setup.plainPrefix(wrs[n+i:n+len(chain)], plainOps, plainFlags, p.setup.maxMsg)]
			to := chain[i:][:len(plain)]
			for k := range plain {
				wr := &plain[k]
				e, m := &wr.SGE[0], wr.Remote
				dataWR(&to[k], wr.WRID, wr.Opcode, wr.Flags, wr.Imm, 0, e.Length,
					e.Region.addr+e.Offset, e.Region.lkeys[rail], m.Addr+wr.RemoteOffset, m.RKeys[remoteRail])
				bytes += uint64(e.Length)
			}
			if i += len(plain); i == len(chain) {
				break
			}
			if err := p.build(&wrs[n+i], l, &chain[i]); err != nil {
				return p.postChain(l, chain[:i], n, 0, p.setup.opError("post send", fmt.Errorf("request %d of the chain: %w", n+i, err)))
			}
			bytes += wrs[n+i].Length()
		}
		k, err := p.postChain(l, chain, n, bytes, nil)
		if k < n+len(chain) || err != nil {
			return k, err
		}
		n = k
	}
	return n, nil
}

// postChain posts a chain that starts at request n. It returns the total number of accepted requests, with the NIC's
// error or, if the NIC accepted the whole chain, bad. bytes is the chain's length; if 0, postChain computes it.
func (p *passthrough) postChain(l *lane, chain []verbs.SendWR, n int, bytes uint64, bad error) (int, error) {
	if len(chain) == 0 {
		return n, bad
	}
	if p.setup.cfg.CxxPeer {
		for i := range chain {
			chain[i].Imm = p.setup.imm(chain[i].Imm)
		}
	}
	k, err := l.qp.PostSend(chain)
	if k < len(chain) || bytes == 0 {
		bytes = 0
		for i := range chain[:k] {
			bytes += chain[i].Length()
		}
	}
	if k > 0 {
		l.counts.doorbells.Add(1)
		l.counts.fragments.Add(uint64(k))
		l.counts.bytes.Add(bytes)
		p.posted.Add(uint64(k))
		p.highWater.Raise(min(p.posted.Load()-p.completed.Load(), uint64(p.setup.cfg.LaneDepth)))
	}
	if err != nil {
		l.counts.refusals.Add(1)
		return n + k, err
	}
	return n + k, bad
}

// build validates a request that is not plain and builds the physical one.
func (p *passthrough) build(wr *SendWR, l *lane, to *verbs.SendWR) error {
	length, partial, err := p.setup.check(wr)
	if err != nil {
		return err
	}
	if partial && wr.Flags&verbs.SendInline == 0 && !registered(wr.SGE[:wr.NumSGE], l.rail) {
		return errUnregistered
	}
	otherWR(to, wr.WRID, wr.Opcode, wr.Flags, wr.Imm, wr.SGE[:wr.NumSGE], l.rail)
	if !isMessage(wr.Opcode) && length > 0 {
		to.RemoteAddr, to.RKey = wr.Remote.Addr+wr.RemoteOffset, wr.Remote.RKeys[l.remoteRail]
		if to.RKey == 0 {
			return errUnregistered
		}
		to.CompareAdd, to.Swap = wr.CompareAdd, wr.Swap
	}
	return nil
}

func (p *passthrough) postRecv(wrs []RecvWR) (n int, err error) {
	l := p.setup.lanes[0]
	for n < len(wrs) {
		chain := p.recvChain[:min(len(wrs)-n, len(p.recvChain))]
		for i := range chain {
			if _, bad := p.setup.checkRecv(&wrs[n+i]); bad != nil {
				chain = chain[:i]
				err = p.setup.opError("post receive", fmt.Errorf("receive %d of the chain: %w", n+i, bad))
				break
			}
			if !wrs[n+i].physical(l.rail, &chain[i]) {
				chain = chain[:i]
				err = p.setup.opError("post receive", errUnregistered)
				break
			}
		}
		if len(chain) == 0 {
			return n, err
		}
		k, refused := l.qp.PostRecv(chain)
		n += k
		p.recvPosted.Add(uint64(k))
		if refused != nil {
			return n, refused
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// report translates physical completions.
func (p *passthrough) report(wcs []verbs.WC, dst []WC) {
	owner, received, failed := p.setup.owner, 0, 0
	dst = dst[:len(wcs)]
	for i := range wcs {
		wc, to := &wcs[i], &dst[i]
		to.WRID, to.QP, to.Status, to.VendorErr = wc.WRID, owner, wc.Status, wc.VendorErr
		to.Opcode, to.Flags, to.ByteLen, to.Imm = wc.Opcode, 0, wc.ByteLen, wc.Imm
		if p.setup.pool != nil {
			p.markPooled(wc, to)
		}
		if wc.Status != verbs.StatusSuccess {
			p.failover.failed(p.setup.lanes[0], wc.Status)
			p.failover.errShown = true
			failed++
			continue
		}
		if wc.Flags&verbs.WCWithImm != 0 {
			to.Flags |= WCHasImm
			to.Imm = p.setup.imm(wc.Imm)
		}
		if wc.Opcode >= verbs.WCRecv {
			to.Flags |= WCHasLength
			received++
		}
	}
	p.recvCompleted.Add(uint64(received))
	p.completed.Add(uint64(len(wcs) - received - failed))
}

// markPooled marks the completion of a receive of the pool. The opcode of a failed completion is not valid: it
// belongs to a receive if its wr_id is the tag of one in the SRQ.
func (p *passthrough) markPooled(wc *verbs.WC, to *WC) {
	if wc.Status == verbs.StatusSuccess && wc.Opcode < verbs.WCRecv {
		return
	}
	if slot, ok := p.setup.pool.claim(p.setup.lanes[0].rail, tag(wc.WRID)); ok {
		to.WRID, to.Flags = uint64(slot), wcPooled
	}
}
