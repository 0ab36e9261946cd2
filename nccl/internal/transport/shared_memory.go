package transport

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// localPeer is another process of this user on this host, with which this process shares memory. All connections between the two use the
// memory, in both directions. It exists until either process exits.
type localPeer struct {
	key localPeerKey
	// ready is closed when session is valid. A nil session means that the processes cannot share memory.
	ready   chan struct{}
	session *peer.Session
	// users counts the groups, and the Plugin while the peer is alive. Plugin.mu guards it.
	users int
}

const (
	// shareTime limits establishing shared memory. A connection that waits for it then has time left to connect over the NICs.
	shareTime = joinTime / 2
	// maxTries is the maximum number of attempts to share memory with one process, in both directions together. Normally one or two suffice,
	// as shared memory lasts until a process exits.
	maxTries = 8
	// maxTried is the maximum number of processes with attempts.
	maxTried = 1 << 16
)

// try counts an attempt to share memory with a process. It returns false if there were too many: the process uses the NICs. The lock is held.
func (p *Plugin) try(process uint64) bool {
	n := p.tries[process]
	if n == maxTries || n == 0 && len(p.tries) == maxTried {
		return false
	}
	p.tries[process] = n + 1
	return true
}

// localPeerKey identifies a localPeer on one side.
type localPeerKey struct {
	// process is the peer's incarnation.
	process uint64
	// number is chosen by the side that has dialed.
	number uint64
	dialed bool
}

// greeting is the first message of a connection: the Listener that it is for and the shared memory that it uses, or the number of
// shared memory to be established.
//
//	0      16       24       25
//	| conn | number | dialed |
//
// dialed is set if the sender has dialed for the shared memory. Number 0 means the NICs.
type greeting struct {
	conn   connID // zero to establish shared memory
	number uint64
	dialed bool
}

const greetingSize = 25

func (g *greeting) encode() []byte {
	b := binary.LittleEndian.AppendUint64(g.conn[:], g.number)
	if g.dialed {
		return append(b, 1)
	}
	return append(b, 0)
}

// decodeGreeting reports whether m is a valid greeting.
func decodeGreeting(m *bootstrap.Message) (g greeting, ok bool) {
	if m.Kind != bootstrap.KindApplication || len(m.Body) != greetingSize || m.Body[24] > 1 {
		return g, false
	}
	g.conn, g.number, g.dialed = connID(m.Body[:16]), binary.LittleEndian.Uint64(m.Body[16:]), m.Body[24] == 1
	return g, g.conn != connID{} || g.number != 0
}

// sharesMemory reports whether the settings allow shared memory with the peer of a connection.
func (p *Plugin) sharesMemory(conn *bootstrap.Conn) bool {
	if p.opts.Link == peer.LinkUDP || p.opts.Loss > 0 || !p.Software() {
		return false
	}
	to, err := netip.ParseAddrPort(conn.Peer().Addr.String())
	if err != nil {
		return false
	}
	addrs, _ := net.InterfaceAddrs() // without them only loopback is local
	for _, a := range addrs {
		if own, err := netip.ParsePrefix(a.String()); err == nil && own.Addr().Unmap() == to.Addr().Unmap() {
			return true
		}
	}
	return to.Addr().IsLoopback()
}

// localPeerOf returns the shared memory with the peer of a new connection. It establishes it if it does not exist, and returns nil if that is
// impossible.
func (p *Plugin) localPeerOf(ctx context.Context, h *handle, conn *bootstrap.Conn) (*localPeer, error) {
	if !p.sharesMemory(conn) {
		return nil, nil
	}
	process := conn.Peer().Incarnation
	var n *localPeer
	p.mu.Lock()
	for key, other := range p.localPeers {
		if key.process == process {
			n = other
			break
		}
	}
	if n == nil {
		if !p.try(process) {
			p.mu.Unlock()
			return nil, nil
		}
		var b [8]byte
		_, _ = rand.Read(b[:]) // it never fails
		n = p.addLocalPeer(localPeerKey{process, binary.LittleEndian.Uint64(b[:]) | 1, true})
		go p.seek(n, *h)
	}
	p.mu.Unlock()
	return n.wait(ctx)
}

// wait waits until the localPeer is established. It returns nil if that has failed.
func (n *localPeer) wait(ctx context.Context) (*localPeer, error) {
	select {
	case <-n.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if n.session == nil {
		return nil, nil
	}
	return n, nil
}

// addLocalPeer adds a localPeer that will be established. The lock is held.
func (p *Plugin) addLocalPeer(key localPeerKey) *localPeer {
	n := &localPeer{key: key, ready: make(chan struct{}), users: 1}
	p.localPeers[key] = n
	return n
}

// seek dials a localPeer.
func (p *Plugin) seek(n *localPeer, h handle) {
	ctx, cancel := context.WithTimeout(context.Background(), shareTime)
	defer cancel()
	conn, err := p.dial(ctx, &h)
	if err == nil {
		g := greeting{number: n.key.number, dialed: true}
		if err = conn.Send(ctx, bootstrap.KindApplication, g.encode()); err != nil {
			err = errors.Join(err, conn.Close())
		}
	}
	if err != nil {
		p.log.Info("no shared memory", slog.Any("cause", err))
		close(n.ready)
		return
	}
	p.meet(ctx, n, conn)
}

// meet establishes the memory of a localPeer on a connection. After an error, the side that has dialed keeps the localPeer, so that it does
// not dial again.
func (p *Plugin) meet(ctx context.Context, n *localPeer, conn *bootstrap.Conn) {
	session, err := peer.Connect(ctx, conn, n.key.dialed, peer.Config{
		Rails: p.nics[0].base.Configs()[:1], Fabric: peer.Fabric{Link: peer.LinkShm}, NoFailover: true, Timeout: shareTime,
		QP: ibverbx.Config{Lanes: 1, SendDepth: 1, RecvDepth: 1, LaneDepth: 1, NotifyDepth: 1},
	})
	if err != nil {
		p.log.Info("no shared memory", slog.String("peer", conn.Peer().Addr.String()), slog.Any("cause", err))
		close(n.ready)
		if !n.key.dialed {
			p.forgetLocalPeer(n)
		}
		return
	}
	n.session = session
	close(n.ready)
	<-conn.Done()
	p.forgetLocalPeer(n)
	p.leaveLocalPeer(n)
}

func (p *Plugin) forgetLocalPeer(n *localPeer) {
	p.mu.Lock()
	delete(p.localPeers, n.key)
	p.mu.Unlock()
}

// leaveLocalPeer removes a user. The last one closes the session.
func (p *Plugin) leaveLocalPeer(n *localPeer) {
	p.mu.Lock()
	n.users--
	last := n.users == 0
	p.mu.Unlock()
	if last {
		if err := errors.Join(n.session.Close(), n.session.Conn.Close()); err != nil {
			p.log.Debug("closing shared memory", slog.Any("cause", err))
		}
	}
}

// welcome establishes a localPeer that has dialed.
func (p *Plugin) welcome(conn *bootstrap.Conn, g *greeting) {
	key := localPeerKey{conn.Peer().Incarnation, g.number, false}
	p.mu.Lock()
	var n *localPeer
	if p.localPeers[key] == nil && p.try(key.process) {
		n = p.addLocalPeer(key)
	}
	p.mu.Unlock()
	if n == nil {
		_ = conn.CloseWith("the number is in use, or there were too many attempts to share memory")
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), shareTime)
	defer cancel()
	p.meet(ctx, n, conn)
}

// chosen returns the localPeer that the dialer has chosen for a connection, nil for the NICs.
func (p *Plugin) chosen(ctx context.Context, conn *bootstrap.Conn, g *greeting) (*localPeer, error) {
	if g.number == 0 {
		return nil, nil
	}
	p.mu.Lock()
	n := p.localPeers[localPeerKey{conn.Peer().Incarnation, g.number, !g.dialed}]
	p.mu.Unlock()
	if n == nil {
		return nil, fmt.Errorf("shared memory %s: %w", strconv.FormatUint(g.number, 16), verbs.ErrClosed)
	}
	n, err := n.wait(ctx)
	if n == nil && err == nil {
		err = fmt.Errorf("shared memory: %w", verbs.ErrNotSupported)
	}
	return n, err
}

// greeting returns the greeting of a connection to a Listener over a localPeer, or over the NICs if that is nil.
func (n *localPeer) greeting(conn connID) *greeting {
	if n == nil {
		return &greeting{conn: conn}
	}
	return &greeting{conn: conn, number: n.key.number, dialed: n.key.dialed}
}
