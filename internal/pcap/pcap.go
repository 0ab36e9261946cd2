// Package pcap writes UDP packets to a file that tcpdump, tshark and Wireshark read. Those who
// call it are programs with a UDP socket, which never see an IP header; it is made up from
// what they know.
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

// Errors of New, and of Close.
var (
	// ErrConfig is a Config that cannot be right.
	ErrConfig = errors.New("pcap: bad config")
	// ErrWrite is a file that could not be written; what wraps it says why. What came
	// after it was dropped.
	ErrWrite = errors.New("pcap: cannot write")
)

// The file is a header and a record for each packet, in the byte order of whoever wrote it
// (here little-endian). The magic number says that times are in nanoseconds, and the link
// type that a packet begins with its IP header.
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

// Config says how much a Writer takes. The zero value is good.
type Config struct {
	// Buffer is how many bytes are collected before they are written; 0 means
	// DefaultBuffer. It is at least 65551, one packet.
	Buffer int
	// Limit is how many bytes the file may have; 0 means DefaultLimit. Packets that
	// would make it longer are dropped and counted.
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

// Writer writes packets. Any number of goroutines may use it. What they write at the same
// time comes in some order; readers can sort by time.
type Writer struct {
	mu      sync.Mutex
	out     io.Writer
	file    io.Closer // what Close closes; nil if the caller does
	buf     []byte    // what is not written yet
	room    int64     // bytes that the file may still take, those in buf taken off
	written uint64
	dropped uint64
	closed  bool
	err     error // the first of out
}

// New returns a Writer on out, which the caller closes after the Writer.
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

// Create returns a Writer on a new file, which Close closes. A file of that name is
// replaced.
func Create(name string, cfg Config) (*Writer, error) {
	if _, err := cfg.withDefaults(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600) // payload is nobody else's business
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

// Packet writes one UDP packet. at is the time in nanoseconds since 1970, id the
// identification of the IPv4 header, and the parts together are what UDP carries. Packets
// that cannot be written are dropped and counted: the file is full or broken or closed, the
// addresses are not of one family, the packet is longer than 65,535 bytes. It does not
// allocate and keeps nothing of the parts.
func (w *Writer) Packet(at int64, src, dst netip.AddrPort, id uint16, parts ...[]byte) {
	w.mu.Lock()
	if w.append(at, src, dst, id, parts) {
		w.written++
	} else {
		w.dropped++
	}
	w.mu.Unlock()
}

// append puts a packet into the buffer and reports whether it could.
func (w *Writer) append(at int64, src, dst netip.AddrPort, id uint16, parts [][]byte) bool {
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
		b = appendIPv6(b, from, to, n)
	} else {
		b = appendIPv4(b, from, to, n, id)
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

// flush writes the buffer and reports whether that went well.
func (w *Writer) flush() bool {
	if w.err == nil && len(w.buf) > 0 {
		if _, err := w.out.Write(w.buf); err != nil {
			w.err = fmt.Errorf("%w: %w", ErrWrite, err)
		}
	}
	w.buf = w.buf[:0]
	return w.err == nil
}

// Flush writes what is in the buffer.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.flush()
	}
	return w.err
}

// Counts returns how many packets were taken and how many were dropped. What was taken is
// in the file once Close has returned nil.
func (w *Writer) Counts() (written, dropped uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written, w.dropped
}

// Close writes what is in the buffer, and closes the file if Create made it. It returns the
// first error that writing met; a second Close does nothing and returns the same.
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
