package files

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
	"time"

	"ibverbx/internal/chunk"
)

// TestFS: the file system of a peer conforms to io/fs, for a directory and for all Exports.
func TestFS(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		d := newDepot(t, n, Read)
		d.write(t, "t/f", 1000, 1) // testing/fstest reads each file many times, byte by byte
		d.write(t, "t/sub/small", 100, 2)
		wantOK(t, "Mkdir", os.Mkdir(filepath.Join(d.dir, "t/empty"), 0o700))
		wantOK(t, "TestFS", fstest.TestFS(d.peer.FS(soon(t), "d/t"), "f", "sub/small", "empty"))
		wantOK(t, "TestFS of all Exports", fstest.TestFS(d.peer.FS(soon(t), ""), "d/t/f", "d/t/sub/small"))
		want := d.write(t, "t/large", 10*chunk.Size+7, 1)
		d.write(t, "t/zeros", 0, 1)
		wantOK(t, "Truncate", os.Truncate(filepath.Join(d.dir, "t/zeros"), chunk.Size+1))
		sys := d.peer.FS(soon(t), "d/t")
		b, err := fs.ReadFile(sys, "large")
		wantOK(t, "ReadFile", err)
		wantSame(t, "the file", b, want)
		f, err := sys.Open("large")
		wantOK(t, "Open", err)
		for _, at := range []int64{9*chunk.Size - 1, 3, chunk.Size, 10 * chunk.Size} {
			part := make([]byte, min(3*chunk.Size, len(want)-int(at)))
			_, err := f.(io.ReaderAt).ReadAt(part, at)
			wantOK(t, "ReadAt", err)
			wantSame(t, "a part", part, want[at:][:len(part)])
		}
		wantOK(t, "Close", f.Close())
		b, err = fs.ReadFile(sys, "zeros")
		wantOK(t, "ReadFile", err)
		wantSame(t, "the zeros", b, make([]byte, chunk.Size+1))
		names, err := fs.Glob(d.peer.FS(soon(t), ""), "d/*/*")
		wantOK(t, "Glob", err)
		if len(names) != 5 {
			t.Errorf("Glob: %q, want 5 names", names)
		}
		d.noneOpen(t)
	})
}

// TestFSErrors: a peer's errors match the errors of package fs.
func TestFSErrors(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "t/f", 100, 1)
	wantOK(t, "Symlink", os.Symlink("/etc/passwd", filepath.Join(d.dir, "t/out")))
	sys := d.peer.FS(soon(t), "d/t")
	for name, want := range map[string]error{"none": fs.ErrNotExist, "f/x": fs.ErrNotExist, "../t": fs.ErrInvalid, "/t": fs.ErrInvalid, "out": fs.ErrNotExist} {
		_, err := sys.Open(name)
		wantErr(t, "Open("+name+")", err, want)
		_, err = fs.Stat(sys, name)
		wantErr(t, "Stat("+name+")", err, want)
	}
	f, err := sys.Open("f")
	wantOK(t, "Open", err)
	wantOK(t, "Close", f.Close())
	_, err = f.Read(make([]byte, 1))
	wantErr(t, "Read after Close", err, fs.ErrClosed)
	wantErr(t, "a second Close", f.Close(), fs.ErrClosed)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = d.peer.FS(ctx, "d").Open("t/f")
	wantErr(t, "Open after the context ended", err, context.Canceled)
	_, err = (&Peer{}).FS(t.Context(), "d").Open("t")
	wantErr(t, "Open with no peer", err, ErrClosed)
	d.noneOpen(t)
}

// TestFSChanged: Close reports a file that changed while it was read.
func TestFSChanged(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "f", 3*chunk.Size, 1)
	f, err := d.peer.FS(soon(t), "d").Open("f")
	wantOK(t, "Open", err)
	_, err = io.ReadFull(f, make([]byte, chunk.Size+1))
	wantOK(t, "ReadFull", err)
	d.write(t, "f", 3*chunk.Size, 2)
	wantErr(t, "Close", f.Close(), ErrChanged)
}

// TestFSDigest: a damaged chunk is requested again. If it is damaged each time, the read fails.
func TestFSDigest(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", 100, 1)
	left := 1
	d.here.chunkReceived = func(_ int64, b []byte) {
		if left > 0 {
			left--
			b[7]++
		}
	}
	b, err := fs.ReadFile(d.peer.FS(soon(t), "d"), "f")
	wantOK(t, "ReadFile of a chunk damaged once", err)
	wantSame(t, "the file", b, want)
	left = 2
	_, err = fs.ReadFile(d.peer.FS(soon(t), "d"), "f")
	wantErr(t, "ReadFile of a damaged file", err, ErrDigest)
}

// TestFSAfterRestart: reading continues after a restart of the peer, unless the file has changed.
func TestFSAfterRestart(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", 20*chunk.Size, 1)
	f, err := d.peer.FS(soon(t), "d").Open("f")
	wantOK(t, "Open", err)
	var got bytes.Buffer
	_, err = io.CopyN(&got, f, chunk.Size)
	wantOK(t, "CopyN", err)
	d.restart()
	_, err = io.Copy(&got, f)
	wantOK(t, "Copy", err)
	wantSame(t, "the file", got.Bytes(), want)
	_, err = f.(io.Seeker).Seek(0, io.SeekStart)
	wantOK(t, "Seek", err)
	d.write(t, "f", 19*chunk.Size, 2)
	d.restart()
	if _, err = io.Copy(&got, f); !errors.Is(err, ErrChanged) {
		t.Errorf("Copy: got %v, want %v", err, ErrChanged)
	}
	_ = f.Close()
}

// TestFSFileLost: after a restart of the peer, reads of a file that it has replaced or removed fail, again and again. They succeed
// once it has the same file.
func TestFSFileLost(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", 20*chunk.Size, 1)
	name := filepath.Join(d.dir, "f")
	f, err := d.peer.FS(soon(t), "d").Open("f")
	wantOK(t, "Open", err)
	read := func(off int64) error {
		b := make([]byte, 100)
		_, err := f.(io.ReaderAt).ReadAt(b, off)
		if err == nil {
			wantSame(t, "a part", b, want[off:][:100])
		}
		return err
	}
	wantOK(t, "ReadAt", read(0))
	wantOK(t, "Remove", os.Remove(name))
	d.restart()
	for off := range int64(3) {
		wantErr(t, "ReadAt of a removed file", read((off+10)*chunk.Size), fs.ErrNotExist)
	}
	d.write(t, "f", 19*chunk.Size, 2)
	for off := range int64(3) {
		wantErr(t, "ReadAt of another file", read((off+10)*chunk.Size), ErrChanged)
	}
	d.write(t, "f", 20*chunk.Size, 1)
	wantOK(t, "ReadAt of the same file", read(10*chunk.Size))
	wantOK(t, "Close", f.Close())
	d.noneOpen(t)
}

// TestFSCanceledClose: if the context ends while Close waits, the peer's file is closed anyway.
func TestFSCanceledClose(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "f", 100, 1)
	ctx, cancel := context.WithCancel(t.Context())
	f, err := d.peer.FS(ctx, "d").Open("f")
	wantOK(t, "Open", err)
	for range maxRequests { // requests without a response
		d.peer.requests <- struct{}{}
	}
	closed := make(chan error)
	go func() { closed <- f.Close() }()
	time.Sleep(20 * time.Millisecond) // if Close has not begun by now, the test finds less
	cancel()
	wantOK(t, "Close", <-closed)
	for range maxRequests {
		<-d.peer.requests
	}
	d.noneOpen(t)
}
