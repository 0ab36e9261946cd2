package shm

import (
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// NewConn verifies that the process at the other end of c belongs to the same user.
func NewConn(c *net.UnixConn) (*Conn, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
	if own := os.Geteuid(); cred.Uid != uint32(own) {
		return nil, fmt.Errorf("the peer is user %d, this process user %d", int32(cred.Uid), own)
	}
	return &Conn{c, uint32(cred.Pid)}, nil
}

// Send sends a message, with a descriptor unless fd is negative. It does not block: it reports
// false if the socket is full or closed.
func (c *Conn) Send(m Message, fd int) bool {
	var rights []byte
	if fd >= 0 {
		rights = unix.UnixRights(fd)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	b := m.encode()
	e := raw.Control(func(fd uintptr) {
		err = unix.Sendmsg(int(fd), b[:], rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	})
	return e == nil && err == nil
}

// Receive waits for a message. fd is its descriptor, or -1. After an error the connection is
// unusable.
func (c *Conn) Receive() (m Message, fd int, err error) {
	var b [messageLen]byte
	// Space for one descriptor, or two with the padding on 64-bit systems. The kernel closes any further ones.
	oob := make([]byte, unix.CmsgSpace(4))
	n, o, _, _, err := c.ReadMsgUnix(b[:], oob)
	fd = descriptor(oob[:o])
	switch {
	case err != nil:
	case n == 0:
		err = io.EOF
	default:
		if m, err = decode(b[:n]); err == nil && (fd >= 0) != (m.Kind <= ShareFile) {
			err = fmt.Errorf("the peer sent message %d with descriptor %d", m.Kind, fd)
		}
	}
	if err != nil {
		Close(fd)
		return m, -1, err
	}
	return m, fd, nil
}

// descriptor returns the descriptor in the control data of a message, or -1. Of several, it closes all.
func descriptor(oob []byte) int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err == nil && len(messages) > 0 {
		fds, _ := unix.ParseUnixRights(&messages[0]) // nil on error
		if len(fds) == 1 {
			return fds[0]
		}
		for _, fd := range fds {
			Close(fd)
		}
	}
	return -1
}
