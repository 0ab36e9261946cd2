package measure

import (
	"time"

	"ibverbx/verbs"
)

// place is where a message is at the source and at the target.
type place struct{ source, target []byte }

// places are the places of the messages in the order in which a round of posting uses them: chain by chain, QP by
// QP. They are built ahead so that nothing but the copy is timed. One of the lists is empty.
type places struct {
	host []place
	// device does the copies of list, in batches as a NIC does.
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

// add adds a message. The device that has the target does the copy, or the one that has the source.
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

// copyRate returns how many bytes per second a copy moves between the places. It runs for at least d and at least one
// batch, and reads the clock once per batch. The flows must be idle, or have failed.
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

// copy copies the messages of a batch from number at on, and returns how many bytes it has moved. A batch of a device
// ends with the last message.
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
