package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
	"ibverbx/internal/service"
)

type encoder interface{ encode() []byte }

// fileMessages returns one of each kind.
func fileMessages() []encoder {
	stage := ibverbx.RemoteRegion{Addr: 1 << 40, Length: 1 << 24, RKeys: []uint32{1, 2}}
	file := fileEntry{Entry: chunk.Entry{Name: "f", Mode: 0o644, Size: 1 << 40, ModTime: someDay}}
	link := fileEntry{Entry: chunk.Entry{Name: "l", Mode: fs.ModeSymlink | 0o777, ModTime: someDay, Link: "../x"}}
	special := fileEntry{Entry: chunk.Entry{Name: "s", Mode: fs.ModeIrregular | 0o600, ModTime: someDay}}
	export := fileEntry{Entry: chunk.Entry{Name: "a/b", Mode: fs.ModeDir | 0o755, ModTime: someDay}, access: Read | Write}
	dir := chunk.Entry{Name: "d", Mode: fs.ModeDir | 0o700, ModTime: someDay}
	rich := chunk.Entry{Name: "r", Mode: 0o600, Size: 9, ModTime: someDay, Same: chunk.Identity{Device: 1, Inode: 2}, Sparse: true, Owner: &chunk.Owner{UID: 3, GID: 4}}
	rich.Xattrs = []chunk.Xattr{{Name: "user.a", Value: ""}, {Name: "user.b", Value: "\x00b"}}
	return []encoder{
		&fileOpened{1, true, fileEntry{Entry: rich}},
		&fileTreed{7, true, []step{{Entry: rich}, {Entry: chunk.Entry{Name: "s", ModTime: someDay, Xattrs: []chunk.Xattr{}}}}},
		&fileOpen{1, 2, "a/b", chunk.Want{Xattrs: true}},
		&fileOpened{1, true, file},
		&fileList{3, "a", "b"},
		&fileList{3, "", ""},
		&fileEntries{3, true, []fileEntry{file, link, special, export}},
		&fileEntries{3, false, nil},
		&fileChunk{id: 4, handle: 2, index: 1 << 22, state: cachedDigest, print: 0x123456789abcdef0, grant: 9, stage: stage},
		&fileChunked{4, chunkZero, 7, railCounts{1 << 40, 2}},
		&fileDone{5, 2},
		&fileEnded{5, true, chunk.Sum{1, 2, 3}},
		&filePut{6, true, false, true, false, true, chunk.Want{Xattrs: true}, SyncNever, "put-1", "in/x", "- *.o\n+ *"},
		&filePut{6, false, true, false, true, true, chunk.Want{Owner: true}, SyncBatch, "put-1", "in/x", ""},
		&fileStored{6, transferResult{math.MaxInt64, 1, 2, 3, 4, 5, 6, 7}, "d/f: gone"},
		&fileTree{7, 9, "d/t", "a/b/", "- x", chunk.Want{Owner: true}},
		&fileTreed{7, true, []step{{Entry: file.Entry, fresh: true}, {Entry: link.Entry, depth: 2}, {Entry: special.Entry}, {Entry: dir, failed: "EIO"}}},
		&fileTreed{7, false, nil},
		&fileBatch{8, 9, stage, "d/t", []batchFile{{"a/f", 7, someDay, false, 0}, {"b/g", 0, someDay, true, 0x123456789abcdef0}}},
		&fileBatched{8, railCounts{3}, []batchResult{{batchWritten, 7}, {batchSame, 8}, {batchRefused + batchOutcome(rpc.Changed), 0}}},
	}
}

// wantStrict checks that a message survives a round trip, and that every prefix that decodes does too.
func wantStrict(t *testing.T, m encoder) {
	t.Helper()
	b := m.encode()
	if got, err := decode(b); err != nil {
		t.Errorf("decode(%+v): got %v, want no error", m, err)
	} else if again := got.(encoder).encode(); !bytes.Equal(again, b) {
		t.Errorf("decode(%T) = %+v, which is encoded as %x, not %x", m, got, again, b)
	}
	for n := range b {
		if got, err := decode(b[:n]); err == nil && !bytes.Equal(got.(encoder).encode(), b[:n]) {
			t.Errorf("decode of %d of %d bytes of %T = %+v, want an error", n, len(b), m, got)
		}
	}
}

func TestFileMessages(t *testing.T) {
	for _, m := range fileMessages() {
		wantStrict(t, m)
	}
	stage := ibverbx.RemoteRegion{Addr: 1 << 40, Length: 1 << 24, RKeys: []uint32{1, 2}}
	for _, m := range []encoder{
		&fileOpen{id: 1, handle: 2, name: ""},
		&fileOpen{id: 1, handle: 2, name: strings.Repeat("x", maxPath+1)},
		&fileOpened{1, true, fileEntry{Entry: chunk.Entry{Name: ".."}}},
		&fileOpened{1, true, fileEntry{Entry: chunk.Entry{Name: "a/b"}}},
		&fileOpened{1, true, fileEntry{Entry: chunk.Entry{Name: "/a"}, access: Read}},
		&fileOpened{1, true, fileEntry{Entry: chunk.Entry{Name: "f", Size: -1}}},
		&fileOpened{1, true, fileEntry{Entry: chunk.Entry{Name: "l", Mode: fs.ModeSymlink}}},
		&fileOpened{1, true, fileEntry{Entry: chunk.Entry{Name: "f", Link: "x"}}},
		&fileEntries{1, true, nil},
		&fileEntries{1, false, make([]fileEntry, maxEntries+1)},
		&fileChunk{id: 1, grant: 0, stage: ibverbx.RemoteRegion{Length: 1, RKeys: []uint32{1}}},
		&fileChunk{id: 1, grant: 1, index: maxIndex, stage: ibverbx.RemoteRegion{Length: 1, RKeys: []uint32{1}}},
		&fileChunk{id: 1, grant: 1, state: cachedDigest + 1, stage: ibverbx.RemoteRegion{Length: 1, RKeys: []uint32{1}}},
		&fileChunked{1, chunkZero + 1, 0, nil},
		&fileChunked{1, chunkZero, 0, make(railCounts, ibverbx.MaxRails+1)},
		&fileChunked{1, chunkZero, 0, railCounts{1 << 59}},
		&filePut{id: 1, sync: SyncNever + 1, source: "x", name: "d/x"},
		&filePut{id: 1, source: "x"},
		&fileTreed{1, true, nil},
		&fileTreed{1, false, make([]step, maxSteps+1)},
		&fileTreed{1, false, []step{{Entry: chunk.Entry{Name: ".."}}}},
		&fileTreed{1, false, []step{{Entry: chunk.Entry{Name: "d", Mode: fs.ModeDir, Sparse: true}}}},
		&fileTreed{1, false, []step{{Entry: chunk.Entry{Name: "x", Xattrs: []chunk.Xattr{{Name: "security.capability"}}}}}},
		&fileTreed{1, false, []step{{Entry: chunk.Entry{Name: "x", Xattrs: []chunk.Xattr{{Name: "user.b"}, {Name: "user.a"}}}}}},
		&fileTreed{1, false, []step{{Entry: chunk.Entry{Name: "x", Xattrs: []chunk.Xattr{{Name: "user.a"}, {Name: "user.a"}}}}}},
		&fileTreed{1, false, []step{{Entry: chunk.Entry{Name: "x", Xattrs: []chunk.Xattr{{Name: "user.a", Value: strings.Repeat("x", chunk.MaxXattrs)}}}}}},
		&fileTreed{1, false, []step{{Entry: chunk.Entry{Name: "a/b"}}}},
		&fileTreed{1, false, []step{{Entry: chunk.Entry{Name: "f", Size: -1}}}},
		&fileTreed{1, false, []step{{Entry: chunk.Entry{Name: "f"}, depth: chunk.MaxDepth + 1}}},
		&fileTreed{1, false, []step{{Entry: chunk.Entry{Name: "l", Mode: fs.ModeSymlink}}}},
		&fileTreed{1, false, []step{{Entry: chunk.Entry{Name: strings.Repeat("x", maxBase+1)}}}},
		&fileBatch{1, 0, stage, "d", []batchFile{{name: "f"}}},
		&fileBatch{1, 2, stage, "d", nil},
		&fileBatch{1, 2, stage, "d", make([]batchFile, maxBatch+1)},
		&fileBatch{1, 2, stage, "d", []batchFile{{name: "f", size: chunk.Size}, {name: "g", size: 1}}},
		&fileBatched{1, nil, make([]batchResult, maxBatch+1)},
	} {
		if got, err := decode(m.encode()); !errors.Is(err, rpc.ErrProtocol) {
			t.Errorf("decode(%+v) = %+v, %v, want %v", m, got, err, rpc.ErrProtocol)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range fileMessages() {
		f.Add(m.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			if !errors.Is(err, rpc.ErrProtocol) {
				t.Errorf("decode(%x): got error %v, want %v", b, err, rpc.ErrProtocol)
			}
			return
		}
		if e, ok := m.(encoder); ok && !bytes.Equal(e.encode(), b) {
			t.Errorf("decode(%x) = %+v, which is encoded as %x", b, m, e.encode())
		}
	})
}

// TestFalseFileMessages sends invalid messages. At worst they close the session, and files can be transferred
// afterwards.
func TestFalseFileMessages(t *testing.T) {
	n := memoryNetwork(1)
	stage := ibverbx.RemoteRegion{Addr: 1 << 40, Length: 1 << 20, RKeys: []uint32{1}}
	for _, c := range []struct {
		name string
		m    encoder
		ends bool
	}{
		{"a path that leaves", &fileOpen{id: 999, handle: 999, name: "d/../../x"}, false},
		{"an absolute path", &fileOpen{id: 999, handle: 999, name: "/etc/passwd"}, false},
		{"no path", &fileOpen{id: 999, handle: 999, name: ""}, true},
		{"a list of a path that leaves", &fileList{999, "..", ""}, false},
		{"a put to a path that leaves", &filePut{id: 999, source: "x", name: "d/../../x"}, false},
		{"a put of nothing", &filePut{id: 999, source: "x", name: "d/x"}, false},
		{"a chunk of nothing", &fileChunk{id: 999, handle: 99, grant: 77, stage: stage}, false},
		{"the end of nothing", &fileDone{999, 99}, false},
		{"a tree that leaves", &fileTree{id: 999, walk: 9, name: "d/.."}, false},
		{"a tree from outside", &fileTree{id: 999, walk: 9, name: "d", after: "../.."}, false},
		{"a tree with false rules", &fileTree{id: 999, walk: 9, name: "d", rules: "x"}, false},
		{"a batch of paths that leave", &fileBatch{999, 77, stage, "d", []batchFile{{name: "../x"}, {name: "/etc/passwd"}, {name: ""}}}, false},
		{"an answer to nothing", &fileChunked{99, chunkSame, 1, nil}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDepot(t, n, Read|Write)
			want := d.write(t, "f", 100, 1)
			s := d.peer.session()
			wantOK(t, "Send", s.Send(soon(t), service.FilesID, c.m.encode()))
			if c.ends {
				eventually(t, "the session has ended", func() bool { return d.peer.Node().Stats().Sessions > 1 })
			}
			wantOK(t, "Get", d.peer.Get("d/f", d.to, TransferConfig{}).Wait(soon(t)))
			wantFile(t, d.to+"/f", want)
			if !c.ends && d.peer.session() != s {
				t.Error("the session has ended")
			}
		})
	}
}

// TestLeavingRefusesNothing: a chunk that cannot be sent because the Node is closing gets no
// response. An error would fail the transfer, which can resume with the next process.
func TestLeavingRefusesNothing(t *testing.T) {
	if b := refuse(1, fmt.Errorf("put: %w", ErrClosed)); b != nil {
		t.Errorf("got an answer of %d bytes, want none", len(b))
	}
	if b := refuse(1, ErrChanged); b == nil {
		t.Error("a file that has changed: got no answer, want one")
	}
}

// FuzzListing: entries of a page never leave the tree, follow each other in order, and a listing continues behind any of them.
func FuzzListing(f *testing.F) {
	for _, m := range fileMessages() {
		if _, ok := m.(*fileTreed); ok {
			f.Add(m.encode())
		}
	}
	dir := step{Entry: chunk.Entry{Name: "d", Mode: fs.ModeDir | 0o700, ModTime: someDay}}
	file := step{Entry: chunk.Entry{Name: "f", ModTime: someDay}, depth: 1}
	f.Add((&fileTreed{1, true, []step{dir, file, {Entry: chunk.Entry{Name: "e", ModTime: someDay}}}}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		page, ok := m.(*fileTreed)
		if err != nil || !ok {
			return
		}
		at, last := positionAt(""), ""
		for i := range page.steps {
			if !at.next(&page.steps[i]) {
				return
			}
			name := at.path()
			for part := range strings.SplitSeq(name, "/") {
				if part == "" || part == "." || part == ".." || strings.ContainsRune(part, 0) {
					t.Fatalf("entry %d has the path %q", i, name)
				}
			}
			if last != "" && !before(last, name) {
				t.Fatalf("entry %d, %q, follows %q", i, name, last)
			}
			last = name
			if again := positionAt(at.cursor()); again.path() != name || again.open != at.open {
				t.Fatalf("the listing continues at %+v, want %+v", again, at)
			}
		}
	})
}

// before reports whether a path precedes another one in a listing: its elements are smaller, or it is a parent.
func before(a, b string) bool {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/")) < 0
}
