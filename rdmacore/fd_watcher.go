//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// watcher runs a function whenever a file descriptor of the library is readable. It has
// one goroutine, parked in Go's poller.
type watcher struct {
	file *os.File
	done chan struct{}
}

// watch starts a watcher on a duplicate of fd. The library keeps fd and closes it when its object
// is destroyed. ready handles all pending events and returns true to stop the watcher.
func watch(fd int, what string, ready func() (end bool)) (*watcher, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of %s: %w", what, err)
	}
	// The flag belongs to the open file, so it also applies to the library's descriptor. NewFile
	// checks it, so it must be set first.
	if err := unix.SetNonblock(dup, true); err != nil {
		_ = unix.Close(dup)
		return nil, fmt.Errorf("make the descriptor of %s non-blocking: %w", what, err)
	}
	file := os.NewFile(uintptr(dup), what)
	conn, err := pollable(file)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("wait for %s: %w", what, err)
	}
	w := &watcher{file: file, done: make(chan struct{})}
	go w.run(conn, ready)
	return w, nil
}

// pollable returns the raw connection of a file that Go's poller has accepted. Without the
// poller every read would block a thread.
func pollable(file *os.File) (syscall.RawConn, error) {
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	return file.SyscallConn()
}

// run parks in Read, which calls ready at the start and whenever the descriptor becomes
// readable, until ready returns true or the file is closed.
func (w *watcher) run(conn syscall.RawConn, ready func() bool) {
	defer close(w.done)
	_ = conn.Read(func(uintptr) bool { return ready() }) // returns when the file is closed
}

// stop stops the watcher and waits for its goroutine.
func (w *watcher) stop() {
	_ = w.file.Close()
	<-w.done
}
