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

// neighborhood finds neighbors for a NIC on a UDPLink: NICs of other processes of this user that share its network. Every side
// listens on an abstract unix socket, whose name is the UDP address of its NIC, before it looks for the socket of a peer. So of
// two sides that connect QPs to each other, at least the later one finds the other. Sometimes both do: then they are neighbors
// twice, which does no harm.
type neighborhood struct {
	socket *net.UnixListener
	// strangers are sides that have not said who they are.
	strangers []*neighbor
	running   sync.WaitGroup
	ringWatch
}

// maxNeighbors bounds the neighbors of a NIC. Packets serve the others.
const maxNeighbors = 1024

// socketOf returns the name of the socket of a NIC. Users do not meet: see shm.NewConn.
func socketOf(at netip.AddrPort) *net.UnixAddr {
	return &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@ibverbx/%d/%s", os.Geteuid(), at)}
}

// approach looks for the process of q's peer, unless it is known. Until they have met, and if they do not, packets carry everything.
func (w *udpNIC) approach(q *qp) {
	if q.typ != verbs.RC {
		return
	}
	if q.path.near = w.known(q); q.path.near != nil || !w.link.cfg.SharedMemory || q.sealing != nil {
		return
	}
	own, at := w.nic.udp.conn.Addr(), q.path.route.dest.Addr()
	is := func(b *neighbor) bool { return b.at == at }
	h := &w.neighborhood
	if h.socket == nil {
		l, err := net.ListenUnix("unix", socketOf(own))
		if err != nil {
			return // another process has the name
		}
		h.socket = l
		h.running.Go(func() { w.accept(l) })
	}
	if at == own || slices.ContainsFunc(h.strangers, is) {
		return
	}
	if c, err := net.DialUnix("unix", nil, socketOf(at)); err == nil { // it never waits
		w.greet(c, at)
	}
}

// accept takes the calls of others until the socket is closed.
func (w *udpNIC) accept(l *net.UnixListener) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			_ = l.Close() // packets serve those who come later
			return
		}
		w.mu.Lock()
		w.greet(c, netip.AddrPort{})
		w.mu.Unlock()
	}
}

// greet begins to exchange segments with the process at the other end of c. at is the address of its NIC if this side has called.
// The lock is held.
func (w *udpNIC) greet(c *net.UnixConn, at netip.AddrPort) {
	h := &w.neighborhood
	conn, err := shm.NewConn(c)
	if err != nil || w.nic.closed || len(h.strangers)+len(w.neighbors) >= maxNeighbors {
		_ = c.Close() // it is of no use
		return
	}
	b := &neighbor{nic: w.nic, conn: conn, at: at}
	h.strangers = append(h.strangers, b)
	h.running.Go(func() {
		_, _, err := b.meet(shm.SegmentSize, w.nic.udp.conn.Addr())
		w.mu.Lock()
		h.strangers = slices.DeleteFunc(h.strangers, func(other *neighbor) bool { return other == b })
		known := err == nil && !w.nic.closed && w.settleIn(b)
		w.mu.Unlock()
		if known {
			b.listen()
		}
		w.part(b)
	})
}

// settleIn makes b a neighbor, unless it is another one than the one that this side has called. The lock is held.
func (w *udpNIC) settleIn(b *neighbor) bool {
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
		if b.grant(q); b.leadsTo(q) && q.path.near == nil {
			q.path.near = b
		}
	}
	return true
}

// part ends a neighbor. Its QPs look for it again, since its process may still be there. Until they have found it packets carry what they have left.
func (w *udpNIC) part(b *neighbor) {
	_ = b.conn.Close() // it may be closed already
	w.mu.Lock()
	defer w.mu.Unlock()
	w.neighbors = slices.DeleteFunc(w.neighbors, func(other *neighbor) bool { return other == b })
	b.withdraw()
	w.removeRing(b)
	for q := range w.nic.qps.all() {
		if q.path != nil && q.path.near == b {
			q.path.near = nil
			if b.used && !w.nic.closed { // otherwise two sides that cannot keep a connection would go on forever
				w.approach(q)
			}
			if q.path.near != nil {
				q.path.near.used = true // it takes the place of b, and may end like it
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

// close ends the neighborhood. The core's lock must not be held, and the NIC is closed.
func (h *neighborhood) close(c *core) {
	c.mu.Lock()
	if h.socket != nil {
		_ = h.socket.Close() // accept may have closed it
	}
	for _, b := range slices.Concat(h.strangers, c.neighbors) {
		_ = b.conn.Close() // its goroutine ends
	}
	c.mu.Unlock()
	h.running.Wait()
}
