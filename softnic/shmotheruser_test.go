//go:build linux

package softnic_test

import (
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx/softnic"
)

// TestShmOtherUser: a process of another user cannot get a link.
func TestShmOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as another user")
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@ibverbx-test-" + t.Name(), Net: "unix"})
	must(t, err)
	defer func() { must(t, l.Close()) }()
	dialed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the thread has another UID and exits with the goroutine
		const nobody, same = 65534, ^uintptr(0)
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, same, nobody, same); e != 0 {
			dialed <- e
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			defer func() { _ = unix.Close(fd) }()
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: l.Addr().String()})
		}
		dialed <- err
	}()
	must(t, <-dialed)
	conn, err := l.AcceptUnix()
	must(t, err)
	if _, err := softnic.NewShmLink(conn); err == nil || !strings.Contains(err.Error(), "user 65534") {
		t.Errorf("NewShmLink with a peer of another user = %v, want an error that names it", err)
	}
}
