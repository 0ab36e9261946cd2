package files

import (
	"encoding/binary"
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
)

// Messages for trees. The receiver of a tree requests its listing page by page, and small files in batches.
const (
	kindFileTree  rpc.Kind = 0x15 // id, walk u32, attributes u8, length of name u16, name, length of after u16, after, rules
	kindFileBatch rpc.Kind = 0x16 // id, grant u32, region, length of name u16, name, files

	kindFileTreed   rpc.Kind = 0x95 // id, more u8, entries
	kindFileBatched rpc.Kind = 0x96 // id, rails, results of 5 bytes

	maxSteps = 8192      // entries per response
	maxBatch = 128       // files per batch
	maxSmall = 256 << 10 // size of a file in a batch
	// maxBatchSize is the size of all files in a batch.
	maxBatchSize = chunk.Size / 2
	maxBase      = 255 // length of an element of a path
	// maxCursor is the length of a position in a listing. Paths in a tree may be longer than maxPath; they are left out.
	maxCursor = (chunk.MaxDepth + 1) * (maxBase + 1)
)

// fileTree requests the entries of a directory tree after a path, in the order of chunk.Walk. A
// path with a trailing slash is a directory whose contents follow. rules exclude entries. The
// response is fileTreed.
type fileTree struct {
	// walk is the requester's number for the listing. A listing with another number is not
	// continued: its directories may have changed.
	id, walk    uint32
	name, after string
	rules       rules
	want        chunk.Want
}

// rules are the rules of a filter, one per line.
type rules string

// filter returns the filter for rules.
func (r rules) filter() (filter.Filter, error) {
	if r == "" {
		return filter.Filter{}, nil
	}
	return filter.New(strings.Split(string(r), "\n"))
}

// fileTreed holds entries in order. more is set if others follow.
type fileTreed struct {
	id    uint32
	more  bool
	steps []step
}

// step is an entry of a tree. Its name is the last element of its path.
type step struct {
	chunk.Entry
	// depth is the number of directories between the top and the entry.
	depth int
	// fresh is set if the file may still be modified without a change of its modification time.
	fresh bool
	// failed is the reason why the entry, or the contents of a directory, cannot be read; empty otherwise.
	failed string
}

// fileBatch requests small files completely. The peer writes the contents of the files that this side lacks to the granted
// memory, without gaps and in the given order. The response is fileBatched.
type fileBatch struct {
	id, grant uint32
	stage     ibverbx.RemoteRegion
	// name is the tree. File names are relative to it.
	name  string
	files []batchFile
}

// batchFile is a requested file. size and modified are the listed values. If has is set, this side
// has a file with the given Fingerprint, and needs the content only if it differs.
type batchFile struct {
	name     string
	size     uint32
	modified time.Time
	has      bool
	print    chunk.Fingerprint
}

// fileBatched has a result for each requested file.
type fileBatched struct {
	id      uint32
	rails   railCounts
	results []batchResult
}

// batchResult is the result for a file of a batch.
type batchResult struct {
	outcome batchOutcome
	digest  uint32 // of a written or equal file
}

// batchOutcome is batchWritten, batchSame, or batchRefused plus an rpc.Code.
type batchOutcome uint8

const (
	batchWritten batchOutcome = iota
	batchSame
	batchRefused
)

func (m *fileTree) encode() []byte {
	b := append(binary.LittleEndian.AppendUint32(rpc.Begin(kindFileTree, m.id), m.walk), wantBits(m.want))
	return append(wire.AppendString(wire.AppendString(b, m.name), m.after), m.rules...)
}

func (m *fileTreed) encode() []byte {
	b := wire.AppendFlag(rpc.Begin(kindFileTreed, m.id), m.more)
	for i := range m.steps {
		b = m.steps[i].append(b)
	}
	return b
}

func (m *fileBatch) encode() []byte {
	b := binary.LittleEndian.AppendUint32(rpc.Begin(kindFileBatch, m.id), m.grant)
	b = wire.AppendString(service.AppendRegion(b, &m.stage, service.Length64), m.name)
	for i := range m.files {
		f := &m.files[i]
		b = binary.LittleEndian.AppendUint32(wire.AppendString(b, f.name), f.size)
		b = binary.LittleEndian.AppendUint64(b, uint64(f.modified.UnixNano()))
		b = binary.LittleEndian.AppendUint64(wire.AppendFlag(b, f.has), uint64(f.print))
	}
	return b
}

func (m *fileBatched) encode() []byte {
	b := m.rails.append(rpc.Begin(kindFileBatched, m.id))
	for _, r := range m.results {
		b = binary.LittleEndian.AppendUint32(append(b, byte(r.outcome)), r.digest)
	}
	return b
}

// append appends type, flags, depth, permissions, size of a file, time, name, the link's target or the error, and attributes.
func (s *step) append(b []byte) []byte {
	t := entryType(s.Mode)
	b = append(b, t)
	b = append(wire.AppendFlag(wire.AppendFlag(b, s.fresh), s.failed != ""), byte(s.depth))
	b = binary.LittleEndian.AppendUint16(b, uint16(s.Mode.Perm()))
	if t == entryFile {
		b = binary.LittleEndian.AppendUint64(b, uint64(s.Size))
	}
	b = wire.AppendString(binary.LittleEndian.AppendUint64(b, uint64(s.ModTime.UnixNano())), s.Name)
	if t == entryLink {
		b = wire.AppendString(b, s.Link)
	}
	if s.failed != "" {
		b = wire.AppendString(b, s.failed)
	}
	return appendAttributes(b, &s.Entry)
}

func (r *reader) treed() *fileTreed {
	m := &fileTreed{id: r.U32(), more: r.Flag()}
	for r.Len() > 0 && r.OK() {
		m.steps = append(m.steps, r.step())
		r.Check(len(m.steps) <= maxSteps)
	}
	r.Check(len(m.steps) > 0 || !m.more)
	return m
}

func (r *reader) step() (s step) {
	t := r.U8()
	fresh, failed := r.Flag(), r.Flag()
	s.fresh, s.depth, s.Mode = fresh, int(r.U8()), fs.FileMode(r.U16())
	r.Check(t <= entrySpecial && s.Mode&^fs.ModePerm == 0 && s.depth <= chunk.MaxDepth)
	if t == entryFile {
		size := r.U64()
		r.Check(size <= math.MaxInt64)
		s.Size = int64(size)
	}
	s.ModTime = time.Unix(0, int64(r.U64()))
	s.Name = r.String(maxBase)
	r.Check(s.Name != "" && s.Name != "." && s.Name != ".." && !strings.ContainsAny(s.Name, "/\x00"))
	if t == entryLink {
		s.Link = r.String(maxPath)
		r.Check(s.Link != "" || failed)
	}
	if failed {
		s.failed = r.String(maxPath)
		r.Check(s.failed != "")
	}
	r.attributes(&s.Entry, t)
	s.Mode |= entryModes[min(t, entrySpecial)]
	return s
}

func (r *reader) fileBatch() *fileBatch {
	m := &fileBatch{id: r.U32(), grant: r.U32()}
	m.stage = service.ReadRegion(&r.Reader, service.Length64)
	m.name = r.String(maxPath)
	total := int64(0)
	for r.Len() > 0 && r.OK() {
		f := batchFile{name: r.String(maxPath), size: r.U32(), modified: time.Unix(0, int64(r.U64())), has: r.Flag(), print: chunk.Fingerprint(r.U64())}
		total += int64(f.size)
		m.files = append(m.files, f)
		r.Check(len(m.files) <= maxBatch && total <= maxBatchSize)
	}
	r.Check(m.grant != 0 && len(m.files) > 0)
	return m
}

func (r *reader) batched() *fileBatched {
	m := &fileBatched{id: r.U32(), rails: r.rails()}
	for r.Len() > 0 && r.OK() {
		m.results = append(m.results, batchResult{batchOutcome(r.U8()), r.U32()})
		r.Check(len(m.results) <= maxBatch)
	}
	return m
}
