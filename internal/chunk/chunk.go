// Package chunk reads and writes files and directory trees for package files, in chunks of 1 MiB, each
// with a digest. The caller transfers the chunks.
//
// A [Source] reads a file, a [Walk] lists a tree, and a [FileReader] reads its small files. Files are never
// mapped, so truncating or replacing one causes an error, not a signal that kills the process.
//
// A [Target] receives a file. It writes to a partial file in the same directory and renames it once it is
// complete. It does not need a journal: to resume after a crash, it reads the stored chunks and compares
// digests. A half-written chunk has a wrong digest. A [Tree] receives a directory tree.
//
// [Size], [Digest], [Fingerprint], [Total] and the order of a Walk are part of the protocol of package
// files: a change needs a new version there. So that downloads resume after an update, do not rename
// partial files.
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
	// ErrDigest means that data does not match its digest.
	ErrDigest = errors.New("the digest is wrong")
	// ErrBusy means that another Target is receiving the same file.
	ErrBusy = errors.New("the file is being received already")
	// ErrIncomplete means that chunks are missing.
	ErrIncomplete = errors.New("chunks are missing")
	// ErrName means that a name is not allowed.
	ErrName = errors.New("the name cannot be used")
	// ErrTooMany means that a directory has too many names.
	ErrTooMany = errors.New("too many names")
	// ErrKind means that a file is not a regular file, a directory or a symbolic link, or not of
	// the required type.
	ErrKind = errors.New("the kind of file cannot be used")
	// ErrForeign means that another user owns a partial file or can write to it.
	ErrForeign = errors.New("the partial file is not private to this user")
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Digest returns the CRC32C of a chunk.
func Digest(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// Fingerprint distinguishes versions of a chunk. Its upper half is the Digest, the lower half a CRC
// with another polynomial. Digest alone collides with probability 2^-32, too often for the millions
// of chunks in old versions of a file.
type Fingerprint uint64

// FingerprintOf returns the Fingerprint of b, whose Digest is known.
func FingerprintOf(b []byte, digest uint32) Fingerprint {
	return Fingerprint(digest)<<32 | Fingerprint(crc32.ChecksumIEEE(b))
}

// Digest returns the Digest of the chunk.
func (f Fingerprint) Digest() uint32 { return uint32(f >> 32) }

// zeros is a chunk of zeros.
var zeros [Size]byte

// Zero reports whether all bytes are zero.
func Zero(b []byte) bool {
	return len(b) <= Size && bytes.Equal(b, zeros[:len(b)])
}

// Count returns the number of chunks in a file of size bytes.
func Count(size int64) int64 { return (size + Size - 1) / Size }

// Len returns the length of chunk k in a file of size bytes.
func Len(size, k int64) int { return int(min(size-k*Size, Size)) }

// Sum is the digest of a whole file: of its size and its chunk digests.
type Sum [sha256.Size]byte

// Total returns the Sum of a file with size bytes. digest returns chunk k's digest.
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

// wrongDigest returns the error for a chunk that does not match its digest.
func wrongDigest(name string, k int64, got, want uint32) error {
	return fmt.Errorf("%s: %w: chunk %d has %#08x, want %#08x", name, ErrDigest, k, got, want)
}
