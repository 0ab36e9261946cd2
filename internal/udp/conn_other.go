//go:build !linux

package udp

import "net/netip"

// Conn holds the sockets of one local address.
type Conn struct{}

// Open returns ErrNotSupported.
func Open(Config) (*Conn, error) { return nil, ErrNotSupported }

// OpenGroup returns ErrNotSupported.
func OpenGroup(Config, netip.Addr) (*Conn, error) { return nil, ErrNotSupported }

// The methods below are never reached, because Open always fails.

// Addr returns the receiving address and port.
func (c *Conn) Addr() netip.AddrPort { return netip.AddrPort{} }

// Sockets returns the number of sending sockets.
func (c *Conn) Sockets() int { return 0 }

// SourcePort returns the source port of a socket.
func (c *Conn) SourcePort(int) uint16 { return 0 }

// Buffer returns the size of the kernel's receive buffer in bytes, including overhead.
func (c *Conn) Buffer() int { return 0 }

// Segments returns the maximum number of datagrams per run; 1 means that runs are disabled.
func (c *Conn) Segments() int { return 1 }

// Coalesces reports whether datagrams from one sender may arrive as a run.
func (c *Conn) Coalesces() bool { return false }

// Wait blocks until a datagram is available.
func (c *Conn) Wait() error { return ErrNotSupported }

// Interrupt makes Wait return.
func (c *Conn) Interrupt() error { return nil }

// Close closes the sockets.
func (c *Conn) Close() error { return nil }

// AimAt sets the interface for sending to multicast groups.
func (c *Conn) AimAt(netip.Addr) error { return ErrNotSupported }

// NewReader returns a Reader of the Conn's datagrams.
func (c *Conn) NewReader() *Reader { return &Reader{} }

// NewWriter returns a Writer that sends from the Conn's sockets.
func (c *Conn) NewWriter() *Writer { return &Writer{} }

// Reader receives the datagrams of a Conn in batches.
type Reader struct{}

// Read receives the available datagrams.
func (r *Reader) Read() (int, error) { return 0, ErrNotSupported }

// Drained reports whether the last Read left no datagrams behind.
func (r *Reader) Drained() bool { return true }

// Datagram returns entry i of the last Read.
func (r *Reader) Datagram(int) *Datagram { return &Datagram{} }

// Writer sends the datagrams of a Conn in batches.
type Writer struct{}

// Next returns a buffer for the next datagram.
func (w *Writer) Next(_ *Dest, _, size int) (datagram []byte, k int) { return make([]byte, size), 0 }

// NextIn returns a buffer for a datagram that is never sent.
func (w *Writer) NextIn(_ *Dest, _, size, _ int) (datagram []byte, k, fill int) {
	return make([]byte, size), 0, 0
}

// NextWith returns buffers for a datagram that is never sent.
func (w *Writer) NextWith(_ *Dest, _, headSize, tailSize, _ int, _ [][]byte) (head, tail []byte, k, fill int) {
	return make([]byte, headSize), make([]byte, tailSize), 0, 0
}

// Flush sends all pending datagrams.
func (w *Writer) Flush() (dropped int) { return 0 }

// Yield yields the CPU.
func Yield() {}

type rawAddr struct{}

func (r *rawAddr) set(netip.AddrPort) {}
