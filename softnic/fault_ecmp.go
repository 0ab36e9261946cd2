package softnic

import (
	"encoding/binary"
	"slices"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// Path is one of several equal-cost paths from one NIC to another, each with its own queue. The zero
// value adds no delay, loss or limit.
type Path struct {
	// Rate is the bandwidth in bytes per second. Zero means unlimited.
	Rate float64
	// Queue is the queue size in bytes of a path with a rate. Packets that do not fit are lost and
	// counted as FaultStats.Overflow. An idle path always accepts a packet.
	Queue int
	// Delay is added to the link's delay.
	Delay time.Duration
	// Loss is the path's loss probability per packet, 0 to 1, in addition to the link's.
	Loss float64
	// Cut makes the path lose every packet, including packets in flight.
	Cut bool
}

// route is a Path and its queue.
type route struct {
	Path
	port egress
	// last is the latest departure time. A path does not reorder packets.
	last int64
}

// SetPaths connects one NIC to another by several paths, in this direction only. A hash of addresses and
// source port pins each flow to one path, like an ECMP switch: several flows may share one path while
// another is idle. The flow label of a QP or address handle determines the source port; without a label,
// each of the receiver's QPs has a separate source port. An empty list removes the paths. It returns
// verbs.ErrInvalid for a nil NIC or a value out of range.
func (l *FaultLink) SetPaths(from, to *NIC, paths ...Path) error {
	return l.SharePaths([]*NIC{from}, []*NIC{to}, paths...)
}

// SharePaths is SetPaths from each NIC in from to each NIC in to over common paths, like the uplinks of
// a switch: all their packets share the queues.
func (l *FaultLink) SharePaths(from, to []*NIC, paths ...Path) error {
	if slices.Contains(from, nil) || slices.Contains(to, nil) {
		return verbs.NewOpError("set paths", "", 0, verbs.Invalidf("a NIC is nil"))
	}
	routes := make([]*route, len(paths))
	for i, p := range paths {
		routes[i] = &route{}
		if err := routes[i].set(p); err != nil {
			return verbs.NewOpError("set paths", "", 0, err)
		}
	}
	for _, a := range from {
		for _, b := range to {
			l.change(between(a, b), func(d *direction) { d.routes = routes })
		}
	}
	return nil
}

// SetPath changes one path created by SetPaths or SharePaths, for all NICs that share it. It returns
// verbs.ErrInvalid if the path does not exist or a value is out of range.
func (l *FaultLink) SetPath(from, to *NIC, path int, p Path) error {
	err := verbs.Invalidf("path %d does not exist between these NICs", path)
	l.look(between(from, to), func(d *direction) {
		if path >= 0 && path < len(d.routes) {
			err = d.routes[path].set(p)
		}
	})
	return verbs.NewOpError("set path", "", 0, err)
}

func (r *route) set(p Path) error {
	if !(p.Rate >= 0) || p.Queue < 0 || p.Delay < 0 {
		return verbs.Invalidf("path with rate %v, queue %d and delay %v: want at least 0", p.Rate, p.Queue, p.Delay)
	}
	if !(p.Loss >= 0 && p.Loss <= 1) {
		return verbs.Invalidf("path with a loss of %v: want a probability from 0 to 1", p.Loss)
	}
	r.Path = p
	r.port.rate, r.port.limit = p.Rate, float64(p.Queue)
	return nil
}

// Paths returns the current paths from one NIC to another.
func (l *FaultLink) Paths(from, to *NIC) (paths []Path) {
	l.look(between(from, to), func(d *direction) {
		for _, r := range d.routes {
			paths = append(paths, r.Path)
		}
	})
	return paths
}

// PathOf returns the index of the path of a flow from one NIC to another NIC's QP, or -1 without paths.
// QPs connected without a flow label have flow label 0.
func (l *FaultLink) PathOf(from, to *NIC, qpn, flowLabel uint32) int {
	path := -1
	l.look(between(from, to), func(d *direction) {
		if n := len(d.routes); n > 0 {
			path = l.hashPath(from, to, qpn, flowLabel, n)
		}
	})
	return path
}

// routeOf returns the path of a packet, nil without paths.
func (l *FaultLink) routeOf(d *direction, from, to *NIC, p *packet) *route {
	switch n := len(d.routes); n {
	case 0:
		return nil
	case 1:
		return d.routes[0]
	default:
		return d.routes[l.hashPath(from, to, p.DestQPN, p.path.attr.FlowLabel, n)]
	}
}

// hashPath is a switch's hash function. It maps the addresses of a flow, and its flow label (without a
// label, the destination QP), to one of n paths. The link's seed selects the function.
func (l *FaultLink) hashPath(from, to *NIC, qpn, flowLabel uint32, n int) int {
	a, b := &from.gids[len(from.gids)-1].GID, &to.gids[len(to.gids)-1].GID
	port := uint64(qpn) << 32
	if flowLabel != 0 {
		port = uint64(roce.SourcePort(flowLabel))
	}
	h := l.seed ^ 0x9e3779b97f4a7c15
	for _, v := range [...]uint64{
		binary.BigEndian.Uint64(a[8:]), binary.BigEndian.Uint64(b[8:]), port,
	} {
		// The finalizer of MurmurHash3: every bit of v affects every bit of h.
		h ^= v
		h ^= h >> 33
		h *= 0xff51afd7ed558ccd
		h ^= h >> 33
		h *= 0xc4ceb9fe1a85ec53
		h ^= h >> 33
	}
	return int(h % uint64(n))
}

// pass sends a packet through the path. It returns false if the queue is full.
func (r *route) pass(f *inFlightPacket) bool {
	if r.Rate > 0 && !r.port.pass(f) {
		return false
	}
	f.at = max(f.at+int64(r.Delay), r.last)
	r.last = f.at
	return true
}
