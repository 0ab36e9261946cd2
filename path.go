package ibverbx

import (
	"fmt"

	"ibverbx/verbs"
)

// LanePath is the local end of a lane. Programs that do not read a Card, such as a C++ peer, need it to
// reach the lane.
type LanePath struct {
	Lane int
	// Role is "data", "message" or "notify".
	Role string
	Rail int
	// Device is the name of the NIC.
	Device string
	Port   uint8
	// Endpoint has the QP number, the GID or LID, and the MTU. With Config.CxxPeer, its PSN is 0.
	Endpoint verbs.Endpoint
}

// Paths returns the local end of every lane, in the order of the lanes. A lane that is rebuilt has another
// QP number.
func (q *VirtualQP) Paths() ([]LanePath, error) {
	u := &q.setup
	if q.failover.state == stateClosed {
		return nil, u.opError("list paths", verbs.ErrClosed)
	}
	paths := make([]LanePath, 0, len(u.all))
	for i, l := range u.all {
		e, err := l.qp.Endpoint()
		if err != nil {
			return nil, u.opError("list paths", fmt.Errorf("lane %d: %w", i, err))
		}
		if u.cfg.CxxPeer {
			e.PSN = 0
		}
		r := &u.rails.rails[l.rail]
		paths = append(paths, LanePath{
			Lane: i, Role: roleNames[l.role], Rail: int(l.rail), Device: r.name, Port: r.cfg.Port, Endpoint: e,
		})
	}
	return paths, nil
}
