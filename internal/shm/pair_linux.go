package shm

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair returns two sockets of this process that are connected to each other, for tests.
func Pair() (pair [2]*net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return pair, os.NewSyscallError("socketpair", err)
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		c, e := net.FileConn(f) // it has a descriptor of its own
		_ = f.Close()
		if e != nil {
			err = e
			continue
		}
		pair[i] = c.(*net.UnixConn)
	}
	return pair, err
}
