package softnic

import (
	"net"
	"net/netip"
	"slices"

	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// Neighbor is a NIC in another process that shares memory with a local NIC: see Introduce.
type Neighbor struct {
	conn *shm.Conn
	// done is closed once the two NICs no longer share memory.
	done chan struct{}
}

// Introduce lets the RC QPs of a NIC on a UDPLink execute WRITEs and READs directly in the memory of
// the process at the other end of conn, which must do the same. Only QPs with the given Seal that are
// connected to the other NIC do so; nil selects QPs without one. Either side maps a region of the other
// after its first request with the region's key. That request travels as packets, as do requests that
// cannot be executed directly, and all requests after either side has exited or closed its Neighbor.
//
// The caller must know whose process it is: conn proves only that it belongs to the same user. Introduce
// takes ownership of conn and closes it on error. Close the Neighbor before the Seal. It works on Linux only.
func Introduce(ctx verbs.Context, conn *net.UnixConn, seal verbs.Seal) (*Neighbor, error) {
	if conn == nil {
		return nil, verbs.NewOpError("introduce neighbor", "", 0, verbs.Invalidf("no connection"))
	}
	n, err := introduce(ctx, conn, seal)
	if err != nil {
		_ = conn.Close() // the first error is more specific
		return nil, verbs.NewOpError("introduce neighbor", "", 0, err)
	}
	return n, nil
}

func introduce(ctx verbs.Context, conn *net.UnixConn, s verbs.Seal) (*Neighbor, error) {
	x, ok := ctx.(*hostContext)
	if !ok || x == nil || x.core.udpNIC == nil {
		return nil, verbs.ErrNotSupported
	}
	c, err := shm.NewConn(conn)
	if err != nil {
		return nil, err
	}
	w := x.core.udpNIC
	b := &neighbor{nic: x.nic, conn: c, introduced: true, seal: s}
	at, err := w.joinSeal(x, b)
	if err != nil {
		return nil, err
	}
	_, _, err = b.exchangeSegments(shm.NoRingSize, at)
	n := &Neighbor{conn: c, done: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		if err = x.usable(); err == nil && len(w.neighbors) >= maxNeighbors {
			err = verbs.ErrLimit
		}
	}
	if err != nil {
		b.unmap()
		b.release()
		return nil, err
	}
	w.mayBlock.Store(true)
	w.addNeighbor(b)
	w.discovery.running.Go(func() {
		defer close(n.done)
		b.listen()
		w.removeNeighbor(b)
	})
	return n, nil
}

// joinSeal adds b as a user of its Seal, and returns the NIC's receive address for the Seal's packets.
func (w *udpNIC) joinSeal(x *hostContext, b *neighbor) (at netip.AddrPort, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := x.usable(); err != nil {
		return at, err
	}
	g, err := w.nic.sealing(b.seal)
	if err != nil {
		return at, err
	}
	b.release = g.leave
	return w.nic.port(g).conn.Addr(), nil
}

// made reports whether Introduce returned the Neighbor.
func (n *Neighbor) made() bool { return n != nil && n.conn != nil }

// Done returns a channel that closes when the NICs stop sharing memory. It is nil for the zero value.
func (n *Neighbor) Done() <-chan struct{} {
	if !n.made() {
		return nil
	}
	return n.done
}

// Close stops the sharing of memory. Once it returns, neither side accesses the other's memory.
// Outstanding requests continue as packets. Close returns verbs.ErrClosed for the zero value.
func (n *Neighbor) Close() error {
	if !n.made() {
		return verbs.ErrClosed
	}
	_ = n.conn.Close() // the goroutine may have closed it
	<-n.done
	return nil
}

// requestRegion requests a region that an introduced neighbor has not shared. The pauses between requests for one
// key double, because the neighbor may lack the memory or its socket may be full.
func (b *neighbor) requestRegion(key uint32) {
	if !b.introduced {
		return
	}
	r := b.files.lookup(key)
	if r == nil && b.files.set(key, shmRegion{key: key}) {
		r = b.files.lookup(key)
	}
	if r == nil || r.access != 0 {
		return // too many regions, or the request exceeds the region
	}
	if r.requests++; r.requests&(r.requests-1) == 0 {
		b.conn.Send(shm.Message{Kind: shm.RequestRegion, Key: key}, -1)
	}
}

// handleRequest shares a region on request. As for packets, the neighbor must know the key and have a QP in the
// region's protection domain. It returns false after too many wrong keys.
func (b *neighbor) handleRequest(key uint32) bool {
	c := b.nic.core
	c.mu.Lock()
	defer c.mu.Unlock()
	m := b.nic.mrs.get(key)
	if m == nil || !b.hasQP(m.pd) {
		b.wrongKeys++
		return b.wrongKeys < maxWrongKeys
	}
	if b.published(m).Load() != key {
		b.publish(m)
	}
	return true
}

// hasQP reports whether a QP of a protection domain is connected to the neighbor.
func (b *neighbor) hasQP(d *pd) bool {
	for q := range b.nic.qps.all() {
		if q.pd == d && b.leadsTo(q) {
			return true
		}
	}
	return false
}

// neighborOf returns the neighbor connected to q, or nil.
func (w *udpNIC) neighborOf(q *qp) *neighbor {
	if i := slices.IndexFunc(w.neighbors, func(b *neighbor) bool { return b.leadsTo(q) }); i >= 0 {
		return w.neighbors[i]
	}
	return nil
}
