package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/chunk"
)

// operations collects the Operations of an Engine.
type operations struct {
	mu  sync.Mutex
	all []Operation
}

func (o *operations) add(one Operation) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, one)
}

// take waits for n operations and returns them, sorted by name.
func (o *operations) take(t *testing.T, n int) []Operation {
	t.Helper()
	eventually(t, "the operations are reported", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.all) >= n
	})
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.all
	o.all = nil
	slices.SortFunc(all, func(a, b Operation) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	if len(all) != n {
		t.Errorf("%d operations, want %d: %+v", len(all), n, all)
	}
	return all
}

func (o *operations) want(t *testing.T, op, name string, bytes int64, err error) {
	t.Helper()
	one := o.take(t, 1)[0]
	if one.Op != op || one.Name != name || one.Bytes != bytes || !errors.Is(one.Err, err) || (err == nil) != (one.Err == nil) {
		t.Errorf("got %+v, want %s of %s, %d bytes, %v", one, op, name, bytes, err)
	}
	if one.Peer.Identity().Name != "here" || one.Start.IsZero() || one.Duration < 0 {
		t.Errorf("%s of %s: peer %v, start %v, duration %v, want here and times", op, name, one.Peer, one.Start, one.Duration)
	}
}

// reporting returns a depot whose Export "d" has the given access. Its hosts report their
// operations to there and here.
func reporting(t *testing.T, access Access, there, here *operations) *depot {
	t.Helper()
	n := memoryNetwork(2)
	d := &depot{dir: t.TempDir(), to: t.TempDir()}
	d.there = n.start(t, hostConfig{name: "there", engine: Config{
		OnOperation: there.add, Exports: []ExportConfig{{Name: "d", Path: d.dir, DefaultAccess: access}},
	}})
	d.here = n.start(t, hostConfig{name: "here", engine: Config{OnOperation: here.add}})
	d.peer = d.here.to(d.there)
	return d
}

// TestOperationsAndStats: an Export's owner is notified of every file that a peer reads or writes,
// including refused and aborted ones. Both Engines count files and bytes.
func TestOperationsAndStats(t *testing.T) {
	const size = 3*chunk.Size + 100
	var ops, mine operations
	d := reporting(t, Read|Write, &ops, &mine)
	want := d.write(t, "f", size, 1)
	dest := filepath.Join(d.to, "f")
	get := func(name string) error { return d.peer.Get(name, d.to, TransferConfig{}).Wait(soon(t)) }

	wantOK(t, "Get", get("d/f"))
	wantFile(t, dest, want)
	ops.want(t, "get", "d/f", size, nil)

	want[2*chunk.Size] ^= 1 // one of the four chunks
	wantOK(t, "WriteFile", os.WriteFile(dest, want, 0o600))
	want[2*chunk.Size] ^= 1
	wantOK(t, "Get", get("d/f"))
	wantFile(t, dest, want)
	ops.want(t, "get", "d/f", chunk.Size, nil)

	wantErr(t, "Get", get("d/none"), ErrNotFound)
	one := ops.take(t, 1)[0]
	if one.Op != "get" || one.Name != "d/none" || one.Err == nil {
		t.Errorf("a refused request is reported as %+v, want its name and an error", one)
	}

	wantOK(t, "Put", d.peer.Put(dest, "d/put", TransferConfig{}).Wait(soon(t)))
	ops.want(t, "put", "d/put", size, nil)
	wantErr(t, "Put", d.peer.Put(dest, "e/put", TransferConfig{}).Wait(soon(t)), ErrNotFound)
	ops.want(t, "put", "e/put", 0, ErrNotFound)

	wantOK(t, "Mkdir", os.MkdirAll(filepath.Join(d.to, "tree", "sub"), 0o700))
	wantOK(t, "WriteFile", os.WriteFile(filepath.Join(d.to, "tree", "a"), []byte("a"), 0o600))
	wantOK(t, "WriteFile", os.WriteFile(filepath.Join(d.to, "tree", "sub", "b"), []byte("bb"), 0o600))
	wantOK(t, "Put", d.peer.Put(filepath.Join(d.to, "tree"), "d/tree", TransferConfig{}).Wait(soon(t)))
	tree := ops.take(t, 2)
	if tree[0].Name != "d/tree/a" || tree[0].Bytes != 1 || tree[1].Name != "d/tree/sub/b" || tree[1].Bytes != 2 {
		t.Errorf("a directory is reported as %+v, want its two files", tree)
	}

	here, there := d.here.Stats(), d.there.Stats()
	if want := (Stats{FilesReceived: 2, FilesResumed: 1, FilesSent: 3, BytesReceived: size + chunk.Size, BytesReused: size - chunk.Size, BytesSent: size + 3}); here != want {
		t.Errorf("Stats of the client: got %+v, want %+v", here, want)
	}
	if want := (Stats{FilesReceived: 3, FilesSent: 2, BytesReceived: size + 3, BytesSent: size + chunk.Size}); there != want {
		t.Errorf("Stats of the owner: got %+v, want %+v", there, want)
	}
}

// TestAbortedOperation: a file that a peer abandons is reported as incomplete, and one that it only
// opened is not reported.
func TestAbortedOperation(t *testing.T) {
	var ops, mine operations
	d := reporting(t, Read, &ops, &mine)
	d.write(t, "f", 40*chunk.Size, 1)
	l, from := d.opening(t)
	if _, err := l.releaseFile(context.Background(), from); err == nil {
		t.Error("a file that was not read has a digest, want an error")
	}
	from.release()
	var x *Transfer
	ready := make(chan struct{})
	d.here.chunkReceived = func(int64, []byte) {
		<-ready
		x.Cancel()
	}
	x = d.peer.Get("d/f", d.to, TransferConfig{})
	close(ready)
	wantErr(t, "Get", x.Wait(soon(t)), ErrCanceled)
	if one := ops.take(t, 1)[0]; one.Name != "d/f" || !errors.Is(one.Err, errUnread) {
		t.Errorf("got %+v, want an incomplete read of d/f", one)
	}
	if s := d.there.Stats(); s.FilesSent != 0 {
		t.Errorf("Stats: got %+v, want no file sent", s)
	}
}

// TestOperationsOfOfferedTree: only the side that stores an upload reports its files, including a large one that it cannot open.
func TestOperationsOfOfferedTree(t *testing.T) {
	var ops, mine operations
	d := reporting(t, Write, &ops, &mine)
	writeFile(t, filepath.Join(d.to, "large"), make([]byte, chunk.Size))
	d.there.received = func(m any) {
		if _, ok := m.(*fileTreed); ok {
			wantOK(t, "Remove", os.Remove(filepath.Join(d.to, "large")))
		}
	}
	wantErr(t, "Put", d.peer.Put(d.to, "d/t", TransferConfig{}).Wait(soon(t)), ErrIncomplete)
	ops.want(t, "put", "d/t/large", 0, ErrNotFound)
	if s := d.there.Stats(); s.FilesFailed != 1 {
		t.Errorf("Stats() = %+v, want 1 failed file", s)
	}
	// Names of uploads stay secret after they are withdrawn.
	_, err := d.there.client().Stat(soon(t), secretName())
	wantErr(t, "Stat", err, ErrNotFound)
	wantErr(t, "Get", d.there.client().Get(secretName()+"/f", d.dir, TransferConfig{}).Wait(soon(t)), ErrNotFound)
	wantErr(t, "Get", d.there.client().Get("put-1/f", d.dir, TransferConfig{}).Wait(soon(t)), ErrNotFound)
	if all := mine.take(t, 1); len(all) != 1 || all[0].Name != "put-1/f" {
		t.Errorf("the offering side reports %+v, want only the request for an unknown name", all)
	}
}

// TestStatIsNoOperation: Stat is not reported, and leaves no file open.
func TestStatIsNoOperation(t *testing.T) {
	var ops, mine operations
	d := reporting(t, Read, &ops, &mine)
	d.write(t, "f", 10, 1)
	_, err := d.peer.Stat(soon(t), "d/f")
	wantOK(t, "Stat", err)
	_, err = d.peer.Stat(soon(t), "d/none")
	wantErr(t, "Stat", err, ErrNotFound)
	d.noneOpen(t)
	wantErr(t, "Get", d.peer.Get("d/last", d.to, TransferConfig{}).Wait(soon(t)), ErrNotFound)
	if all := ops.take(t, 1); len(all) != 1 || all[0].Name != "d/last" {
		t.Errorf("reported are %+v, want only the request for d/last", all)
	}
}

// TestProgressOfTree: a directory's progress includes the number of listed files, and the rate
// excludes unchanged files.
func TestProgressOfTree(t *testing.T) {
	both(t, func(t *testing.T, from, _ string, copyTo func(TransferConfig) (Status, error)) {
		for i := range 20 {
			writeFile(t, filepath.Join(from, fmt.Sprintf("d/%d", i)), make([]byte, 1000))
		}
		for range 2 {
			s, err := copyTo(TransferConfig{})
			wantOK(t, "copy", err)
			if s.Listed != 20 || s.Listing || s.Sent+s.Unchanged != 20 {
				t.Errorf("Status() = %+v, want 20 listed files", s)
			}
		}
	})
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "t/f", 100, 1)
	for range 2 {
		x := d.peer.Get("d/t", d.to, TransferConfig{})
		var last Status
		for s := range x.Progress(soon(t), time.Millisecond) {
			last = s
		}
		wantOK(t, "Get", x.Err())
		if last.BytesReused == last.Bytes && last.Rate != 0 {
			t.Errorf("the rate is %v after %+v, want 0: all was there", last.Rate, last)
		}
	}
}
