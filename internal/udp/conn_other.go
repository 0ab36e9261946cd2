//go:build !linux

package udp

import "net/netip"

// Conn has the sockets of one local address.
type Conn struct{}

// Open returns ErrNotSupported.
func Open(Config) (*Conn, error) { return nil, ErrNotSupported }

// OpenGroup returns ErrNotSupported.
func OpenGroup(Config, netip.Addr) (*Conn, error) { return nil, ErrNotSupported }

// The methods below are never reached: there is no Conn.

// Addr returns the address and port on which the Conn receives.
func (c *Conn) Addr() netip.AddrPort { return netip.AddrPort{} }

// Sockets returns how many sockets send.
func (c *Conn) Sockets() int { return 0 }

// SourcePort returns the port of a socket to send from.
func (c *Conn) SourcePort(int) uint16 { return 0 }

// Buffer returns the bytes that the kernel keeps for the receiver, overhead included.
func (c *Conn) Buffer() int { return 0 }

// Segments returns how many datagrams one run may have. 1 means no runs.
func (c *Conn) Segments() int { return 1 }

// Coalesces reports whether datagrams of one sender may arrive as one.
func (c *Conn) Coalesces() bool { return false }

// Wait waits until there is something to read.
func (c *Conn) Wait() error { return ErrNotSupported }

// Interrupt ends Wait.
func (c *Conn) Interrupt() error { return nil }

// Close closes the sockets.
func (c *Conn) Close() error { return nil }

// AimAt makes the sockets send to multicast groups.
func (c *Conn) AimAt(netip.Addr) error { return ErrNotSupported }

// NewReader returns a Reader of the Conn's datagrams.
func (c *Conn) NewReader() *Reader { return &Reader{} }

// NewWriter returns a Writer that sends from the Conn's sockets.
func (c *Conn) NewWriter() *Writer { return &Writer{} }

// Reader receives datagrams of a Conn in batches.
type Reader struct{}

// Read takes the datagrams that are there.
func (r *Reader) Read() (int, error) { return 0, ErrNotSupported }

// Drained reports whether the last Read took all that was there.
func (r *Reader) Drained() bool { return true }

// Datagram returns entry i of the last Read.
func (r *Reader) Datagram(int) *Datagram { return &Datagram{} }

// Writer sends datagrams of a Conn in batches.
type Writer struct{}

// Next returns room for the next datagram.
func (w *Writer) Next(_ *Dest, _, size int) (datagram []byte, k int) { return make([]byte, size), 0 }

// NextIn returns room for a datagram that is never sent.
func (w *Writer) NextIn(_ *Dest, _, size, _ int) (datagram []byte, k, fill int) {
	return make([]byte, size), 0, 0
}

// Flush sends what was begun.
func (w *Writer) Flush() (dropped int) { return 0 }

// Yield gives up the processor.
func Yield() {}

type rawAddr struct{}

func (r *rawAddr) set(netip.AddrPort) {}
