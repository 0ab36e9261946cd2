package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
)

// both runs a test for a tree received by Get, and for a tree received by Put. from and to are the
// directories; copyTo copies from one to the other and returns the Status.
func both(t *testing.T, f func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error))) {
	for _, op := range []string{"get", "put"} {
		t.Run(op, func(t *testing.T) {
			d := newDepot(t, memoryNetwork(1), Read|Write)
			from, to := filepath.Join(d.dir, "from"), filepath.Join(d.to, "to")
			start := func(cfg TransferConfig) *Transfer { return d.peer.Get("d/from", to, cfg) }
			if op == "put" {
				from, to = filepath.Join(d.to, "from"), filepath.Join(d.dir, "to")
				start = func(cfg TransferConfig) *Transfer { return d.peer.Put(from, "d/to", cfg) }
			}
			wantOK(t, "Mkdir", os.Mkdir(from, 0o700))
			f(t, from, to, func(cfg TransferConfig) (Status, error) {
				x := start(cfg)
				err := x.Wait(soon(t))
				return x.Status(), err
			})
		})
	}
}

// TestQuickCheck: files with equal size and modification time are not read, unless Checksum is set
// or they were just modified.
func TestQuickCheck(t *testing.T) {
	both(t, func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error)) {
		large := make([]byte, chunk.Size)
		for _, name := range []string{"a", "sub/b"} {
			writeFile(t, filepath.Join(from, name), []byte("content"))
		}
		writeFile(t, filepath.Join(from, "large"), large)
		want := func(what string, cfg TransferConfig, sent, unchanged int64) {
			t.Helper()
			s, err := copyTo(cfg)
			wantOK(t, what, err)
			if s.Sent != sent || s.Unchanged != unchanged || s.Failed != 0 || s.Bytes != s.Total || s.Total != 14+chunk.Size {
				t.Errorf("%s: Status() = %+v, want %d sent and %d unchanged", what, s, sent, unchanged)
			}
		}
		want("the first copy", TransferConfig{}, 3, 0)
		want("a copy of equal files", TransferConfig{}, 0, 3)
		large[5] = 1
		writeFile(t, filepath.Join(to, "large"), large) // with the same time
		writeFile(t, filepath.Join(to, "a"), []byte("CONTENT"))
		want("a copy of files with equal times", TransferConfig{}, 0, 3)
		wantBytes(t, filepath.Join(to, "a"), []byte("CONTENT"))
		want("a copy with Checksum", TransferConfig{Checksum: true}, 2, 1)
		wantBytes(t, filepath.Join(to, "a"), []byte("content"))
		wantBytes(t, filepath.Join(to, "large"), make([]byte, chunk.Size))

		now := time.Now().Add(time.Hour) // modified during the listing, or by a clock that is ahead
		for _, name := range []string{filepath.Join(from, "a"), filepath.Join(to, "a")} {
			writeFile(t, name, []byte(filepath.Base(filepath.Dir(name))[:1]+"......"))
			wantOK(t, "Chtimes", os.Chtimes(name, now, now))
		}
		want("a copy of a fresh file", TransferConfig{}, 1, 2)
		wantBytes(t, filepath.Join(to, "a"), []byte("f......"))

		wantOK(t, "Chtimes", os.Chtimes(filepath.Join(from, "a"), someDay, someDay))
		wantOK(t, "Chmod", os.Chmod(filepath.Join(from, "sub/b"), 0o751))
		before, err := os.Stat(filepath.Join(to, "a"))
		wantOK(t, "Stat", err)
		want("a copy of other attributes", TransferConfig{}, 0, 3)
		if info, err := os.Stat(filepath.Join(to, "a")); err != nil || !info.ModTime().Equal(someDay) || !os.SameFile(info, before) {
			t.Errorf("the file has %v (%v), want the time of the source, and the same file", info, err)
		}
		if info, err := os.Stat(filepath.Join(to, "sub/b")); err != nil || info.Mode().Perm() != 0o751 {
			t.Errorf("the file has %v (%v), want the permissions of the source", info, err)
		}
		want("a copy with Fresh", TransferConfig{Fresh: true}, 3, 0)
	})
}

// TestTreeTimes: directories, the top directory and symbolic links get the source's modification
// times, and a second copy leaves the tree unchanged.
func TestTreeTimes(t *testing.T) {
	both(t, func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error)) {
		names := []string{".", "a", "a/b", "a/b/f", "a/link"}
		writeFile(t, filepath.Join(from, "a/b/f"), []byte("f"))
		wantOK(t, "Symlink", os.Symlink("b", filepath.Join(from, "a/link")))
		time.Sleep(time.Millisecond) // the link becomes older than its copy
		for _, name := range []string{"a/b", "a", "."} {
			wantOK(t, "Chtimes", os.Chtimes(filepath.Join(from, name), someDay, someDay))
		}
		for range 2 {
			_, err := copyTo(TransferConfig{})
			wantOK(t, "copy", err)
			for _, name := range names {
				source, err := os.Lstat(filepath.Join(from, name))
				wantOK(t, "Lstat", err)
				info, err := os.Lstat(filepath.Join(to, name))
				wantOK(t, "Lstat", err)
				if !info.ModTime().Equal(source.ModTime()) {
					t.Errorf("%s has the time %v, want %v", name, info.ModTime(), source.ModTime())
				}
			}
		}
	})
}

// TestOneFailedFile: the error names files that cannot be stored, and the rest is transferred.
func TestOneFailedFile(t *testing.T) {
	both(t, func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error)) {
		for _, name := range []string{"a", "b", "c", "d/e", "d/f/g", "h"} {
			writeFile(t, filepath.Join(from, name), []byte(name))
		}
		wantOK(t, "Symlink", os.Symlink("a", filepath.Join(from, "link")))
		for _, name := range []string{"b/x", "link/x"} { // directories where the source has a file and a link
			writeFile(t, filepath.Join(to, name), nil)
		}
		writeFile(t, filepath.Join(to, "d"), nil) // a file where the source has a directory
		s, err := copyTo(TransferConfig{})
		wantErr(t, "a copy", err, ErrIncomplete)
		for _, part := range []string{"b: ", "d: ", "link: ", "6 omitted"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("got %v, want %q in it", err, part)
			}
		}
		if s.Sent != 3 || s.Failed != 6 {
			t.Errorf("Status() = %+v, want 3 sent and 6 failed", s)
		}
		for _, name := range []string{"a", "c", "h"} {
			wantFile(t, filepath.Join(to, name), []byte(name))
		}
	})
}

// TestChangedAfterListing: a file that changes between its listing and its transfer is received in
// its new version, and the error names a removed one.
func TestChangedAfterListing(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	for _, name := range []string{"a", "b", "c"} {
		d.write(t, "t/"+name, 100, 1)
	}
	var want []byte
	d.here.received = func(m any) {
		if _, ok := m.(*fileTreed); ok {
			want = d.write(t, "t/a", 200, 2)
			wantOK(t, "Remove", os.Remove(filepath.Join(d.dir, "t/b")))
		}
	}
	x := d.peer.Get("d/t", d.to, TransferConfig{})
	err := x.Wait(soon(t))
	wantErr(t, "Get", err, ErrIncomplete)
	if s := x.Status(); s.Sent != 2 || s.Failed != 1 || !strings.Contains(err.Error(), "b: not found") {
		t.Errorf("Status() = %+v with %v, want 2 sent and one not found", s, err)
	}
	wantFile(t, filepath.Join(d.to, "a"), want)
	d.noneOpen(t)
}

// TestDamagedSmallFile: a small file damaged in transit is requested again. If it is damaged each
// time, the error names it.
func TestDamagedSmallFile(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "t/a", 100, 1)
	d.write(t, "t/b", 100, 2)
	left := 1
	d.here.chunkReceived = func(_ int64, b []byte) {
		if b[0] == want[0] && left > 0 {
			left--
			b[7]++
		}
	}
	x := d.peer.Get("d/t", d.to, TransferConfig{})
	wantOK(t, "Get with one damaged file", x.Wait(soon(t)))
	wantFile(t, filepath.Join(d.to, "a"), want)
	if s := x.Status(); s.ChunksRetried != 1 || s.Sent != 2 {
		t.Errorf("Status() = %+v, want one that was retried", s)
	}
	left = 100
	wantErr(t, "Get with a file that is always damaged", d.peer.Get("d/t", d.to, TransferConfig{Fresh: true}).Wait(soon(t)), ErrDigest)
	wantBytes(t, filepath.Join(d.to, "a"), want)
}

// TestLyingServer: malformed listings and batch results are errors. All writes stay below the destination.
func TestLyingServer(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "t/a/b", 100, 1)
	d.write(t, "t/c", 100, 2)
	step0 := func(change func(m *fileTreed)) func(any) {
		return func(m any) {
			if m, ok := m.(*fileTreed); ok {
				change(m)
			}
		}
	}
	results := func(change func(m *fileBatched)) func(any) {
		return func(m any) {
			if m, ok := m.(*fileBatched); ok {
				change(m)
			}
		}
	}
	steps := func() []step {
		return []step{{Entry: chunk.Entry{Name: "a", Mode: fs.ModeDir | 0o700, ModTime: someDay}}, {Entry: chunk.Entry{Name: "b", Size: 100, ModTime: someDay}, depth: 1}}
	}
	for what, c := range map[string]struct {
		heard func(any)
		want  error
	}{
		"too deep":                 {step0(func(m *fileTreed) { m.steps[0].depth = 1 }), rpc.ErrProtocol},
		"too deep below a file":    {step0(func(m *fileTreed) { m.steps[2].depth = 2 }), rpc.ErrProtocol},
		"an entry again":           {step0(func(m *fileTreed) { m.steps = append(m.steps, m.steps[2]) }), rpc.ErrProtocol},
		"an entry of another time": {step0(func(m *fileTreed) { m.steps = append(m.steps, m.steps[0]) }), rpc.ErrProtocol},
		"the same page again":      {step0(func(m *fileTreed) { m.steps, m.more = steps(), true }), rpc.ErrProtocol},
		"a directory not readable": {step0(func(m *fileTreed) { m.steps, m.steps[0].failed = m.steps[:1], "no" }), ErrIncomplete},
		"a name of a partial file": {step0(func(m *fileTreed) { m.steps[2].Name = "c.ibx-partial"; m.steps[0].Name = ".b.ibx-partial" }), ErrDenied},
		"a file that is none":      {step0(func(m *fileTreed) { m.steps[2].Name = "d" }), ErrNotFound},
		"too few results":          {results(func(m *fileBatched) { m.results = m.results[1:] }), rpc.ErrProtocol},
		"too many results":         {results(func(m *fileBatched) { m.results = append(m.results, m.results...) }), rpc.ErrProtocol},
		"the same as nothing":      {results(func(m *fileBatched) { m.results[0].outcome = batchSame }), rpc.ErrProtocol},
		"an unknown refusal":       {results(func(m *fileBatched) { m.results[0].outcome = 0xff }), ErrMismatch},
		"a false size":             {step0(func(m *fileTreed) { m.steps[1].Size = 50; m.steps[2].Size = 1 << 50 }), nil},
		"a false digest":           {results(func(m *fileBatched) { m.results[0].digest++ }), nil},
		"no contents":              {results(func(m *fileBatched) { m.results[0], m.results[1] = batchResult{digest: 1}, batchResult{digest: 2} }), nil},
		"contents of another file": {results(func(m *fileBatched) { m.results[0].outcome = batchRefused + batchOutcome(rpc.Changed) }), nil},
	} {
		t.Run(what, func(t *testing.T) {
			outer := t.TempDir()
			to := filepath.Join(outer, "x/to")
			d.here.received = c.heard
			err := d.peer.Get("d/t", to, TransferConfig{}).Wait(soon(t))
			d.here.received = nil
			if !errors.Is(err, c.want) {
				t.Errorf("Get: got %v, want %v", err, c.want)
			}
			if b, err := os.ReadFile(filepath.Join(to, "a/b")); err == nil {
				wantSame(t, "the file", b, want)
			} else if c.want == nil {
				t.Errorf("the file: %v, want it", err)
			}
			wantOK(t, "WalkDir", filepath.WalkDir(outer, func(name string, _ fs.DirEntry, err error) error {
				if rel, _ := filepath.Rel(outer, name); !strings.HasPrefix("x/to/a/b", rel) && rel != "." && rel != "x/to/c" {
					t.Errorf("there is %s", rel)
				}
				return err
			}))
			wantOK(t, "a true Get", d.peer.Get("d/t", to, TransferConfig{}).Wait(soon(t)))
			wantFile(t, filepath.Join(to, "a/b"), want)
		})
	}
	d.noneOpen(t)
}

// TestTreeListedAcrossSessions: the listing of a tree continues after a lost session, and when the server was restarted.
func TestTreeListedAcrossSessions(t *testing.T) {
	d := depotIn(t, memoryNetwork(1), Read, memoryDir(t), memoryDir(t))
	const n = maxSteps + 1000
	for i := range n {
		name := filepath.Join(d.dir, fmt.Sprintf("t/%03d/%05d", i/100, i))
		wantOK(t, "MkdirAll", os.MkdirAll(filepath.Dir(name), 0o700))
		wantOK(t, "WriteFile", os.WriteFile(name, nil, 0o600))
	}
	for _, event := range []func(){func() {}, func() { lose(d.peer) }, d.restart} {
		var work sync.WaitGroup
		pages := 0
		d.here.received = func(m any) {
			if _, ok := m.(*fileTreed); ok {
				if pages++; pages == 1 {
					work.Go(event)
				}
			}
		}
		to := memoryDir(t)
		x := d.peer.Get("d/t", to, TransferConfig{Sync: SyncNever})
		wantOK(t, "Get", x.Wait(soon(t)))
		work.Wait()
		if s := x.Status(); s.Sent != n || pages < 2 {
			t.Errorf("Status() = %+v after %d pages, want %d files", s, pages, n)
		}
		list, err := filepath.Glob(filepath.Join(to, "*/*"))
		if err != nil || len(list) != n {
			t.Errorf("%d files, %v, want %d", len(list), err, n)
		}
	}
	d.here.received = nil
}

// TestListingOfEarlierTransfer: a transfer never continues the listing of an earlier one. A file created since is listed, and Delete keeps
// its copy.
func TestListingOfEarlierTransfer(t *testing.T) {
	d := depotIn(t, memoryNetwork(1), Read, memoryDir(t), memoryDir(t))
	top := filepath.Join(d.dir, "t")
	wantOK(t, "Mkdir", os.Mkdir(top, 0o700))
	for i := range maxSteps + 10 {
		wantOK(t, "WriteFile", os.WriteFile(filepath.Join(top, fmt.Sprintf("%05d", i)), nil, 0o600))
	}
	var x *Transfer
	ready := make(chan struct{})
	d.here.received = func(m any) {
		if _, ok := m.(*fileTreed); ok {
			<-ready
			x.Cancel()
		}
	}
	x = d.peer.Get("d/t", d.to, TransferConfig{Sync: SyncNever})
	close(ready)
	wantErr(t, "Get that is canceled", x.Wait(soon(t)), ErrCanceled)
	d.here.received = nil
	writeFile(t, filepath.Join(top, "zz"), []byte("valuable"))
	writeFile(t, filepath.Join(d.to, "zz"), []byte("valuable"))
	x = d.peer.Get("d/t", d.to, TransferConfig{Sync: SyncNever, Delete: true})
	wantOK(t, "Get", x.Wait(soon(t)))
	if n := x.Status().Deleted; n != 0 {
		t.Errorf("%d deleted, want none", n)
	}
	wantBytes(t, filepath.Join(d.to, "zz"), []byte("valuable"))
}

// TestListingOfLongPaths: a listing continues after a path that is too long for a request. Entries
// with such paths are left out.
func TestListingOfLongPaths(t *testing.T) {
	d := depotIn(t, memoryNetwork(1), Read, memoryDir(t), memoryDir(t))
	top := filepath.Join(d.dir, "t")
	wantOK(t, "Mkdir", os.Mkdir(top, 0o700))
	writeFile(t, filepath.Join(top, "z"), []byte("z"))
	r, err := os.OpenRoot(top)
	wantOK(t, "OpenRoot", err)
	long := strings.Repeat("n", 240)
	for range 18 {
		wantOK(t, "Mkdir", r.Mkdir(long, 0o700))
		sub, err := r.OpenRoot(long)
		wantOK(t, "OpenRoot", errors.Join(err, r.Close()))
		r = sub
	}
	for i := range maxSteps + 10 {
		f, err := r.Create(fmt.Sprint(i))
		wantOK(t, "Create", err)
		wantOK(t, "Close", f.Close())
	}
	wantOK(t, "Close", r.Close())
	x := d.peer.Get("d/t", d.to, TransferConfig{DryRun: true})
	wantErr(t, "Get of long paths", x.Wait(soon(t)), ErrTooLong)
	if s := x.Status(); s.Sent != 1 || s.Failed < maxSteps {
		t.Errorf("Status() = %+v, want only the file behind the long paths", s)
	}
}

// TestTimeOfTop: the top directory gets the source's time although the lock file in it changes.
func TestTimeOfTop(t *testing.T) {
	both(t, func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error)) {
		for _, text := range []string{"a", "another"} {
			writeFile(t, filepath.Join(from, "sub/f"), []byte(text))
			wantOK(t, "Chtimes", os.Chtimes(from, someDay, someDay))
			_, err := copyTo(TransferConfig{})
			wantOK(t, "copy", err)
			if info, err := os.Stat(to); err != nil || !info.ModTime().Equal(someDay) {
				t.Errorf("the top has %v (%v), want %v", info.ModTime(), err, someDay)
			}
		}
	})
}

// TestLocalFileChangedMeanwhile: a local file is kept only if it has not changed since its
// comparison. Otherwise it is received.
func TestLocalFileChangedMeanwhile(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "t/f", 100, 1)
	local := filepath.Join(d.to, "f")
	wantOK(t, "WriteFile", os.WriteFile(local, want, 0o600))
	d.here.received = func(m any) {
		if _, ok := m.(*fileBatched); ok {
			wantOK(t, "WriteFile", os.WriteFile(local, make([]byte, len(want)), 0o600))
		}
	}
	wantOK(t, "Get", d.peer.Get("d/t", d.to, TransferConfig{}).Wait(soon(t)))
	wantFile(t, local, want)
}
