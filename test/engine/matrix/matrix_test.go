package matrix_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/cuda/cudatest"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/testslice"
	"ibverbx/verbs"
)

// matrixRow is one case of the original's distributed tests: a single message, with its size, lanes, lane
// depth and fragment size. LaneDepth is the original's max_msg_cnt_per_qp, FragmentSize its max_msg_bytes.
type matrixRow struct {
	suite    string
	opcode   verbs.Opcode
	bytes    int // to be moved
	original int // that the original moves
	element  string
	lanes    int
	depth    int
	fragment uint32
	scheme   ibverbx.Scheme
}

const (
	matrixRows  = 439
	matrixGuard = 4096 // bytes behind the message that must stay unwritten
	matrixLarge = 1 << 30
	matrixImm   = 0x0badcafe
)

// name describes the row in full, including whether its size was reduced.
func (r *matrixRow) name(rails int) string {
	size := byteSize(r.bytes)
	if r.bytes != r.original {
		size += "-for-" + byteSize(r.original)
	}
	return fmt.Sprintf("%s/%s/%s/%s/lanes=%d/depth=%d/fragment=%s/%s/rails=%d",
		r.suite, r.opcode, size, r.element, r.lanes, r.depth, byteSize(int(r.fragment)), r.scheme, rails)
}

func byteSize(n int) string {
	for _, u := range []struct {
		unit int
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.unit && n%u.unit == 0 {
			return fmt.Sprintf("%d%s", n/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%dB", n)
}

// group orders the rows so that rows with equal VirtualQP settings are adjacent.
func (r *matrixRow) group(o *matrixRow) int {
	return cmp.Or(cmp.Compare(r.scheme, o.scheme), cmp.Compare(r.lanes, o.lanes),
		cmp.Compare(r.depth, o.depth), cmp.Compare(r.fragment, o.fragment))
}

// loadMatrix reads the original's cases. For every notified case it adds one with Tally, a scheme the
// original lacks. The original's SEND cases do not specify a scheme; the file lists the default. Rows of
// matrixLarge bytes are reduced to short bytes unless IBVERBX_TEST_LONG is set.
func loadMatrix(t *testing.T, short int) []matrixRow {
	t.Helper()
	f, err := os.Open("testdata/ibverbx_matrix.csv")
	enginetest.Must(t, err)
	defer func() { enginetest.Must(t, f.Close()) }()
	lines, err := csv.NewReader(f).ReadAll()
	enginetest.Must(t, err)
	var rows []matrixRow
	for i, line := range lines[1:] {
		row, err := parseMatrixRow(line)
		if err != nil {
			t.Fatalf("line %d: %v", i+2, err)
		}
		if row.original == matrixLarge && os.Getenv("IBVERBX_TEST_LONG") != "1" {
			row.bytes = short
		}
		rows = append(rows, row)
	}
	if len(rows) != matrixRows {
		t.Fatalf("the matrix has %d rows, want %d", len(rows), matrixRows)
	}
	for _, row := range rows {
		if row.opcode != verbs.OpRDMARead && row.scheme == ibverbx.Spray {
			row.scheme = ibverbx.Tally
			rows = append(rows, row)
		}
	}
	slices.SortStableFunc(rows, func(a, b matrixRow) int { return a.group(&b) })
	return rows
}

func parseMatrixRow(line []string) (r matrixRow, err error) {
	opcodes := map[string]verbs.Opcode{"RDMA_READ": verbs.OpRDMARead, "RDMA_WRITE_WITH_IMM": verbs.OpRDMAWriteWithImm, "SEND": verbs.OpSend}
	op, ok := opcodes[line[1]]
	if !ok {
		return r, fmt.Errorf("opcode %q", line[1])
	}
	numbers := make([]int, len(line))
	for _, i := range []int{2, 4, 5, 6} {
		if numbers[i], err = strconv.Atoi(line[i]); err != nil {
			return r, err
		}
	}
	r = matrixRow{
		suite: line[0], opcode: op, bytes: numbers[2], original: numbers[2], element: line[3],
		lanes: numbers[4], depth: numbers[5], fragment: uint32(numbers[6]),
	}
	if line[7] == "" {
		return r, nil // Tally, the default
	}
	return r, r.scheme.UnmarshalText([]byte(strings.ToLower(line[7])))
}

// writeElements writes 1, 2, 3, ... in a type of the original.
func writeElements(t *testing.T, b []byte, element string) {
	t.Helper()
	switch element {
	case "INT8":
		for i := range b {
			b[i] = byte(i + 1)
		}
	case "INT32":
		for i := range len(b) / 4 {
			binary.NativeEndian.PutUint32(b[4*i:], uint32(i+1))
		}
	case "FLOAT":
		for i := range len(b) / 4 {
			binary.NativeEndian.PutUint32(b[4*i:], math.Float32bits(float32(i+1)))
		}
	default:
		t.Fatalf("type %q, want INT8, INT32 or FLOAT", element)
	}
}

// matrixMemory holds the message sources, by element type, and the target.
type matrixMemory struct {
	contents map[string][]byte // of the sources
	sources  map[string]*verbs.Memory
	target   *verbs.Memory
}

// onHost allocates host memory.
func onHost(n int) (*verbs.Memory, error) { return verbs.AllocMemory(n, nil) }

func newMatrixMemory(t *testing.T, rows []matrixRow, from func(n int) (*verbs.Memory, error)) *matrixMemory {
	t.Helper()
	size := 0
	for i := range rows {
		size = max(size, rows[i].bytes)
	}
	alloc := func(n int) *verbs.Memory {
		mem, err := from(n)
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, mem.Free()) })
		return mem
	}
	m := &matrixMemory{contents: make(map[string][]byte), sources: make(map[string]*verbs.Memory), target: alloc(size + matrixGuard)}
	for i := range rows {
		if element := rows[i].element; m.sources[element] == nil {
			source := alloc(size)
			content := source.Bytes()
			if source.Device() != nil {
				content = make([]byte, size)
			}
			writeElements(t, content, element)
			_, err := source.WriteAt(content, 0)
			enginetest.Must(t, err)
			m.contents[element], m.sources[element] = content, source
		}
	}
	return m
}

// clear clears n bytes of the target.
func (m *matrixMemory) clear(t *testing.T, n int) {
	t.Helper()
	if m.target.Device() == nil {
		clear(m.target.Bytes()[:n])
		return
	}
	_, err := m.target.WriteAt(make([]byte, n), 0)
	enginetest.Must(t, err)
}

// got returns n bytes of the target.
func (m *matrixMemory) got(t *testing.T, n int) []byte {
	t.Helper()
	if m.target.Device() == nil {
		return m.target.Bytes()[:n]
	}
	b := make([]byte, n)
	_, err := m.target.ReadAt(b, 0)
	enginetest.Must(t, err)
	return b
}

// matrixRig is two hosts on a number of rails: the writer has the data, the reader receives it. It keeps one
// pair of VirtualQPs at a time.
type matrixRig struct {
	rails          int
	mem            *matrixMemory
	writer, reader *enginetest.Host
	sources        map[string]*ibverbx.Region
	target         *ibverbx.Region
	pair           *matrixPair
	made           matrixRow // the pair's settings
	id             uint64
}

type matrixPair struct{ writer, reader matrixEnd }

type matrixEnd struct {
	cq *ibverbx.VirtualCQ
	qp *ibverbx.VirtualQP
}

func newMatrixRig(t *testing.T, rails int, mem *matrixMemory) *matrixRig {
	t.Helper()
	links := enginetest.MemoryLinks(rails)
	g := &matrixRig{
		rails: rails, mem: mem, sources: make(map[string]*ibverbx.Region),
		writer: enginetest.NewHost(t, links, ibverbx.Config{Lanes: 1}), reader: enginetest.NewHost(t, links, ibverbx.Config{Lanes: 1}),
	}
	register := func(h *enginetest.Host, m *verbs.Memory) *ibverbx.Region {
		r, err := h.Rails.Register(m, verbs.AccessAll)
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, r.Close()) })
		return r
	}
	for element, m := range mem.sources {
		g.sources[element] = register(g.writer, m)
	}
	g.target = register(g.reader, mem.target)
	return g
}

// connect returns a pair that fits the row, and reuses the current one if it can.
func (g *matrixRig) connect(t *testing.T, row *matrixRow) *matrixPair {
	t.Helper()
	if g.pair != nil && g.made.group(row) == 0 {
		return g.pair
	}
	g.disconnect(t)
	g.pair, g.made = &matrixPair{g.newEnd(t, g.writer, row), g.newEnd(t, g.reader, row)}, *row
	writerCard, err := g.pair.writer.qp.Card()
	enginetest.Must(t, err)
	readerCard, err := g.pair.reader.qp.Card()
	enginetest.Must(t, err)
	enginetest.Must(t, g.pair.writer.qp.Connect(enginetest.OverTheWire(t, readerCard)))
	enginetest.Must(t, g.pair.reader.qp.Connect(enginetest.OverTheWire(t, writerCard)))
	return g.pair
}

func (g *matrixRig) newEnd(t *testing.T, h *enginetest.Host, row *matrixRow) matrixEnd {
	t.Helper()
	const receives = 64
	lanes := row.lanes/g.rails + 3 // the message lane, the notify lane, and the remainder
	cq, err := h.Rails.NewCQ(ibverbx.CQConfig{Depth: lanes * (row.depth + receives)})
	enginetest.Must(t, err)
	qp, err := cq.NewQP(ibverbx.Config{
		Lanes: row.lanes, Scheme: row.scheme, LaneDepth: row.depth, FragmentSize: row.fragment,
		RecvDepth: receives, NotifyDepth: receives,
	})
	enginetest.Must(t, err)
	return matrixEnd{cq, qp}
}

func (g *matrixRig) disconnect(t *testing.T) {
	t.Helper()
	if g.pair == nil {
		return
	}
	for _, e := range []matrixEnd{g.pair.writer, g.pair.reader} {
		enginetest.Must(t, e.qp.Close())
		enginetest.Must(t, e.cq.Close())
	}
	g.pair = nil
}

// run moves one row's message and checks every result.
func (g *matrixRig) run(t *testing.T, row *matrixRow) {
	p := g.connect(t, row)
	want := g.sources[row.element]
	g.mem.clear(t, row.bytes+matrixGuard)
	g.id++
	wr := ibverbx.SendWR{WRID: g.id<<32 | 1, Opcode: row.opcode, Flags: verbs.SendSignaled, Imm: matrixImm}
	recv := ibverbx.RecvWR{WRID: g.id<<32 | 2}
	poster, notified := &p.writer, &p.reader
	switch row.opcode {
	case verbs.OpRDMARead:
		poster, notified = &p.reader, nil
		wr.Remote = want.Remote()
		wr.SetSGE(g.target.SGE(0, uint32(row.bytes)))
	case verbs.OpSend:
		recv.SetSGE(g.target.SGE(0, uint32(row.bytes)))
		wr.SetSGE(want.SGE(0, uint32(row.bytes)))
	default:
		wr.Remote = g.target.Remote()
		wr.SetSGE(want.SGE(0, uint32(row.bytes)))
	}
	if notified != nil {
		if n, err := notified.qp.PostRecv([]ibverbx.RecvWR{recv}); n != 1 || err != nil {
			t.Fatalf("PostRecv = %d, %v; want 1", n, err)
		}
	}
	before := poster.qp.Stats()
	if n, err := poster.qp.PostSend([]ibverbx.SendWR{wr}); n != 1 || err != nil {
		t.Fatalf("PostSend = %d, %v; want 1", n, err)
	}
	sent, received := p.drive(t, row)
	checkMatrixSend(t, row, sent, poster.qp, wr.WRID)
	if notified != nil {
		checkMatrixReceive(t, row, received, notified.qp, recv.WRID)
	}
	got, content := g.mem.got(t, row.bytes+matrixGuard), g.mem.contents[row.element][:row.bytes]
	if !bytes.Equal(got[:row.bytes], content) {
		t.Errorf("byte %d is not as it was sent", enginetest.FirstDifference(got, content))
	}
	if !bytes.Equal(got[row.bytes:], make([]byte, matrixGuard)) {
		t.Errorf("bytes behind the %d of the message were written", row.bytes)
	}
	g.checkRails(t, row, before, poster.qp.Stats())
}

// drive polls both ends until each has its completions, and then once more to see that both are idle. It
// returns the poster's completion and the other end's.
func (p *matrixPair) drive(t *testing.T, row *matrixRow) (sent, received ibverbx.WC) {
	t.Helper()
	poster, other, receives := &p.writer, &p.reader, 1
	if row.opcode == verbs.OpRDMARead {
		poster, other, receives = &p.reader, &p.writer, 0
	}
	var wcs [2][2]ibverbx.WC
	var have [2]int
	for turns, quiet := 0, 0; quiet < 2; turns++ {
		for i, e := range []*matrixEnd{poster, other} {
			n, err := e.cq.Poll(wcs[i][min(have[i], 1):])
			enginetest.Must(t, err)
			have[i] += n
		}
		if have[0] >= 1 && have[1] >= receives {
			quiet++
		}
		if turns > 10_000_000 {
			t.Fatalf("%d and %d completions, want 1 and %d; %v, %v", have[0], have[1], receives, poster.qp.Err(), other.qp.Err())
		}
	}
	if have != [2]int{1, receives} {
		t.Fatalf("%d and %d completions, want 1 and %d: %+v", have[0], have[1], receives, wcs)
	}
	return wcs[0][0], wcs[1][0]
}

func checkMatrixSend(t *testing.T, row *matrixRow, wc ibverbx.WC, qp *ibverbx.VirtualQP, id uint64) {
	t.Helper()
	if err := wc.Err(); err != nil || wc.WRID != id || wc.QP != qp || wc.Opcode != row.opcode.WC() {
		t.Fatalf("completion = %+v, %v; want request %#x, %s", wc, err, id, row.opcode.WC())
	}
	if wc.Flags&ibverbx.WCHasLength != 0 && wc.ByteLen != uint32(row.bytes) {
		t.Errorf("completion of %d bytes, want %d", wc.ByteLen, row.bytes)
	}
}

// checkMatrixReceive checks the receiver's completion. A single lane passes requests through, so the
// immediate and the length arrive with every scheme.
func checkMatrixReceive(t *testing.T, row *matrixRow, wc ibverbx.WC, qp *ibverbx.VirtualQP, id uint64) {
	t.Helper()
	opcode, hasImm, hasLength := verbs.WCRecv, false, true
	if row.opcode == verbs.OpRDMAWriteWithImm {
		opcode = verbs.WCRecvRDMAWithImm
		hasImm = row.scheme != ibverbx.DQPLB || row.lanes == 1
		hasLength = row.scheme != ibverbx.Spray || row.lanes == 1
	}
	if err := wc.Err(); err != nil || wc.WRID != id || wc.QP != qp || wc.Opcode != opcode {
		t.Fatalf("receive = %+v, %v; want receive %#x, %s", wc, err, id, opcode)
	}
	if hasImm != (wc.Flags&ibverbx.WCHasImm != 0) || (hasImm && wc.Imm != matrixImm) {
		t.Errorf("receive with flags %#x and immediate %#x, want one: %t, %#x", wc.Flags, wc.Imm, hasImm, uint32(matrixImm))
	}
	if hasLength != (wc.Flags&ibverbx.WCHasLength != 0) || (hasLength && wc.ByteLen != uint32(row.bytes)) {
		t.Errorf("receive with flags %#x and %d bytes, want a length: %t, %d", wc.Flags, wc.ByteLen, hasLength, row.bytes)
	}
}

// checkRails checks that the rails carried exactly the bytes of the message, and each rail a part of a
// fragmented one.
func (g *matrixRig) checkRails(t *testing.T, row *matrixRow, before, after ibverbx.Stats) {
	t.Helper()
	isCut := row.lanes > 1 && row.opcode != verbs.OpSend && row.bytes >= g.rails*int(row.fragment)
	sum := 0
	for i := range after.Rails {
		n := int(after.Rails[i].Bytes - before.Rails[i].Bytes)
		if sum += n; n == 0 && isCut {
			t.Errorf("rail %d of %d carried nothing of the %d bytes", i, g.rails, row.bytes)
		}
	}
	if sum != row.bytes {
		t.Errorf("the rails carried %d bytes, want %d", sum, row.bytes)
	}
}

// TestMatrix runs every distributed case of the original over one rail and over two, and compares all bytes.
// Each row posts one message and expects one completion. Rows with equal settings share VirtualQPs; a failed
// row's pair is replaced. Rows of 1 GiB move 64 MiB unless IBVERBX_TEST_LONG is 1; their names show it.
func TestMatrix(t *testing.T) { runMatrix(t, onHost, matrixShort) }

// TestGPUMatrix is TestMatrix between two GPU buffers. In a slice, the rows of 1 GiB move 8 MiB.
func TestGPUMatrix(t *testing.T) {
	short := matrixShort
	if !testslice.Of(t).Whole() {
		short = 8 << 20
	}
	runMatrix(t, cudatest.Open(t).Alloc, short)
}

func runMatrix(t *testing.T, from func(n int) (*verbs.Memory, error), short int) {
	rows := loadMatrix(t, short)
	mem := newMatrixMemory(t, rows, from)
	for _, rails := range []int{1, 2} {
		rig := newMatrixRig(t, rails, mem)
		for i := range rows {
			if !testslice.Of(t).Has(i, len(rows)) {
				continue
			}
			if !t.Run(rows[i].name(rails), func(t *testing.T) { rig.run(t, &rows[i]) }) {
				rig.disconnect(t)
			}
		}
		rig.disconnect(t)
	}
}
