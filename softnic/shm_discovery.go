package softnic

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"ibverbx/internal/shm"
	"ibverbx/verbs"
)

// neighborDiscovery finds neighbors for a NIC on a UDPLink: NICs in other processes of this user, in the same
// network namespace. Each side listens on an abstract unix socket, named after the UDP address of its NIC, before
// it dials the peer's socket. So of two sides that connect QPs to each other, at least the later one
// finds the other. If both do, they become neighbors twice, which is harmless.
type neighborDiscovery struct {
	socket *net.UnixListener
	// unidentified are connected processes that have not identified themselves yet.
	unidentified []*neighbor
	running      sync.WaitGroup
	ringPoller
}

// maxNeighbors is the maximum number of neighbors per NIC. Packets serve the others.
const maxNeighbors = 1024

// socketOf returns the socket name of a NIC. It contains the user, because users do not share memory:
// see shm.NewConn.
func socketOf(at netip.AddrPort) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@ibverbx/%d/%s", os.Geteuid(), at)}
}

// discoverPeer looks for the process of q's peer, unless it is already known. Packets carry all requests
// until the two have met.
func (w *udpNIC) discoverPeer(q *qp) {
	if q.typ != verbs.RC {
		return
	}
	if q.path.neighbor = w.neighborOf(q); q.path.neighbor != nil || !w.link.cfg.SharedMemory || q.sealing != nil {
		return
	}
	own, at := w.nic.udp.conn.Addr(), q.path.route.dest.Addr()
	is := func(b *neighbor) bool { return b.at == at }
	h := &w.discovery
	if h.socket == nil {
		l, err := net.ListenUnix("unix", socketOf(own))
		if err != nil {
			return // another process uses the name
		}
		h.socket = l
		h.running.Go(func() { w.accept(l) })
	}
	if at == own || slices.ContainsFunc(h.unidentified, is) {
		return
	}
	if c, err := net.DialUnix("unix", nil, socketOf(at)); err == nil { // never blocks
		w.startHandshake(c, at)
	}
}

// accept accepts connections from other processes until the socket is closed.
func (w *udpNIC) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			_ = l.Close() // packets serve later peers
			return
		}
		w.mu.Lock()
		w.startHandshake(c, netip.AddrPort{})
		w.mu.Unlock()
	}
}

// startHandshake starts exchanging segments with the process at the other end of c. at is the address of its NIC
// if this side has dialed. The caller holds the lock.
func (w *udpNIC) startHandshake(c *net.UnixConn, at netip.AddrPort) {
	h := &w.discovery
	conn, err := shm.NewConn(c)
	if err != nil || w.nic.closed || len(h.unidentified)+len(w.neighbors) >= maxNeighbors {
		_ = c.Close() // unusable
		return
	}
	b := &neighbor{nic: w.nic, conn: conn, at: at}
	h.unidentified = append(h.unidentified, b)
	h.running.Go(func() {
		_, _, err := b.exchangeSegments(shm.SegmentSize, w.nic.udp.conn.Addr())
		w.mu.Lock()
		h.unidentified = slices.DeleteFunc(h.unidentified, func(other *neighbor) bool { return other == b })
		added := err == nil && !w.nic.closed && w.addNeighbor(b)
		w.mu.Unlock()
		if added {
			b.listen()
		}
		w.removeNeighbor(b)
	})
}

// addNeighbor makes b a neighbor, unless this side has dialed a different address. The caller holds the
// lock.
func (w *udpNIC) addNeighbor(b *neighbor) bool {
	at := b.peers.At()
	if b.at.IsValid() && b.at != at {
		return false
	}
	b.at = at
	w.neighbors = append(w.neighbors, b)
	if !b.introduced && w.link.cfg.takesLines() {
		w.addRing(b)
	}
	for m := range w.nic.mrs.all() {
		b.offer(m)
	}
	for q := range w.nic.qps.all() {
		if b.grant(q); b.leadsTo(q) && q.path.neighbor == nil {
			q.path.neighbor = b
		}
	}
	return true
}

// removeNeighbor removes a neighbor after its connection has closed. Its QPs look for it again, because its
// process may still run. Meanwhile packets carry their remaining requests.
func (w *udpNIC) removeNeighbor(b *neighbor) {
	_ = b.conn.Close() // it may be closed already
	w.mu.Lock()
	defer w.mu.Unlock()
	w.neighbors = slices.DeleteFunc(w.neighbors, func(other *neighbor) bool { return other == b })
	b.withdraw()
	w.removeRing(b)
	for q := range w.nic.qps.all() {
		if q.path != nil && q.path.neighbor == b {
			q.path.neighbor = nil
			if b.used && !w.nic.closed { // otherwise failing connections would be retried forever
				w.discoverPeer(q)
			}
			if q.path.neighbor != nil {
				q.path.neighbor.used = true // it replaces b, and may be replaced in turn
			}
			w.lists.tx.push(q)
		}
	}
	b.unmap()
	if b.release != nil {
		b.release()
	}
	if !w.nic.closed {
		w.settle()
	}
}

// close closes all connections to neighbors and waits for their goroutines. The NIC is closed, and the
// caller must not hold the core's lock.
func (h *neighborDiscovery) close(c *core) {
	c.mu.Lock()
	if h.socket != nil {
		_ = h.socket.Close() // accept may have closed it
	}
	for _, b := range slices.Concat(h.unidentified, c.neighbors) {
		_ = b.conn.Close() // stops its goroutine
	}
	c.mu.Unlock()
	h.running.Wait()
}
