// Package pcap writes UDP packets to a file that tcpdump, tshark and Wireshark read. A program with a
// UDP socket never sees an IP header, so the package makes one from what the caller knows.
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
	// ErrWrite is a file that could not be written. The error that wraps it says why. Later packets
	// were dropped.
	ErrWrite = errors.New("pcap: cannot write")
)

// The file is a header and a record for each packet, in the byte order of the writer (here
// little-endian). The magic number says that times are in nanoseconds. The link type says that a
// packet begins with its IP header.
//
//	file     0 | magic a1b23c4d | version 2 . 4   |
//	         8 | zone 0         | accuracy 0      |
//	        16 | longest packet | link type 101   |
//	record   0 | seconds        | nanoseconds     |
//	         8 | length here    | length on wire  |
const (
	fileHeader   = 24
	recordHeader = 16

	magicNanos = 0xa1b23c4d
	linkRaw    = 101
	longest    = 65535
)

// Defaults of Config.
const (
	DefaultBuffer = 256 << 10
	DefaultLimit  = 1 << 30

	minBuffer = recordHeader + longest
)

// Config holds the limits of a Writer. The zero value means the defaults.
type Config struct {
	// Buffer is how many bytes are collected before they are written, at least 65551: one packet. 0
	// means DefaultBuffer.
	Buffer int
	// Limit is how many bytes the file may have. Packets that would make it longer are dropped and
	// counted. 0 means DefaultLimit.
	Limit int64
}

func (c Config) withDefaults() (Config, error) {
	if c.Buffer == 0 {
		c.Buffer = DefaultBuffer
	}
	if c.Limit == 0 {
		c.Limit = DefaultLimit
	}
	if c.Buffer < minBuffer {
		return c, fmt.Errorf("%w: Buffer is %d, want at least %d", ErrConfig, c.Buffer, minBuffer)
	}
	if c.Limit < fileHeader {
		return c, fmt.Errorf("%w: Limit is %d, want at least %d, the header of the file", ErrConfig, c.Limit, fileHeader)
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
	// buf holds bytes that are not written yet.
	buf []byte
	// room is how many more bytes the file may take, beyond those in buf.
	room    int64
	written uint64
	dropped uint64
	closed  bool
	// err is the first error of out.
	err error
}

// New returns a Writer on out. The caller closes out after the Writer.
func New(out io.Writer, cfg Config) (*Writer, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	w := &Writer{out: out, buf: make([]byte, 0, cfg.Buffer), room: cfg.Limit - fileHeader}
	b := binary.LittleEndian.AppendUint32(w.buf, magicNanos)
	b = binary.LittleEndian.AppendUint16(b, 2)
	b = binary.LittleEndian.AppendUint16(b, 4)
	b = binary.LittleEndian.AppendUint64(b, 0)
	b = binary.LittleEndian.AppendUint32(b, longest)
	w.buf = binary.LittleEndian.AppendUint32(b, linkRaw)
	return w, nil
}

// Create returns a Writer on a new file, which Close closes. It replaces an existing file.
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

// Packet writes one UDP packet. at is the time in nanoseconds since 1970, id the identification of the
// IPv4 header, class the traffic class (TOS), hops the hop limit (TTL), and parts together are the UDP
// payload. It drops and counts packets that cannot be
// written: the file is full, broken or closed, the addresses differ in family, or the packet is
// longer than 65,535 bytes. It does not allocate and does not keep parts.
func (w *Writer) Packet(at int64, src, dst netip.AddrPort, id uint16, class, hops uint8, parts ...[]byte) {
	w.mu.Lock()
	if w.append(at, src, dst, ipFields{id, class, hops}, parts) {
		w.written++
	} else {
		w.dropped++
	}
	w.mu.Unlock()
}

// append adds a packet to the buffer and reports whether it succeeded.
func (w *Writer) append(at int64, src, dst netip.AddrPort, f ipFields, parts [][]byte) bool {
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
	record := recordHeader + n
	if int64(record) > w.room {
		return false
	}
	if len(w.buf)+record > cap(w.buf) && !w.flush() {
		return false
	}
	w.room -= int64(record)
	b := binary.LittleEndian.AppendUint32(w.buf, uint32(at/1e9))
	b = binary.LittleEndian.AppendUint32(b, uint32(at%1e9))
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	begin := len(b)
	if from.Is6() {
		b = appendIPv6(b, from, to, n, f)
	} else {
		b = appendIPv4(b, from, to, n, f)
	}
	udp := len(b)
	b = appendUDP(b, src.Port(), dst.Port(), n-ip)
	for _, p := range parts {
		b = append(b, p...)
	}
	if from.Is6() {
		sumUDP(b[begin:], b[udp:])
	}
	w.buf = b
	return true
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

// Counts returns how many packets were accepted and how many were dropped. Accepted packets are
// in the file once Close has returned nil.
func (w *Writer) Counts() (written, dropped uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written, w.dropped
}

// Close writes the buffer, and closes the file if Create made it. It returns the first error of
// writing. A second Close does nothing and returns the same error.
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
