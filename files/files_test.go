package files

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/service"
	"ibverbx/node"
	"ibverbx/transfer"
	"ibverbx/verbs"
)

// depot is a pair of hosts: one exports a directory, the other downloads from it.
type depot struct {
	here, there *host
	peer        *Peer
	// dir is the directory exported as "d"; to is the target directory.
	dir, to string
}

func newDepot(t testing.TB, n *network, public Access) *depot {
	t.Helper()
	return depotIn(t, n, public, t.TempDir(), t.TempDir())
}

// depotIn is newDepot with given directories.
func depotIn(t testing.TB, n *network, public Access, dir, to string) *depot {
	t.Helper()
	d := &depot{dir: dir, to: to}
	exports := []ExportConfig{{Name: "d", Path: d.dir, DefaultAccess: public}}
	d.there = n.start(t, hostConfig{name: "there", node: n.node, engine: Config{Exports: exports}})
	d.here = n.start(t, hostConfig{name: "here", node: n.node})
	d.peer = d.here.to(d.there)
	return d
}

// restart restarts the host that exports.
func (d *depot) restart() { d.there = d.there.restart() }

// write creates a file in the exported directory.
func (d *depot) write(t testing.TB, name string, size int, seed uint64) []byte {
	t.Helper()
	b := make([]byte, size)
	fill(b, seed)
	writeFile(t, filepath.Join(d.dir, name), b)
	return b
}

func writeFile(t testing.TB, name string, b []byte) {
	t.Helper()
	wantOK(t, "MkdirAll", os.MkdirAll(filepath.Dir(name), 0o700))
	wantOK(t, "WriteFile", os.WriteFile(name, b, 0o640))
	wantOK(t, "Chtimes", os.Chtimes(name, time.Time{}, someDay))
}

var someDay = time.Date(2024, 5, 6, 7, 8, 9, 10, time.UTC)

// wantFile compares a file's content and checks for leftover partial files next to it.
func wantFile(t testing.TB, name string, want []byte) {
	t.Helper()
	wantBytes(t, name, want)
	if left := partials(t, filepath.Dir(name)); len(left) > 0 {
		t.Errorf("there are partial files %q, want none", left)
	}
}

func partials(t testing.TB, dir string) []string {
	t.Helper()
	left, err := filepath.Glob(filepath.Join(dir, ".*.ibx-partial"))
	wantOK(t, "Glob", err)
	return left
}

const manyChunks = 5*chunk.Size + 4711

// TestGetFile gets files of several sizes over every kind of link: content, permissions and modification time
// match the source.
func TestGetFile(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		d := newDepot(t, n, Read)
		for i, size := range []int{0, 1, chunk.Size, manyChunks, 40 * chunk.Size} {
			want := d.write(t, "f", size, uint64(i))
			dest := filepath.Join(d.to, "g")
			x := d.peer.Get("d/f", dest, TransferConfig{})
			wantOK(t, "Get", x.Wait(soon(t)))
			wantFile(t, dest, want)
			info, err := os.Stat(dest)
			wantOK(t, "Stat", err)
			if info.Mode().Perm() != 0o640 || !info.ModTime().Equal(someDay) {
				t.Errorf("the file has %v and %v, want those of the source", info.Mode(), info.ModTime())
			}
			s := x.Status()
			if s.Phase != transfer.Done || s.Bytes != int64(size) || s.Total != int64(size) || s.Chunks != chunk.Count(int64(size)) || s.ChunksRetried != 0 {
				t.Errorf("Status() = %+v after %d bytes", s, size)
			}
		}
		wantOK(t, "Get", d.peer.Get("d/f", d.to, TransferConfig{Sync: SyncBatch}).Wait(soon(t)))
		if _, err := os.Stat(filepath.Join(d.to, "f")); err != nil {
			t.Errorf("a file for a directory: %v", err)
		}
	})
}

// TestServedFileTruncated: truncating a file each time it is served fails the transfer.
func TestServedFileTruncated(t *testing.T) {
	d, err := getChanging(t, 2, func(t *testing.T, name string) { wantOK(t, "Truncate", os.Truncate(name, chunk.Size)) })
	wantErr(t, "Get of a file that is truncated", err, ErrChanged)
	wantPaths(t, d.to, ".f.ibx-partial")
}

// TestServedFileReplaced: replacing or modifying a file each time it is served fails the transfer.
// A file that changes once is requested again, and received in its new version.
func TestServedFileReplaced(t *testing.T) {
	other := make([]byte, manyChunks)
	fill(other, 2)
	for _, change := range []func(t *testing.T, name string){
		func(t *testing.T, name string) {
			writeFile(t, name+"2", other)
			wantOK(t, "Rename", os.Rename(name+"2", name))
		},
		func(t *testing.T, name string) { wantOK(t, "WriteFile", os.WriteFile(name, other, 0o600)) },
	} {
		d, err := getChanging(t, 2, change)
		wantErr(t, "Get of a file that changes twice", err, ErrChanged)
		wantPaths(t, d.to, ".f.ibx-partial")
		d, err = getChanging(t, 1, change)
		wantOK(t, "Get of a file that changes once", err)
		wantFile(t, filepath.Join(d.to, "f"), other)
	}
}

// getChanging gets a file and changes it when its first chunk arrives, at most the given number of
// times.
func getChanging(t *testing.T, times int, change func(t *testing.T, name string)) (*depot, error) {
	t.Helper()
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "f", manyChunks, 1)
	d.here.chunkReceived = func(k int64, _ []byte) {
		if k == 0 && times > 0 {
			times--
			change(t, filepath.Join(d.dir, "f"))
		}
	}
	x := d.peer.Get("d/f", d.to, TransferConfig{Fresh: true}) // otherwise the first chunk is not received again
	err := x.Wait(soon(t))
	if s := x.Status(); err == nil && (s.Bytes != s.Total || s.Total != manyChunks) {
		t.Errorf("Status() = %+v, want all of the file once", s)
	}
	return d, err
}

// TestFileDigest: a corrupted chunk is requested once more, and fails the transfer if it is corrupted again.
func TestFileDigest(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", manyChunks, 1)
	left := 1
	d.here.chunkReceived = func(k int64, b []byte) {
		if k == 3 && left > 0 {
			left--
			b[7]++
		}
	}
	dest := filepath.Join(d.to, "f")
	x := d.peer.Get("d/f", dest, TransferConfig{})
	wantOK(t, "Get with one damaged chunk", x.Wait(soon(t)))
	wantFile(t, dest, want)
	if s := x.Status(); s.ChunksRetried != 1 {
		t.Errorf("Status() = %+v, want 1 bad chunk", s)
	}
	left = 2
	wantErr(t, "Get with a chunk that is damaged twice", d.peer.Get("d/f", dest, TransferConfig{Fresh: true}).Wait(soon(t)), ErrDigest)
	wantBytes(t, dest, want)
}

// wantBytes compares a file's content.
func wantBytes(t testing.TB, name string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(name)
	wantOK(t, "ReadFile", err)
	wantSame(t, name, got, want)
}

// TestResumeOfWrongContent: chunks of a partial file, and of an existing file with the target name, are
// reused only if their content matches.
func TestResumeOfWrongContent(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", manyChunks, 1)
	for _, name := range []string{".f.ibx-partial", "f"} {
		have := bytes.Clone(want[:3*chunk.Size+100]) // chunk 3 is not complete
		have[chunk.Size+5]++
		writeFile(t, filepath.Join(d.to, name), have)
		x := d.peer.Get("d/f", filepath.Join(d.to, "f"), TransferConfig{})
		wantOK(t, "Get", x.Wait(soon(t)))
		wantFile(t, filepath.Join(d.to, "f"), want)
		if s := x.Status(); s.BytesReused != 2*chunk.Size || s.Bytes != manyChunks {
			t.Errorf("with %s: Status() = %+v, want 2 chunks kept", name, s)
		}
		wantOK(t, "Remove", os.Remove(filepath.Join(d.to, "f")))
	}
	writeFile(t, filepath.Join(d.to, ".f.ibx-partial"), want)
	x := d.peer.Get("d/f", filepath.Join(d.to, "f"), TransferConfig{Fresh: true})
	wantOK(t, "Get", x.Wait(soon(t)))
	if s := x.Status(); s.BytesReused != 0 {
		t.Errorf("with Fresh: Status() = %+v, want nothing kept", s)
	}
}

// sameDigest returns different bytes with the same Digest. The CRC is linear, so each bit of the last four
// bytes changes it by a distinct value, and some combination undoes the change of the first byte.
func sameDigest(b []byte) []byte {
	want := chunk.Digest(b)
	b = bytes.Clone(b)
	b[0]++
	type bits struct{ change, set uint32 }
	var basis []bits
	diff := chunk.Digest(b)
	last := b[len(b)-4:]
	for i := range uint32(32) {
		binary.LittleEndian.PutUint32(last, binary.LittleEndian.Uint32(last)^1<<i)
		v := bits{chunk.Digest(b) ^ diff, 1 << i}
		binary.LittleEndian.PutUint32(last, binary.LittleEndian.Uint32(last)^1<<i)
		for _, w := range basis {
			if v.change^w.change < v.change {
				v.change, v.set = v.change^w.change, v.set^w.set
			}
		}
		basis = append(basis, v)
		slices.SortFunc(basis, func(a, b bits) int { return cmp.Compare(b.change, a.change) })
	}
	set := uint32(0)
	diff ^= want
	for _, w := range basis {
		if diff^w.change < diff {
			diff, set = diff^w.change, set^w.set
		}
	}
	binary.LittleEndian.PutUint32(last, binary.LittleEndian.Uint32(last)^set)
	return b
}

// TestResumeOfSameDigest: a chunk of an old version that happens to have the new chunk's CRC32C is not
// mistaken for it.
func TestResumeOfSameDigest(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", 3*chunk.Size, 1)
	old := bytes.Clone(want)
	copy(old[chunk.Size:], sameDigest(want[chunk.Size:2*chunk.Size]))
	if chunk.Digest(old[chunk.Size:2*chunk.Size]) != chunk.Digest(want[chunk.Size:2*chunk.Size]) || bytes.Equal(old, want) {
		t.Fatal("the chunks do not have the same digest")
	}
	dest := filepath.Join(d.to, "f")
	writeFile(t, dest, old)
	x := d.peer.Get("d/f", dest, TransferConfig{Checksum: true})
	wantOK(t, "Get", x.Wait(soon(t)))
	wantFile(t, dest, want)
	if s := x.Status(); s.BytesReused != 2*chunk.Size {
		t.Errorf("Status() = %+v, want 2 chunks kept", s)
	}
}

// TestFileAcrossSessions: a transfer resumes after a lost session, and after a restart of the peer
// if the file is unchanged. A different file under that name is received instead.
func TestFileAcrossSessions(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", 24*chunk.Size, 1)
	get := func(event func()) error {
		met, resume := make(chan struct{}), make(chan struct{})
		d.here.chunkReceived = func(k int64, _ []byte) {
			if k == 5 {
				select {
				case <-met:
				default:
					close(met)
					<-resume
				}
			}
		}
		x := d.peer.Get("d/f", filepath.Join(d.to, "f"), TransferConfig{Fresh: true})
		<-met
		event()
		close(resume)
		return x.Wait(soon(t))
	}
	err := get(func() { lose(d.peer) })
	wantOK(t, "Get across a lost session", err)
	wantFile(t, filepath.Join(d.to, "f"), want)
	err = get(func() { d.restart() })
	wantOK(t, "Get across a restart", err)
	wantFile(t, filepath.Join(d.to, "f"), want)
	err = get(func() {
		d.restart()
		writeFile(t, filepath.Join(d.dir, "f"), make([]byte, 3))
	})
	wantOK(t, "Get of another file", err)
	wantFile(t, filepath.Join(d.to, "f"), make([]byte, 3))
}

// TestRestartSendsNothingTwice: after a restart of the peer, received chunks are compared and not sent again.
func TestRestartSendsNothingTwice(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	const chunks = 2 * stageSlots
	want := d.write(t, "f", chunks*chunk.Size, 1)
	var once sync.Once
	d.here.chunkReceived = func(k int64, _ []byte) {
		if k == chunks-1 { // it was requested once half of the others were stored
			once.Do(d.restart)
		}
	}
	dest := filepath.Join(d.to, "f")
	x := d.peer.Get("d/f", dest, TransferConfig{})
	wantOK(t, "Get", x.Wait(soon(t)))
	wantFile(t, dest, want)
	if s := x.Status(); s.Bytes != chunks*chunk.Size || s.BytesReused != 0 {
		t.Errorf("Status() = %+v, want that everything was sent once", s)
	}
	if sent := d.there.client().Node().Stats().Counters.BytesWritten; sent > (chunks-stageSlots)*chunk.Size {
		t.Errorf("%d chunks were sent after the restart, want at most %d", sent/chunk.Size, chunks-stageSlots)
	}
}

// TestFilePeerGone: a transfer fails when the peer is lost, and the next one reuses the received data.
func TestFilePeerGone(t *testing.T) {
	n := memoryNetwork(1)
	n.node = func(c *node.Config) { c.LostTimeout = 50 * time.Millisecond }
	d := newDepot(t, n, Read)
	want := d.write(t, "f", manyChunks, 1)
	d.here.chunkReceived = func(k int64, _ []byte) {
		if k == 4 { // it is stored, but the request for the file's digest is outstanding
			wantOK(t, "Close", d.there.node.Close())
		}
	}
	dest := filepath.Join(d.to, "f")
	wantErr(t, "Get", d.peer.Get("d/f", dest, TransferConfig{}).Wait(soon(t)), ErrPeerGone)
	d.here.chunkReceived = nil
	d.restart()
	x := d.here.to(d.there).Get("d/f", dest, TransferConfig{})
	wantOK(t, "Get", x.Wait(soon(t)))
	wantFile(t, dest, want)
	if s := x.Status(); s.BytesReused == 0 {
		t.Errorf("Status() = %+v, want that something was kept", s)
	}
}

// TestFileEngineClosed: a transfer waits for a peer that closes its Engine and returns. Closing the local
// Engine fails it.
func TestFileEngineClosed(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", 24*chunk.Size, 1)
	dest := filepath.Join(d.to, "f")
	met, resume := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d.here.chunkReceived = func(k int64, _ []byte) {
		if k == 5 {
			once.Do(func() { close(met) })
			<-resume
		}
	}
	x := d.peer.Get("d/f", dest, TransferConfig{})
	<-met
	d.there = d.there.startAgain()
	close(resume)
	wantOK(t, "Get", x.Wait(soon(t)))
	wantFile(t, dest, want)

	met = make(chan struct{})
	d.here.chunkReceived = func(k int64, _ []byte) {
		if k == 5 {
			close(met)
			<-d.here.ctx.Done()
		}
	}
	x = d.peer.Get("d/f", dest, TransferConfig{Fresh: true})
	<-met
	d.here.stop()
	wantErr(t, "Get when the Engine is closed", x.Wait(soon(t)), ErrClosed)
	wantErr(t, "Get of a closed Engine", d.peer.Get("d/f", dest, TransferConfig{}).Wait(soon(t)), ErrClosed)
}

// TestCancelFile: a canceled transfer keeps the received data.
func TestCancelFile(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", manyChunks, 1)
	var x *Transfer
	began := make(chan struct{})
	d.here.chunkReceived = func(k int64, _ []byte) {
		if <-began; k == 5 {
			x.Cancel()
		}
	}
	dest := filepath.Join(d.to, "f")
	x = d.peer.Get("d/f", dest, TransferConfig{})
	close(began)
	wantErr(t, "Get that is canceled", x.Wait(soon(t)), ErrCanceled)
	d.here.chunkReceived = nil
	wantOK(t, "Get", d.peer.Get("d/f", dest, TransferConfig{}).Wait(soon(t)))
	wantFile(t, dest, want)
	d.noneOpen(t)
	if len(d.here.staging) != 0 {
		t.Errorf("%d slots are in use, want none", len(d.here.staging))
	}
}

// TestCancelChecking: a transfer can be canceled while it computes digests of existing data.
func TestCancelChecking(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	b := d.write(t, "f", manyChunks, 1)
	writeFile(t, filepath.Join(d.to, "f"), b)
	l := &download{peer: d.peer, counts: &counts{}}
	root, err := os.OpenRoot(d.to)
	wantOK(t, "OpenRoot", err)
	defer root.Close()
	target, err := chunk.Create(root, "f", manyChunks, false)
	wantOK(t, "Create", err)
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrCanceled)
	cached := chunk.NewTable[cachedChunk](chunk.Count(manyChunks))
	if err := l.check(ctx, target, &cached); err != ErrCanceled { //nolint:errorlint // it is not joined with others
		t.Errorf("check: got %v, want ErrCanceled only", err)
	}
	wantOK(t, "Close", target.Close())
}

// TestErrorsStayOnOneLine: names that a peer chooses are escaped in errors.
func TestErrorsStayOnOneLine(t *testing.T) {
	const evil = "x\nINFO all is well\x1b[2J"
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "t/"+evil+"/a", 100, 1)
	d.write(t, "u/"+evil, 100, 1)
	writeFile(t, filepath.Join(d.to, "t", evil), nil) // the directory cannot be created
	wantOK(t, "Mkdir", os.MkdirAll(filepath.Join(d.to, "u", evil), 0o777))
	_, list := d.peer.List(soon(t), evil)
	_, export := d.there.Serve(ExportConfig{Name: evil, Path: d.dir, DefaultAccess: 8})
	for what, err := range map[string]error{
		"directory": d.peer.Get("d/t", filepath.Join(d.to, "t"), TransferConfig{}).Wait(soon(t)),
		"file":      d.peer.Get("d/u", filepath.Join(d.to, "u"), TransferConfig{}).Wait(soon(t)),
		"List":      list, "Export": export,
	} {
		if err == nil || strings.ContainsAny(err.Error(), "\n\x1b") || !strings.Contains(err.Error(), `x\nINFO all is well\x1b[2J`) {
			t.Errorf("%s: got %q, want one line with the name escaped", what, err)
		}
	}
}

// TestCloseAgain: a second Close of an Engine does not detach the next Engine of its Node.
func TestCloseAgain(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", chunk.Size, 1)
	first := d.here.Engine
	wantOK(t, "Close", first.Close(soon(t)))
	second, err := New(Config{Transfer: d.here.memory})
	wantOK(t, "New", err)
	d.here.Engine = second // closed with the host
	p := d.here.to(d.there)
	wantOK(t, "Close of the first Engine again", first.Close(soon(t)))
	if got := d.here.node.Service().Attached(service.FilesID); got != service.Handler(&second.peers) {
		t.Fatalf("the Node has service %p, want that of the second Engine", got)
	}
	dest := filepath.Join(d.to, "f")
	wantOK(t, "Get", p.Get("d/f", dest, TransferConfig{}).Wait(soon(t)))
	wantFile(t, dest, want)
}

// TestCloseAfterError: the memory for chunks cannot be freed at first. A later Close frees it.
func TestCloseAfterError(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	b, err := d.there.reading.make(d.there.memory)
	wantOK(t, "make", err)
	wantOK(t, "Retain", b.mem.Retain())
	wantErr(t, "Close while the memory is in use", d.there.Close(soon(t)), verbs.ErrBusy)
	b.mem.Release()
	wantOK(t, "Close again", d.there.Close(soon(t)))
}
