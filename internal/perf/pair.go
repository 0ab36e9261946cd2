package perf

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// port is the port that is measured, on both devices.
const port = 1

// side is one end of a test: the objects on one device.
type side struct {
	name           string
	pd             verbs.PD
	sendCQ, recvCQ verbs.CQ
	qps            []verbs.QP
	ends           []verbs.Endpoint
	ah             verbs.AHHandle // to the other side, on UD
}

// pair is both ends of a row, with their QPs connected one to one. What it opens is
// closed by close, in reverse order.
type pair struct {
	sides   [2]side
	closers []func() error
}

// openPair makes and connects the QPs of a row.
func openPair(ctxs [2]verbs.Context, c *Config, p *plan) (*pair, error) {
	pr := &pair{}
	for i := range pr.sides {
		if err := pr.openSide(&pr.sides[i], ctxs[i], c, p); err != nil {
			return nil, errors.Join(err, pr.close())
		}
	}
	for i := range pr.sides {
		if err := pr.connect(&pr.sides[i], &pr.sides[1-i], ctxs[i], c); err != nil {
			return nil, errors.Join(err, pr.close())
		}
	}
	return pr, nil
}

func (pr *pair) onClose(f func() error) { pr.closers = append(pr.closers, f) }

// close closes everything, also after an error, and returns all errors.
func (pr *pair) close() error {
	var errs []error
	for i := len(pr.closers) - 1; i >= 0; i-- {
		errs = append(errs, pr.closers[i]())
	}
	pr.closers = nil
	return errors.Join(errs...)
}

// openSide makes PD, CQs and QPs. The CQs hold every request of every QP, so that not
// even a flush overruns them.
func (pr *pair) openSide(s *side, ctx verbs.Context, c *Config, p *plan) (err error) {
	s.name = ctx.Device().Name()
	if s.pd, err = ctx.AllocPD(); err != nil {
		return err
	}
	pr.onClose(s.pd.Close)
	if s.sendCQ, err = ctx.CreateCQ(verbs.CQConfig{Depth: p.qps * p.depth()}); err != nil {
		return err
	}
	pr.onClose(s.sendCQ.Close)
	if s.recvCQ, err = ctx.CreateCQ(verbs.CQConfig{Depth: max(1, p.qps*p.recvs)}); err != nil {
		return err
	}
	pr.onClose(s.recvCQ.Close)
	for range p.qps {
		qp, err := s.pd.CreateQP(verbs.QPConfig{
			Type:      c.Connection,
			SendCQ:    s.sendCQ,
			RecvCQ:    s.recvCQ,
			MaxSendWR: p.depth(),
			MaxRecvWR: p.recvs,
			Port:      port,
		})
		if err != nil {
			return err
		}
		pr.onClose(qp.Close)
		end, err := qp.Endpoint()
		if err != nil {
			return err
		}
		s.qps, s.ends = append(s.qps, qp), append(s.ends, end)
	}
	return nil
}

// connect takes the QPs of s to RTS, each with its partner on the other side.
func (pr *pair) connect(s, other *side, ctx verbs.Context, c *Config) error {
	for i, qp := range s.qps {
		remote := other.ends[i]
		if c.MTU != 0 {
			asked, err := verbs.MTUOf(c.MTU)
			if err != nil {
				return err
			}
			remote.MTU = min(remote.MTU, asked) // Connect takes the smaller of both ends
		}
		if err := qp.Connect(remote); err != nil {
			return err
		}
	}
	if c.Connection != verbs.UD {
		return nil
	}
	index, err := gidIndex(ctx, s.ends[0].GID)
	if err != nil {
		return err
	}
	ah, err := s.pd.CreateAH(verbs.AHAttr{DGID: other.ends[0].GID, DLID: other.ends[0].LID, SGIDIndex: index, Port: port})
	if err != nil {
		return err
	}
	pr.onClose(ah.Close)
	s.ah = ah.Handle()
	return nil
}

// gidIndex returns the row of a GID in the table of the port.
func gidIndex(ctx verbs.Context, gid verbs.GID) (int, error) {
	attr, err := ctx.QueryPort(port)
	if err != nil {
		return 0, err
	}
	for i := range attr.GIDs {
		if e, err := ctx.QueryGID(port, i); err == nil && e.GID == gid {
			return i, nil
		}
	}
	if gid.IsZero() {
		return 0, nil // plain InfiniBand, where the LID is the address
	}
	return 0, fmt.Errorf("GID %s is not in the table of port %d of %s: %w", gid, port, ctx.Device().Name(), verbs.ErrNotFound)
}

// region is registered memory that holds places for messages, so many per QP.
type region struct {
	bytes        []byte
	addr         uint64
	lkey, rkey   uint32
	places       int // per QP
	stride, head int
	size         int
	device       string
}

// newRegion allocates, touches and registers the memory of one side of a flow.
func (pr *pair) newRegion(s *side, p *plan, places int) (*region, error) {
	mem, err := verbs.AllocMemory(p.qps*places*p.stride, nil)
	if err != nil {
		return nil, err
	}
	pr.onClose(mem.Free)
	mr, err := s.pd.RegisterMemory(mem, verbs.AccessAll)
	if err != nil {
		return nil, err
	}
	pr.onClose(mr.Close)
	clear(mem.Bytes()) // the first touch is the system's work, not the NIC's
	return &region{
		bytes: mem.Bytes(), addr: mr.Addr(), lkey: mr.LKey(), rkey: mr.RKey(),
		places: places, stride: p.stride, head: p.head, size: p.size, device: s.name,
	}, nil
}

func (r *region) offset(queue int, message int64) int {
	return (queue*r.places+int(message%int64(r.places)))*r.stride + r.head
}

// message returns the bytes of a message: where it stands or will stand.
func (r *region) message(queue int, message int64) []byte {
	off := r.offset(queue, message)
	return r.bytes[off : off+r.size : off+r.size]
}

// sge names the place of a message, with grh bytes before it.
func (r *region) sge(queue int, message int64, grh int) verbs.SGE {
	return verbs.SGE{
		Addr:   r.addr + uint64(r.offset(queue, message)-grh),
		Length: uint32(r.size + grh),
		LKey:   r.lkey,
	}
}
