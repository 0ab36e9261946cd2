package shm

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair returns two connected sockets of this process, for tests.
func Pair() (pair [2]*net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return pair, os.NewSyscallError("socketpair", err)
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, e := net.FileConn(f) // duplicates the descriptor
		_ = f.Close()
		if e != nil {
			err = e
			continue
		}
		pair[i] = c.(*net.UnixConn)
	}
	return pair, err
}
