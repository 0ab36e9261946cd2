package transfer

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/chunk"
	"ibverbx/internal/service"
)

// fileMessages returns one of each kind.
func fileMessages() []encoder {
	stage := ibverbx.RemoteRegion{Addr: 1 << 40, Length: 1 << 24, RKeys: []uint32{1, 2}}
	file := fileEntry{Entry: chunk.Entry{Name: "f", Mode: 0o644, Size: 1 << 40, ModTime: someDay}}
	link := fileEntry{Entry: chunk.Entry{Name: "l", Mode: fs.ModeSymlink | 0o777, ModTime: someDay, Link: "../x"}}
	export := fileEntry{Entry: chunk.Entry{Name: "a/b", Mode: fs.ModeDir | 0o755, ModTime: someDay}, access: Read | Write}
	return []encoder{
		&fileOpen{1, 2, "a/b"},
		&fileOpened{1, file},
		&fileList{3, "a", "b"},
		&fileList{3, "", ""},
		&fileEntries{3, true, []fileEntry{file, link, export}},
		&fileEntries{3, false, nil},
		&fileChunk{id: 4, handle: 2, index: 1 << 22, have: haveDigest, print: 0x123456789abcdef0, grant: 9, stage: stage},
		&fileChunked{4, chunkZero, 7},
		&fileDone{5, 2},
		&fileEnded{5, true, chunk.Sum{1, 2, 3}},
		&filePut{6, true, "put-1", "in/x"},
		&fileStored{6, math.MaxInt64, 1, 0},
	}
}

func TestFileMessages(t *testing.T) {
	for _, m := range fileMessages() {
		wantStrict(t, m)
	}
	for _, m := range []encoder{
		&fileOpen{1, 2, ""},
		&fileOpen{1, 2, strings.Repeat("x", maxPath+1)},
		&fileOpened{1, fileEntry{Entry: chunk.Entry{Name: ".."}}},
		&fileOpened{1, fileEntry{Entry: chunk.Entry{Name: "a/b"}}},
		&fileOpened{1, fileEntry{Entry: chunk.Entry{Name: "/a"}, access: Read}},
		&fileOpened{1, fileEntry{Entry: chunk.Entry{Name: "f", Size: -1}}},
		&fileOpened{1, fileEntry{Entry: chunk.Entry{Name: "l", Mode: fs.ModeSymlink}}},
		&fileOpened{1, fileEntry{Entry: chunk.Entry{Name: "f", Link: "x"}}},
		&fileEntries{1, true, nil},
		&fileEntries{1, false, make([]fileEntry, maxEntries+1)},
		&fileChunk{id: 1, grant: mailboxGrant, stage: ibverbx.RemoteRegion{Length: 1, RKeys: []uint32{1}}},
		&fileChunk{id: 1, grant: 1, index: maxIndex, stage: ibverbx.RemoteRegion{Length: 1, RKeys: []uint32{1}}},
		&fileChunk{id: 1, grant: 1, have: haveDigest + 1, stage: ibverbx.RemoteRegion{Length: 1, RKeys: []uint32{1}}},
		&fileChunked{1, chunkZero + 1, 0},
	} {
		if got, err := decode(m.encode()); !errors.Is(err, errProtocol) {
			t.Errorf("decode(%+v) = %+v, %v, want %v", m, got, err, errProtocol)
		}
	}
}

func FuzzDecodeFile(f *testing.F) {
	for _, m := range fileMessages() {
		f.Add(m.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 0 { // only kinds of files
			b[0] = b[0]&0x87 | 0x10
		}
		wantDecoded(t, b)
	})
}

// TestFalseFileMessages sends what no honest peer sends. It ends the session at most, and files can be had afterwards.
func TestFalseFileMessages(t *testing.T) {
	n := memoryNetwork(1)
	stage := ibverbx.RemoteRegion{Addr: 1 << 40, Length: 1 << 20, RKeys: []uint32{1}}
	for _, c := range []struct {
		name string
		m    encoder
		ends bool
	}{
		{"a path that leaves", &fileOpen{999, 999, "d/../../x"}, false},
		{"an absolute path", &fileOpen{999, 999, "/etc/passwd"}, false},
		{"no path", &fileOpen{999, 999, ""}, true},
		{"a list of a path that leaves", &fileList{999, "..", ""}, false},
		{"a put to a path that leaves", &filePut{999, false, "x", "d/../../x"}, false},
		{"a put of nothing", &filePut{999, false, "x", "d/x"}, false},
		{"a chunk of nothing", &fileChunk{id: 999, handle: 99, grant: 77, stage: stage}, false},
		{"the end of nothing", &fileDone{999, 99}, false},
		{"an answer to nothing", &fileChunked{99, chunkSame, 1}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDepot(t, n, Read|Write)
			want := d.write(t, "f", 100, 1)
			s := d.peer.service.Session()
			wantOK(t, "Send", s.Send(soon(t), service.TransferID, c.m.encode()))
			if c.ends {
				eventually(t, "the session has ended", func() bool { return d.peer.Node().Detail().Sessions > 1 })
			}
			wantOK(t, "GetFile", d.peer.GetFile("d/f", d.to, FileConfig{}).Wait(soon(t)))
			wantFile(t, d.to+"/f", want)
			if !c.ends && d.peer.service.Session() != s {
				t.Error("the session has ended")
			}
		})
	}
}

// TestLeavingRefusesNothing: a chunk that cannot be sent because the Node is being closed is no failure of the file. An answer would end the
// transfer, which goes on with the next process.
func TestLeavingRefusesNothing(t *testing.T) {
	if b := refuseFile(1, fmt.Errorf("put: %w", ErrClosed)); b != nil {
		t.Errorf("got an answer of %d bytes, want none", len(b))
	}
	if b := refuseFile(1, ErrChanged); b == nil {
		t.Error("a file that has changed: got no answer, want one")
	}
}
