package measure

import (
	"time"

	"ibverbx/verbs"
)

// place is a message's slot at the source and at the target.
type place struct{ source, target []byte }

// places lists message slots in posting order: chain by chain, QP by QP. It is built in advance so
// that only the copy is timed. Either host or list is empty.
type places struct {
	host []place
	// device executes the copies in list, in batches like a NIC.
	device verbs.MemoryDevice
	list   []verbs.DeviceCopy
}

func (r *SizeRun) places() *places {
	p := &places{}
	for first := 0; first < r.plan.slots; first += r.plan.chain {
		for _, f := range r.flows {
			for q := range r.plan.qps {
				for m := first; m < first+r.plan.chain; m++ {
					p.add(f.source, f.target, q, int64(m))
				}
			}
		}
	}
	return p
}

// add adds a message. The device that owns the target does the copy, otherwise the source's.
func (p *places) add(source, target *buffer, queue int, message int64) {
	if source.device == nil && target.device == nil {
		p.host = append(p.host, place{source.message(queue, message), target.message(queue, message)})
		return
	}
	c := verbs.DeviceCopy{Len: uint64(source.size)}
	for _, side := range []struct {
		buffer *buffer
		addr   *uint64
	}{{source, &c.From}, {target, &c.To}} {
		if mem := side.buffer.device; mem != nil {
			*side.addr, p.device = mem.Addr()+uint64(side.buffer.offset(queue, message)), mem.Device()
		} else {
			c.Host = side.buffer.message(queue, message)
		}
	}
	p.list = append(p.list, c)
}

// copyRate returns the rate of a copy between the slots, in bytes per second. It runs for at least
// d and at least one batch, and reads the clock once per batch. The flows must be idle, or have
// failed.
func (r *SizeRun) copyRate(p *places, d time.Duration) (float64, error) {
	batch := max(1, min(maxChain, chainBytes/r.plan.stride))
	if p.device != nil {
		batch = r.plan.chain
	}
	start := r.now()
	for copied, at := 0, 0; ; {
		n, err := p.copy(&at, batch)
		if err != nil {
			return 0, err
		}
		copied += n
		if t := r.now() - start; t >= d && t > 0 {
			r.pace.copying += t
			return float64(copied) / t.Seconds(), nil
		}
	}
}

// copy copies up to batch messages, starting with number *at, and returns the number of bytes
// copied. A device batch stops after the last message.
func (p *places) copy(at *int, batch int) (copied int, err error) {
	if p.device == nil {
		for range batch {
			one := &p.host[*at]
			copied += copy(one.target, one.source)
			if *at++; *at == len(p.host) {
				*at = 0
			}
		}
		return copied, nil
	}
	list := p.list[*at:min(*at+batch, len(p.list))]
	if *at += len(list); *at == len(p.list) {
		*at = 0
	}
	return len(list) * int(list[0].Len), p.device.Copy(list)
}
