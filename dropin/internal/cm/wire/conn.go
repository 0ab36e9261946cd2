//go:build linux

package wire

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/dropin/internal/cm"
)

const (
	// answerTimeout bounds the wait for the response to a REQ or REP, which depends on the peer's
	// program. The kernel's limit is similar.
	answerTimeout = 60 * time.Second
	// leaveTimeout bounds the wait for a DREP.
	leaveTimeout = 5 * time.Second
)

// conn is a TCP connection for the messages of one RDMA connection.
type conn struct {
	local, remote netip.AddrPort
	// cancel aborts open. It is nil for passive connections.
	cancel context.CancelFunc

	// mu guards the fields below. A process sends at most four records on a connection, which fit the socket's buffer, so writes do not block.
	mu     sync.Mutex
	tcp    *net.TCPConn // nil until open succeeds
	closed bool
	// awaiting is the last message sent that bounds the wait for its response.
	awaiting cm.Kind
}

// open opens the TCP connection of an active port and sends the REQ. On failure, it returns a
// message in place of the peer's, or an errno.
func (c *conn) open(ctx context.Context, p *port, req *cm.Message) (*cm.Message, syscall.Errno) {
	addr, err := p.find()
	var tcp net.Conn
	if err == nil {
		d := net.Dialer{
			LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.local.Addr(), 0)), Timeout: reachTimeout,
			KeepAliveConfig: keepAlive,
		}
		tcp, err = d.DialContext(ctx, "tcp", addr.String())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		if tcp != nil {
			_ = tcp.Close()
		}
		return nil, syscall.ECANCELED // ignored
	case refused(err):
		return &cm.Message{Kind: cm.REJ, Reason: cm.RejectNoListener}, 0
	case err != nil:
		return nil, errno(err)
	}
	c.tcp = tcp.(*net.TCPConn)
	c.send(req)
	return nil, 0
}

// refused reports whether connecting failed because the port does not listen. A listener that
// closes while a connection waits in its backlog resets the connection.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
}

// read reads the next message.
func (c *conn) read() (m cm.Message, err error) {
	var b [recordSize]byte
	if _, err := io.ReadFull(c.tcp, b[:]); err != nil {
		return m, err
	}
	return decode(b[:])
}

// deliver passes messages to h until the connection fails or closes.
func (c *conn) deliver(h cm.Handler) {
	for {
		m, err := c.read()
		switch {
		case err == nil:
			c.responded(m.Kind)
			h.Received(&m)
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			h.Lost(syscall.ETIMEDOUT)
		default: // the peer has closed the connection, or sent an invalid record
			h.Lost(0)
		}
		return
	}
}

// responded ends the wait for a response if a message is one. Rejections and disconnections close the connection, and the Handler ignores
// other messages.
func (c *conn) responded(kind cm.Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.awaiting == cm.REQ && kind == cm.REP || c.awaiting == cm.REP && kind == cm.RTU {
		_ = c.tcp.SetReadDeadline(time.Time{})
	}
}

// Addrs implements cm.Conn.
func (c *conn) Addrs() (local, remote netip.AddrPort) { return c.local, c.remote }

// Send implements cm.Conn.
func (c *conn) Send(m *cm.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tcp != nil && !c.closed {
		c.send(m)
	}
}

// send sends a message, and bounds the wait for the response. A failed write also fails the next read.
func (c *conn) send(m *cm.Message) {
	switch m.Kind {
	case cm.REQ, cm.REP:
		c.awaiting = m.Kind
		_ = c.tcp.SetReadDeadline(time.Now().Add(answerTimeout))
	case cm.DREQ:
		c.awaiting = m.Kind
		_ = c.tcp.SetReadDeadline(time.Now().Add(leaveTimeout))
	default: // without a response
	}
	c.write(encode(m))
}

// write writes a record without raising SIGPIPE: it may run on a thread of the program, which a
// lost peer must not kill.
func (c *conn) write(b []byte) {
	raw, err := c.tcp.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Write(func(fd uintptr) bool {
		n, err := unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		b = b[max(n, 0):]
		return len(b) == 0 || err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR)
	})
}

// Close implements cm.Conn. A forked child may still have the socket, so the connection is shut down, too.
func (c *conn) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	if c.cancel != nil {
		c.cancel()
	}
	if c.tcp != nil {
		_ = c.tcp.CloseWrite()
		_ = c.tcp.Close()
	}
}
