package reliable

import (
	"encoding/binary"
	"sync"

	"ibverbx/reliable/core"
)

// idleCredit is the credit of an idle connection, in bytes. The queue in front
// of a port holds at most this much per sender when all of them begin at once.
const idleCredit = 128 << 10

// ports holds the ports whose credit the engines of a context share.
type ports struct {
	mu   sync.Mutex
	list []*core.Port // by number, with nil for unused ports
}

// port returns the port of a number.
func (s *ports) port(number uint8) *core.Port {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.list) <= int(number) {
		s.list = append(s.list, nil)
	}
	if s.list[number] == nil {
		s.list[number] = core.NewPort()
	}
	return s.list[number]
}

// pacer returns the engine's pacer of a port. All its connections through the port share it.
func (e *engine) pacer(port uint8) *core.Pacer {
	port = max(port, 1)
	for len(e.pacers) <= int(port) {
		e.pacers = append(e.pacers, nil)
	}
	if e.pacers[port] == nil {
		e.pacers[port] = core.NewPacer(e.ctx.ports.port(port), e.resources.chunk, idleCredit)
	}
	return e.pacers[port]
}

// joinPacer adds the connection to the pacer of a port, which grants credit to the peer. The core must exist.
func (c *connection) joinPacer(port uint8) {
	if c.ctx.cfg.NoCredits {
		return
	}
	c.pacer = c.engine.pacer(port)
	var to core.Peer
	copy(to[:], c.attr.AH.DGID[:])
	binary.BigEndian.PutUint16(to[len(c.attr.AH.DGID):], c.attr.AH.DLID)
	if c.pacer.Join(c.index(), to) {
		c.step(&core.Event{Kind: core.EvGrant, Count: core.NoLimit})
	}
}

// leavePacer undoes joinPacer.
func (c *connection) leavePacer() {
	if c.pacer != nil {
		c.pacer.Leave(c.index())
		c.pacer = nil
	}
}

// grant grants all due credit.
func (e *engine) grant() {
	for _, p := range e.pacers {
		if p == nil {
			continue
		}
		for {
			conn, n, ok := p.Next(e.now)
			if !ok {
				break
			}
			if c := e.conns[conn]; c != nil && c.pacer == p {
				c.step(&core.Event{Kind: core.EvGrant, Count: n})
			}
		}
	}
}

// grantAt is the time of the next grant without arrivals.
func (e *engine) grantAt() int64 {
	at := core.Never
	for _, p := range e.pacers {
		if p != nil {
			at = min(at, p.Deadline())
		}
	}
	return at
}
