// Package chunk reads and writes files in chunks of 1 MiB, each with a digest.
//
// A [Source] is a file that is read for a peer. It is never mapped: a file that is truncated or replaced meanwhile is an
// error, not a signal that ends the process.
//
// A [Target] is a file that is received. It grows in a partial file beside its place and is renamed when it is complete.
// There is no journal: to go on after a crash, a Target reads the chunks that are there and compares digests. So a chunk that was
// half written is a chunk with a wrong digest.
package chunk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// Size is the length of a chunk in bytes. The last chunk of a file may be shorter.
const Size = 1 << 20

// Errors. Returned errors wrap one of these, or the error of the operating system, and name the file.
var (
	// ErrChanged means that a file was changed, truncated or replaced while it was read.
	ErrChanged = errors.New("the file has changed")
	// ErrDigest means that bytes do not have their digest.
	ErrDigest = errors.New("the digest is wrong")
	// ErrBusy means that another Target receives the same file.
	ErrBusy = errors.New("the file is being received already")
	// ErrIncomplete means that chunks are missing.
	ErrIncomplete = errors.New("chunks are missing")
	// ErrName means that a name cannot be used.
	ErrName = errors.New("the name cannot be used")
	// ErrTooMany means that a directory has too many names.
	ErrTooMany = errors.New("too many names")
	// ErrKind means that something is not a regular file, a directory or a symbolic link, or not the one that it must be.
	ErrKind = errors.New("the kind of file cannot be used")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Digest returns the CRC32C of the bytes of a chunk.
func Digest(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// Fingerprint tells two versions of a chunk apart. Its upper half is the Digest, and the lower half a CRC with another polynomial. Two chunks
// that differ by accident have the same Digest once in 2^32 times, which is not enough for the millions of chunks of an old
// version of a file.
type Fingerprint uint64

// FingerprintOf returns the Fingerprint of bytes that have a Digest.
func FingerprintOf(b []byte, digest uint32) Fingerprint {
	return Fingerprint(digest)<<32 | Fingerprint(crc32.ChecksumIEEE(b))
}

// Digest returns the Digest that the bytes have.
func (f Fingerprint) Digest() uint32 { return uint32(f >> 32) }

// zeros is a chunk of zeros.
var zeros [Size]byte

// Zero reports whether all bytes are zero.
func Zero(b []byte) bool {
	return len(b) <= Size && bytes.Equal(b, zeros[:len(b)])
}

// Count returns how many chunks a file of size bytes has.
func Count(size int64) int64 { return (size + Size - 1) / Size }

// Len returns how many bytes chunk k of a file of size bytes has.
func Len(size, k int64) int { return int(min(size-k*Size, Size)) }

// Sum is a digest of a whole file: its size and the digests of its chunks.
type Sum [sha256.Size]byte

// Total returns the Sum of a file of size bytes. digest returns the digest of chunk k.
func Total(size int64, digest func(k int64) uint32) (s Sum) {
	h := sha256.New()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(size))
	h.Write(b[:])
	for k := range Count(size) {
		binary.LittleEndian.PutUint32(b[:4], digest(k))
		h.Write(b[:4])
	}
	h.Sum(s[:0])
	return s
}

// wrongDigest is the error of a chunk whose bytes do not have their digest.
func wrongDigest(name string, k int64, got, want uint32) error {
	return fmt.Errorf("%s: %w: chunk %d has %#08x, want %#08x", name, ErrDigest, k, got, want)
}
