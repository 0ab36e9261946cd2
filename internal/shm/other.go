//go:build !linux

package shm

import (
	"errors"
	"net"
	"sync/atomic"
)

var errSystem = errors.New("a shared-memory link needs Linux")

// NewConn is only for Linux, and so are all others.
func NewConn(*net.UnixConn) (*Conn, error) { return nil, errSystem }

// Send is only for Linux.
func (*Conn) Send(Message, int) bool { return false }

// Receive is only for Linux.
func (*Conn) Receive() (Message, int, error) { return Message{}, -1, errSystem }

// Create is only for Linux.
func Create(int, bool) ([]byte, int, error) { return nil, -1, errSystem }

// Share is only for Linux.
func Share(int, bool) bool { return false }

// Map is only for Linux.
func Map(int, uint64, bool) ([]byte, error) { return nil, errSystem }

// Unmap is only for Linux.
func Unmap([]byte) {}

// Close is only for Linux.
func Close(int) {}

// Process is only for Linux.
type Process struct{}

// Pid is only for Linux.
func Pid() uint32 { return 0 }

// NewProcess is only for Linux.
func NewProcess(uint32, uint64, []byte) *Process { return nil }

// Is is only for Linux.
func (*Process) Is() bool { return false }

// Ended is only for Linux.
func (*Process) Ended() bool { return false }

// Close is only for Linux.
func (*Process) Close() {}

// Read is only for Linux.
func (*Process) Read(uint64, [][]byte) bool { return false }

// Write is only for Linux.
func (*Process) Write(uint64, [][]byte) bool { return false }

func wait(*atomic.Uint32, uint32) {}

func wake(*atomic.Uint32) {}
