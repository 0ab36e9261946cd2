//go:build linux

package shm

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0
	futexWake = 1
)

// wait sleeps until wake is called on the word, unless the word differs from value. It may return
// early.
func wait(word *atomic.Uint32, value uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWait, uintptr(value), 0, 0, 0)
}

// wake wakes one thread, in any process, that waits on the word.
func wake(word *atomic.Uint32) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1, 0, 0, 0)
}
