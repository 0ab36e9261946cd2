// Package pcap writes UDP packets to a pcapng file for tcpdump, tshark and Wireshark. [Create] opens the
// file; a NIC passes each packet to [Interface.Packet]. UDP sockets never see an IP header, so the package
// creates one from the arguments.
package pcap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
)

// Errors of New and Close.
var (
	// ErrConfig means that a Config is invalid.
	ErrConfig = errors.New("pcap: bad config")
	// ErrWrite means that the file could not be written. The wrapping error gives the reason. Later
	// packets were dropped.
	ErrWrite = errors.New("pcap: cannot write")
)

// Defaults of Config.
const (
	DefaultBuffer = 256 << 10
	DefaultLimit  = 1 << 30

	minBuffer = packetOverhead + longest + 3
	minLimit  = 1 << 10
)

// Config holds the limits of a Writer. The zero value means the defaults.
type Config struct {
	// Buffer is the size of the write buffer in bytes, at least 65570: one packet. 0 means
	// DefaultBuffer.
	Buffer int
	// Limit is the maximum size of the file in bytes, at least 1024. Packets that would exceed it
	// are dropped and counted. 0 means DefaultLimit.
	Limit int64
	// SnapLen is the maximum number of bytes written per packet, including the IP header, at most
	// 65535. 0 means all.
	SnapLen int
	// Application is the program and version recorded in the file.
	Application string
}

func (c Config) withDefaults() (Config, error) {
	if c.Buffer == 0 {
		c.Buffer = DefaultBuffer
	}
	if c.Limit == 0 {
		c.Limit = DefaultLimit
	}
	if c.SnapLen == 0 {
		c.SnapLen = longest
	}
	switch {
	case c.Buffer < minBuffer:
		return c, fmt.Errorf("%w: Buffer is %d, want at least %d", ErrConfig, c.Buffer, minBuffer)
	case c.Limit < minLimit:
		return c, fmt.Errorf("%w: Limit is %d, want at least %d", ErrConfig, c.Limit, minLimit)
	case c.SnapLen < 1 || c.SnapLen > longest:
		return c, fmt.Errorf("%w: SnapLen is %d, want 1 to %d", ErrConfig, c.SnapLen, longest)
	}
	return c, nil
}

// Writer writes packets. It is safe for concurrent use. Packets of several goroutines may be slightly
// out of order; readers can sort by time.
type Writer struct {
	mu  sync.Mutex
	out io.Writer
	// file is closed by Close. It is nil if the caller closes out.
	file io.Closer
	// buf holds unwritten bytes.
	buf []byte
	// snapLen is the maximum number of bytes written per packet.
	snapLen int
	// remaining is the remaining file capacity in bytes, beyond the bytes in buf.
	remaining int64
	// interfaces are ordered by their numbers in the file.
	interfaces []*Interface
	written    uint64
	dropped    uint64
	paused     bool
	closed     bool
	// err is the first error of out.
	err error
}

// Interface is a captured NIC. It implements softnic.Capture.
type Interface struct {
	w                 *Writer
	name, description string
	// id is the number in the file, -1 if the file was full.
	id int
}

// New returns a Writer on out. The caller closes out after the Writer.
func New(out io.Writer, cfg Config) (*Writer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	w := &Writer{out: out, buf: make([]byte, 0, cfg.Buffer), snapLen: cfg.SnapLen, remaining: cfg.Limit}
	w.block(section(cfg.Application))
	return w, nil
}

// Create returns a Writer on a new file, which Close closes. An existing file is replaced.
func Create(name string, cfg Config) (*Writer, error) {
	if _, err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // the payload is private
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWrite, err)
	}
	w, err := New(f, cfg)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	w.file = f
	return w, nil
}

// Interface returns an interface with a name and a description, which readers show with each
// packet.
func (w *Writer) Interface(name, description string) *Interface {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range w.interfaces {
		if i.name == name && i.description == description {
			return i
		}
	}
	i := &Interface{w: w, name: name, description: description, id: -1}
	if w.block(describe(name, description, w.snapLen)) {
		i.id = len(w.interfaces)
		w.interfaces = append(w.interfaces, i)
	}
	return i
}

// block adds a block to the buffer and reports whether it succeeded.
func (w *Writer) block(b []byte) bool {
	if w.closed || w.err != nil || int64(len(b)) > w.remaining || len(w.buf)+len(b) > cap(w.buf) && !w.flush() {
		return false
	}
	w.remaining -= int64(len(b))
	w.buf = append(w.buf, b...)
	return true
}

// Pause starts or stops ignoring packets. Ignored packets are not counted.
func (w *Writer) Pause(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.paused = on
}

// Packet writes one UDP packet. at is the time in nanoseconds since 1970, id the identification of
// the IPv4 header, class the traffic class (TOS), hops the hop limit (TTL), and parts together are
// the UDP payload. A packet is dropped and counted if the file is full, broken or closed, the
// addresses differ in family, or the packet is longer than 65,535 bytes. Packet does not allocate
// and does not keep parts.
func (i *Interface) Packet(at int64, src, dst netip.AddrPort, id uint16, class, hops uint8, parts ...[]byte) {
	w := i.w
	w.mu.Lock()
	switch {
	case w.paused:
	case i.id >= 0 && w.append(uint32(i.id), at, src, dst, ipFields{id, class, hops}, parts):
		w.written++
	default:
		w.dropped++
	}
	w.mu.Unlock()
}

// append adds a packet to the buffer and reports whether it succeeded.
func (w *Writer) append(id uint32, at int64, src, dst netip.AddrPort, f ipFields, parts [][]byte) bool {
	from, to := src.Addr().Unmap(), dst.Addr().Unmap()
	if w.closed || w.err != nil || at < 0 || !from.IsValid() || from.BitLen() != to.BitLen() {
		return false
	}
	ip := ip4Len
	if from.Is6() {
		ip = ip6Len
	}
	n := ip + udpLen
	for _, p := range parts {
		n += len(p)
		if n > longest {
			return false
		}
	}
	kept := min(n, w.snapLen)
	block := packetOverhead + (kept+3)&^3
	if int64(block) > w.remaining {
		return false
	}
	if len(w.buf)+packetOverhead+n+3 > cap(w.buf) && !w.flush() { // the whole packet, for the checksums
		return false
	}
	w.remaining -= int64(block)
	start := len(w.buf)
	b := begin(w.buf, blockPacket)
	b = binary.LittleEndian.AppendUint32(b, id)
	b = binary.LittleEndian.AppendUint32(b, uint32(at>>32))
	b = binary.LittleEndian.AppendUint32(b, uint32(at))
	b = binary.LittleEndian.AppendUint32(b, uint32(kept))
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	packet := len(b)
	b = appendPacket(b, src, dst, n, f, parts)
	w.buf = end(b[:packet+kept], start)
	return true
}

// appendPacket appends a packet of n bytes with its headers.
func appendPacket(b []byte, src, dst netip.AddrPort, n int, f ipFields, parts [][]byte) []byte {
	from, to, start := src.Addr().Unmap(), dst.Addr().Unmap(), len(b)
	if from.Is6() {
		b = appendIPv6(b, from, to, n, f)
	} else {
		b = appendIPv4(b, from, to, n, f)
	}
	udp := len(b)
	b = appendUDP(b, src.Port(), dst.Port(), n-(udp-start))
	for _, p := range parts {
		b = append(b, p...)
	}
	if from.Is6() {
		sumUDP(b[start:], b[udp:])
	}
	return b
}

// flush writes the buffer and reports whether it succeeded.
func (w *Writer) flush() bool {
	if w.err == nil && len(w.buf) > 0 {
		if _, err := w.out.Write(w.buf); err != nil {
			w.err = fmt.Errorf("%w: %w", ErrWrite, err)
		}
	}
	w.buf = w.buf[:0]
	return w.err == nil
}

// Counts returns the number of accepted and of dropped packets. Accepted packets are in the file
// once Close has returned nil.
func (w *Writer) Counts() (written, dropped uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written, w.dropped
}

// Close flushes the buffer, and closes the file if Create opened it. It returns the first write
// error. A second Close is a no-op and returns the same error.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return w.err
	}
	w.flush()
	w.closed = true
	if w.file != nil {
		if err := w.file.Close(); err != nil && w.err == nil {
			w.err = fmt.Errorf("%w: %w", ErrWrite, err)
		}
	}
	return w.err
}
