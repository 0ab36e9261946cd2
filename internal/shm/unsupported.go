//go:build !linux

package shm

import (
	"errors"
	"net"
	"sync/atomic"
)

var errSystem = errors.New("a shared-memory link needs Linux")

// NewConn always fails, and so does Create. The other functions are never reached.
func NewConn(*net.UnixConn) (*Conn, error) { return nil, errSystem }

// Send is implemented on Linux only.
func (*Conn) Send(Message, int) bool { return false }

// Receive is implemented on Linux only.
func (*Conn) Receive() (Message, int, error) { return Message{}, -1, errSystem }

// Create is implemented on Linux only.
func Create(int, bool) ([]byte, int, error) { return nil, -1, errSystem }

// Share is implemented on Linux only.
func Share(int, bool) bool { return false }

// Map is implemented on Linux only.
func Map(int, uint64, bool) ([]byte, error) { return nil, errSystem }

// Unmap is implemented on Linux only.
func Unmap([]byte) {}

// Close is implemented on Linux only.
func Close(int) {}

// Process is implemented on Linux only.
type Process struct{}

// Pid is implemented on Linux only.
func Pid() uint32 { return 0 }

// NewProcess is implemented on Linux only.
func NewProcess(uint32, uint64, []byte) *Process { return nil }

// Is is implemented on Linux only.
func (*Process) Is() bool { return false }

// Ended is implemented on Linux only.
func (*Process) Ended() bool { return false }

// Close is implemented on Linux only.
func (*Process) Close() {}

// Read is implemented on Linux only.
func (*Process) Read(uint64, [][]byte) bool { return false }

// Write is implemented on Linux only.
func (*Process) Write(uint64, [][]byte) bool { return false }

func wait(*atomic.Uint32, uint32) {}

func wake(*atomic.Uint32) {}
