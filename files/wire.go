package files

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/internal/chunk"
	"ibverbx/internal/filter"
	"ibverbx/internal/rpc"
	"ibverbx/internal/service"
	"ibverbx/internal/wire"
	"ibverbx/transfer"
)

// version is this package's protocol version.
const version = 5

// Messages, see package rpc. The receiver of a file requests each chunk. The sender writes it to the memory given in the request, and
// responds.
const (
	kindFileOpen  rpc.Kind = 0x10 // id, handle u32, attributes u8, name
	kindFileList  rpc.Kind = 0x11 // id, length of name u16, name, after
	kindFileChunk rpc.Kind = 0x12 // id, handle u32, index u64, state u8, fingerprint u64, grant u32, region
	kindFileDone  rpc.Kind = 0x13 // id, handle u32
	kindFilePut   rpc.Kind = 0x14 // id, flags u8, sync u8, length of source u16, source, length of name u16, name, rules

	kindFileOpened  rpc.Kind = 0x90 // id, fresh u8, entry
	kindFileEntries rpc.Kind = 0x91 // id, more u8, entries
	kindFileChunked rpc.Kind = 0x92 // id, origin u8, digest u32, rails
	kindFileEnded   rpc.Kind = 0x93 // id, hasSum u8, sum of 32 bytes
	kindFileStored  rpc.Kind = 0x94 // id, 8 numbers u64, failures

	maxPath    = 4096                     // length of a path, and of a link's target
	maxEntries = 512                      // entries per response
	maxIndex   = MaxFileSize / chunk.Size // chunks per file
	maxPage    = 512 << 10                // bytes of entries that fill a response
)

// fileOpen opens a file or directory. The response is fileOpened. The requester chooses the handle, so it can repeat the request after a
// lost session, and release a file without having the response. Handle zero only describes the file.
type fileOpen struct {
	id, handle uint32
	name       string
	want       chunk.Want
}

// fileOpened describes the opened file. Directories do not use the handle. fresh is set if the file
// may still be modified without a change of its modification time.
type fileOpened struct {
	id    uint32
	fresh bool
	entry fileEntry
}

// fileList requests a directory's entries after a name. An empty name means all exports.
type fileList struct {
	id          uint32
	name, after string
}

// fileEntries holds entries sorted by name. more is set if others follow.
type fileEntries struct {
	id      uint32
	more    bool
	entries []fileEntry
}

// fileEntry is a directory entry. Its name may be anything without slashes and zero bytes. If access is not 0, it is an export or a single
// requested file, and its name is a path.
type fileEntry struct {
	chunk.Entry
	// access is the peer's access.
	access Access
}

// fileChunk requests a chunk of an open file and grants memory for it. If the requester has a chunk with the given Fingerprint, it need not
// be written.
type fileChunk struct {
	id, handle uint32
	index      uint64
	state      chunkState
	print      chunk.Fingerprint
	grant      uint32
	stage      ibverbx.RemoteRegion
}

// chunkState describes the requester's cached chunk.
type chunkState uint8

const (
	cachedNone        chunkState = iota // no chunk exists
	cachedFingerprint                   // its Fingerprint, perhaps from another version of the file
	cachedDigest                        // the upper half of its Fingerprint, from this version
)

// fileChunked reports the chunk's digest and origin.
type fileChunked struct {
	id     uint32
	origin chunkOrigin
	digest uint32
	rails  railCounts
}

// railCounts holds the number of bytes that the sender has written to the receiver over each rail
// of their session. The receiver cannot count incoming WRITEs.
type railCounts []uint64

// chunkOrigin is where the receiver finds a chunk's bytes.
type chunkOrigin uint8

const (
	chunkWritten chunkOrigin = iota // in the request's memory
	chunkSame                       // the requester has it
	chunkZero                       // not stored: all bytes are zero
)

// fileDone releases an open file. The response is fileEnded, with the digest of the whole file if all chunks were read.
type (
	fileDone  struct{ id, handle uint32 }
	fileEnded struct {
		id     uint32
		hasSum bool
		sum    chunk.Sum
	}
)

// filePut requests the peer to fetch the local export source, and to store it as name. The response is fileStored.
type (
	filePut struct {
		id                                       uint32
		fresh, checksum, remove, dryRun, keepTop bool
		want                                     chunk.Want
		sync                                     Sync
		source, name                             string
		rules                                    rules
	}
	fileStored struct {
		id uint32
		transferResult
		// failures names the omitted files, if any.
		failures string
	}
)

// flags are transferred as bits.
func (m *filePut) flags() []*bool {
	return []*bool{&m.fresh, &m.checksum, &m.remove, &m.dryRun, &m.keepTop, &m.want.Owner, &m.want.Xattrs}
}

// transferResult is the result of a transfer.
type transferResult struct {
	// moved and kept are in bytes. kept is the part of moved that already existed.
	moved, kept int64
	// chunks counts verified chunks and small files, bad the ones requested again.
	chunks, bad int64
	// sent, unchanged, deleted and failed count files.
	sent, unchanged, deleted, failed int64
}

func (t *transferResult) numbers() []*int64 {
	return []*int64{&t.moved, &t.kept, &t.chunks, &t.bad, &t.sent, &t.unchanged, &t.deleted, &t.failed}
}

func (m *fileOpen) encode() []byte {
	b := binary.LittleEndian.AppendUint32(rpc.Begin(kindFileOpen, m.id), m.handle)
	return append(append(b, wantBits(m.want)), m.name...)
}

func (m *fileOpened) encode() []byte {
	return m.entry.append(wire.AppendFlag(rpc.Begin(kindFileOpened, m.id), m.fresh))
}

func (m *fileList) encode() []byte {
	return append(wire.AppendString(rpc.Begin(kindFileList, m.id), m.name), m.after...)
}

func (m *fileEntries) encode() []byte {
	b := wire.AppendFlag(rpc.Begin(kindFileEntries, m.id), m.more)
	for i := range m.entries {
		b = m.entries[i].append(b)
	}
	return b
}

func (m *fileChunk) encode() []byte {
	b := binary.LittleEndian.AppendUint32(rpc.Begin(kindFileChunk, m.id), m.handle)
	b = binary.LittleEndian.AppendUint64(b, m.index)
	b = binary.LittleEndian.AppendUint64(append(b, byte(m.state)), uint64(m.print))
	return service.AppendRegion(binary.LittleEndian.AppendUint32(b, m.grant), &m.stage, service.Length64)
}

func (m *fileChunked) encode() []byte {
	return m.rails.append(binary.LittleEndian.AppendUint32(append(rpc.Begin(kindFileChunked, m.id), byte(m.origin)), m.digest))
}

// append appends the number of rails and their bytes.
func (s railCounts) append(b []byte) []byte {
	b = append(b, byte(len(s)))
	for _, n := range s {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	return b
}

func (r *reader) rails() railCounts {
	s := make(railCounts, r.U8())
	r.Check(len(s) <= ibverbx.MaxRails)
	for i := range s {
		s[i] = r.U64()
		r.Check(s[i] < 1<<59) // the sum of all rails and of the other direction does not overflow
	}
	return s
}

func (m *fileDone) encode() []byte {
	return binary.LittleEndian.AppendUint32(rpc.Begin(kindFileDone, m.id), m.handle)
}

func (m *fileEnded) encode() []byte {
	return append(wire.AppendFlag(rpc.Begin(kindFileEnded, m.id), m.hasSum), m.sum[:]...)
}

func (m *filePut) encode() []byte {
	flags := byte(0)
	for i, f := range m.flags() {
		if *f {
			flags |= 1 << i
		}
	}
	b := wire.AppendString(append(rpc.Begin(kindFilePut, m.id), flags, byte(m.sync)), m.source)
	return append(wire.AppendString(b, m.name), m.rules...)
}

func (m *fileStored) encode() []byte {
	b := rpc.Begin(kindFileStored, m.id)
	for _, v := range m.numbers() {
		b = binary.LittleEndian.AppendUint64(b, uint64(*v))
	}
	return append(b, m.failures...)
}

// Types of entries.
const (
	entryFile uint8 = iota
	entryDir
	entryLink
	entrySpecial // neither a file, directory nor link: listed, but not transferred
)

// entryModes holds the fs.FileMode of each type.
var entryModes = [...]fs.FileMode{entryDir: fs.ModeDir, entryLink: fs.ModeSymlink, entrySpecial: fs.ModeIrregular}

// entryType returns the type of an entry.
func entryType(m fs.FileMode) uint8 {
	switch {
	case m.IsDir():
		return entryDir
	case m.Type() == fs.ModeSymlink:
		return entryLink
	case chunk.Special(m):
		return entrySpecial
	}
	return entryFile
}

// append appends type, permissions, access, size, time, name, link and attributes.
func (e *fileEntry) append(b []byte) []byte {
	b = append(b, entryType(e.Mode))
	b = append(binary.LittleEndian.AppendUint16(b, uint16(e.Mode.Perm())), byte(e.access))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.Size))
	b = binary.LittleEndian.AppendUint64(b, uint64(e.ModTime.UnixNano()))
	return appendAttributes(wire.AppendString(wire.AppendString(b, e.Name), e.Link), &e.Entry)
}

// reader decodes a message.
type reader struct{ wire.Reader }

// decode returns the message in b: a pointer to one of the types above or of package rpc, or nil if it should be ignored. Field values are
// in range but otherwise unchecked.
func decode(b []byte) (any, error) {
	r := reader{wire.NewReader(b)}
	k := rpc.Kind(r.U8())
	m := r.message(k)
	if !r.End() {
		return nil, fmt.Errorf("%w: message %#02x of %d bytes", rpc.ErrProtocol, uint8(k), len(b))
	}
	return m, nil
}

// message decodes the message after its kind.
func (r *reader) message(k rpc.Kind) any {
	switch k {
	case kindFileOpen:
		m := &fileOpen{id: r.U32(), handle: r.U32(), want: r.want()}
		m.name = r.path()
		return m
	case kindFileOpened:
		return &fileOpened{id: r.U32(), fresh: r.Flag(), entry: r.entry()}
	case kindFileList:
		return &fileList{id: r.U32(), name: r.String(maxPath), after: r.Rest(maxPath)}
	case kindFileEntries:
		return r.entries()
	case kindFileChunk:
		return r.fileChunk()
	case kindFileChunked:
		m := &fileChunked{id: r.U32(), origin: chunkOrigin(r.U8()), digest: r.U32(), rails: r.rails()}
		r.Check(m.origin <= chunkZero)
		return m
	case kindFileDone:
		return &fileDone{id: r.U32(), handle: r.U32()}
	case kindFileEnded:
		m := &fileEnded{id: r.U32(), hasSum: r.Flag()}
		copy(m.sum[:], r.Take(len(m.sum)))
		return m
	case kindFilePut:
		return r.filePut()
	case kindFileStored:
		return r.stored()
	case kindFileTree:
		m := &fileTree{id: r.U32(), walk: r.U32(), want: r.want()}
		m.name, m.after, m.rules = r.String(maxPath), r.String(maxCursor), rules(r.Rest(filter.MaxLen))
		return m
	case kindFileTreed:
		return r.treed()
	case kindFileBatch:
		return r.fileBatch()
	case kindFileBatched:
		return r.batched()
	case rpc.KindRefusal:
		return rpc.ReadRefusal(&r.Reader)
	default:
		return rpc.ReadUnknown(k, &r.Reader)
	}
}

func (r *reader) filePut() *filePut {
	m := &filePut{id: r.U32()}
	flags := r.U8()
	r.Check(flags < 1<<len(m.flags()))
	for i, f := range m.flags() {
		*f = flags>>i&1 != 0
	}
	m.sync = Sync(r.U8())
	r.Check(m.sync <= SyncNever)
	m.source, m.name, m.rules = r.String(transfer.MaxNameLen), r.String(maxPath), rules(r.Rest(filter.MaxLen))
	r.Check(m.name != "")
	return m
}

func (r *reader) stored() *fileStored {
	m := &fileStored{id: r.U32()}
	for _, v := range m.numbers() {
		*v = int64(r.U64())
		r.Check(*v >= 0)
	}
	m.failures = r.Rest(maxPath)
	return m
}

// path decodes the rest as a name, which may be invalid.
func (r *reader) path() string {
	s := r.Rest(maxPath)
	r.Check(s != "")
	return s
}

func (r *reader) fileChunk() *fileChunk {
	m := &fileChunk{id: r.U32(), handle: r.U32(), index: r.U64(), state: chunkState(r.U8()), print: chunk.Fingerprint(r.U64()), grant: r.U32()}
	m.stage = service.ReadRegion(&r.Reader, service.Length64)
	r.Check(m.index < maxIndex && m.state <= cachedDigest && m.grant != 0)
	return m
}

func (r *reader) entries() *fileEntries {
	m := &fileEntries{id: r.U32(), more: r.Flag()}
	for r.Len() > 0 && r.OK() {
		m.entries = append(m.entries, r.entry())
		r.Check(len(m.entries) <= maxEntries)
	}
	r.Check(len(m.entries) > 0 || !m.more)
	return m
}

func (r *reader) entry() (e fileEntry) {
	t, perm, access := r.U8(), r.U16(), r.U8()
	size, at := r.U64(), int64(r.U64())
	e.Name, e.Link = r.String(maxPath), r.String(maxPath)
	r.attributes(&e.Entry, t)
	e.Size, e.ModTime, e.access = int64(size), time.Unix(0, at), Access(access)
	e.Mode = fs.FileMode(perm)
	r.Check(t <= entrySpecial && e.Mode&^fs.ModePerm == 0 && e.access&^(Read|Write) == 0 && size <= math.MaxInt64)
	r.Check(t == entryFile || size == 0)
	r.Check((t == entryLink) == (e.Link != ""))
	if e.access != 0 {
		r.Check(fs.ValidPath(e.Name) && e.Name != ".")
	} else {
		r.Check(e.Name != "" && e.Name != "." && e.Name != ".." && !strings.ContainsAny(e.Name, "/\x00"))
	}
	e.Mode |= entryModes[min(t, entrySpecial)]
	return e
}
