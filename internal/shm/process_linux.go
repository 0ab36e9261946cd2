package shm

import (
	"bytes"
	"os"

	"golang.org/x/sys/unix"
)

// Process is another process whose memory is accessible as for a debugger (process_vm_readv(2)). It
// is not safe for concurrent use.
type Process struct {
	pid int
	// file is a pidfd of the process, nil if the system does not support it.
	file *os.File
	// want is the expected content at addr, which identifies the process.
	want   []byte
	addr   uint64
	local  [maxPieces]unix.Iovec
	remote [1]unix.RemoteIovec
}

// Pid returns the ID of this process, for NewProcess.
func Pid() uint32 { return uint32(os.Getpid()) }

// NewProcess returns the process with the given ID if its memory is accessible and contains want at
// addr. Otherwise it returns nil: IDs differ between namespaces, and a system may forbid the
// access. It always returns nil for this process, because a peer must not make it write its own
// memory.
func NewProcess(pid uint32, addr uint64, want []byte) *Process {
	p := &Process{pid: int(pid), want: want, addr: addr}
	if fd, err := unix.PidfdOpen(p.pid, unix.PIDFD_NONBLOCK); err == nil {
		p.file = os.NewFile(uintptr(fd), "pidfd")
	}
	if pid == Pid() || !p.Is() { // if it still runs, file belongs to it
		p.Close()
		return nil
	}
	return p
}

// Ended waits until the process has exited. It reports false if p was closed first, or if the
// system does not support pidfds.
func (p *Process) Ended() (ended bool) {
	if p.file == nil {
		return false
	}
	raw, err := p.file.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		ended = n == 1 && err == nil
		return ended
	})
	return ended && err == nil
}

// Close makes Ended return. It may be called more than once, and on nil.
func (p *Process) Close() {
	if p != nil && p.file != nil {
		_ = p.file.Close() // it may be closed already
	}
}

// Is reports whether the process still runs. Its ID may have been reused.
func (p *Process) Is() bool {
	got := make([]byte, len(p.want))
	return p.Read(p.addr, [][]byte{got}) && bytes.Equal(got, p.want)
}

// Read copies bytes at addr of the process to the pieces: at most four, none empty. It reports
// whether all were copied.
func (p *Process) Read(addr uint64, pieces [][]byte) bool {
	n := p.prepare(addr, pieces)
	k, err := unix.ProcessVMReadv(p.pid, p.local[:len(pieces)], p.remote[:], 0)
	return err == nil && k == n
}

// Write is Read in the other direction.
func (p *Process) Write(addr uint64, pieces [][]byte) bool {
	n := p.prepare(addr, pieces)
	k, err := unix.ProcessVMWritev(p.pid, p.local[:len(pieces)], p.remote[:], 0)
	return err == nil && k == n
}

func (p *Process) prepare(addr uint64, pieces [][]byte) (n int) {
	for i, b := range pieces {
		p.local[i].Base = &b[0]
		p.local[i].SetLen(len(b))
		n += len(b)
	}
	p.remote[0] = unix.RemoteIovec{Base: uintptr(addr), Len: n}
	return n
}
