package softnic

import (
	"encoding/binary"
	"slices"
	"time"

	"ibverbx/verbs"
)

// Path is one of several equal ways through a fabric from one NIC to another, with a queue
// of its own. The zero value adds nothing to what the link does.
type Path struct {
	// Rate is in bytes per second. Zero is without limit.
	Rate float64
	// Queue is how many bytes may wait for a path with a rate. What does not fit is lost and
	// counted as FaultStats.Overflow; a packet that finds the path idle always fits.
	Queue int
	// Delay is added to that of the link.
	Delay time.Duration
	// Cut makes the path lose everything, what is under way too.
	Cut bool
}

// route is a Path and its queue.
type route struct {
	Path
	port egress
	last int64 // when the last packet leaves it: a path does not reorder
}

// SetPaths joins one NIC to another by several paths; the way back is not touched. A flow,
// which is what goes to one QP with one flow label, is pinned to one of them by a hash, as
// a switch does that knows equal ways (ECMP): several flows may meet on one path while
// another is idle. No paths takes them away again.
func (l *FaultLink) SetPaths(from, to *NIC, paths ...Path) error {
	return l.SharePaths([]*NIC{from}, []*NIC{to}, paths...)
}

// SharePaths joins each of some NICs to each of some others by the same paths, as the uplinks of
// a switch do: what any of them sends to any of the others may meet there. The rest is as with
// SetPaths.
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
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	for _, a := range from {
		for _, b := range to {
			l.direction(a, b).routes = routes
		}
	}
	return nil
}

// SetPath changes one of the paths that SetPaths or SharePaths has made, for all who share it.
func (l *FaultLink) SetPath(from, to *NIC, path int, p Path) error {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	d := l.directions[[2]*NIC{from, to}]
	if d == nil || path < 0 || path >= len(d.routes) {
		return verbs.NewOpError("set path", "", 0, verbs.Invalidf("there is no path %d between these NICs", path))
	}
	if err := d.routes[path].set(p); err != nil {
		return verbs.NewOpError("set path", from.name, 0, err)
	}
	return nil
}

func (r *route) set(p Path) error {
	if !(p.Rate >= 0) || p.Queue < 0 || p.Delay < 0 {
		return verbs.Invalidf("a path of rate %v, queue %d and delay %v: want at least 0", p.Rate, p.Queue, p.Delay)
	}
	r.Path = p
	r.port.rate, r.port.limit = p.Rate, float64(p.Queue)
	return nil
}

// Paths returns the paths from one NIC to another as they are now.
func (l *FaultLink) Paths(from, to *NIC) (paths []Path) {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	if d := l.directions[[2]*NIC{from, to}]; d != nil {
		for _, r := range d.routes {
			paths = append(paths, r.Path)
		}
	}
	return paths
}

// PathOf returns the path that the flow from one NIC to a QP of another takes, -1 if there
// are no paths. QPs that are connected without saying so have flow label 0.
func (l *FaultLink) PathOf(from, to *NIC, qpn, flowLabel uint32) int {
	l.core.mu.Lock()
	defer l.core.mu.Unlock()
	d := l.directions[[2]*NIC{from, to}]
	if d == nil || len(d.routes) == 0 {
		return -1
	}
	return l.pin(from, to, qpn, flowLabel, len(d.routes))
}

// routeOf returns the path of a packet, nil if there are none.
func (l *FaultLink) routeOf(d *direction, from, to *NIC, p *packet) *route {
	switch n := len(d.routes); n {
	case 0:
		return nil
	case 1:
		return d.routes[0]
	default:
		return d.routes[l.pin(from, to, p.DestQPN, p.path.attr.FlowLabel, n)]
	}
}

// pin is the hash of a switch: addresses, QP and flow label of a flow give one of n paths,
// the seed of the link how.
func (l *FaultLink) pin(from, to *NIC, qpn, flowLabel uint32, n int) int {
	a, b := &from.gids[len(from.gids)-1].GID, &to.gids[len(to.gids)-1].GID
	h := l.cfg.Seed ^ 0x9e3779b97f4a7c15
	for _, v := range [...]uint64{
		binary.BigEndian.Uint64(a[8:]), binary.BigEndian.Uint64(b[8:]), uint64(qpn)<<32 | uint64(flowLabel),
	} {
		// The finalizer of MurmurHash3: every bit of v reaches every bit of h.
		h ^= v
		h ^= h >> 33
		h *= 0xff51afd7ed558ccd
		h ^= h >> 33
		h *= 0xc4ceb9fe1a85ec53
		h ^= h >> 33
	}
	return int(h % uint64(n))
}

// pass lets a packet that the NIC has sent go through the path. It reports false if the
// queue has no room for it.
func (r *route) pass(f *flight) bool {
	if r.Rate > 0 && !r.port.pass(f) {
		return false
	}
	f.at = max(f.at+int64(r.Delay), r.last)
	r.last = f.at
	return true
}
