package files

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/verbs"
)

// paths returns the sorted paths in a directory.
func paths(t testing.TB, dir string) (list []string) {
	t.Helper()
	wantOK(t, "WalkDir", filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, name); rel != "." {
			list = append(list, filepath.ToSlash(rel))
		}
		return err
	}))
	slices.Sort(list)
	return list
}

func wantPaths(t testing.TB, dir, want string) {
	t.Helper()
	if got := strings.Join(paths(t, dir), " "); got != want {
		t.Errorf("%s has %q, want %q", dir, got, want)
	}
}

// TestDelete: Delete removes the entries that the source lacks, including entries of read-only
// directories, but neither excluded entries nor targets of symbolic links. Directories keep the
// source's times.
func TestDelete(t *testing.T) {
	both(t, func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error)) {
		outside := t.TempDir()
		writeFile(t, filepath.Join(outside, "f"), nil)
		for _, name := range []string{"a", "d/b", "e/f/g"} {
			writeFile(t, filepath.Join(from, name), []byte(name))
			writeFile(t, filepath.Join(to, name), []byte(name))
		}
		for _, name := range []string{"0", "d/0", "d/x/y/z", "d/x/keep.o", "e/f/h", "e/f/i/j", "z/z", ".g.ibx-partial"} {
			writeFile(t, filepath.Join(to, name), nil)
		}
		wantOK(t, "Symlink", os.Symlink(outside, filepath.Join(to, "e/link")))
		for _, name := range []string{filepath.Join(from, "e/f"), filepath.Join(to, "e/f")} {
			wantOK(t, "Chmod", os.Chmod(name, 0o500))
			t.Cleanup(func() { wantOK(t, "Chmod", os.Chmod(name, 0o700)) })
		}
		wantOK(t, "Chtimes", os.Chtimes(filepath.Join(from, "e/f"), someDay, someDay))
		before := paths(t, to)
		cfg := TransferConfig{Delete: true, DryRun: true, Filter: []string{"- *.o"}}
		for cfg.DryRun = true; ; cfg.DryRun = false {
			s, err := copyTo(cfg)
			wantOK(t, "copy", err)
			if s.Deleted != 10 || s.Unchanged != 3 {
				t.Errorf("dry run %v: Status() = %+v, want 10 deleted and 3 unchanged", cfg.DryRun, s)
			}
			if !cfg.DryRun {
				break
			}
			wantPaths(t, to, strings.Join(before, " "))
		}
		wantPaths(t, to, ".g.ibx-partial a d d/b d/x d/x/keep.o e e/f e/f/g")
		wantPaths(t, outside, "f")
		if info, err := os.Stat(filepath.Join(to, "e/f")); err != nil || info.Mode().Perm() != 0o500 || !info.ModTime().Equal(someDay) {
			t.Errorf("the directory has %v (%v), want mode and time of the source", info, err)
		}
	})
}

// TestDeleteAfterFailedListing: Delete removes no entry if a source directory cannot be listed, or the listing is malformed.
func TestDeleteAfterFailedListing(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "t/a", 1, 1)
	d.write(t, "t/d/b", 1, 1)
	for _, name := range []string{"a", "d/b", "d/c", "x"} {
		writeFile(t, filepath.Join(d.to, name), nil)
	}
	for what, lie := range map[string]func(m *fileTreed){
		"a directory not readable": func(m *fileTreed) { m.steps, m.steps[1].failed = m.steps[:2], "no" },
		"entries out of order":     func(m *fileTreed) { m.steps = append(m.steps, m.steps[0]) },
	} {
		d.here.received = func(m any) {
			if m, ok := m.(*fileTreed); ok {
				lie(m)
			}
		}
		if err := d.peer.Get("d/t", d.to, TransferConfig{Delete: true}).Wait(soon(t)); err == nil {
			t.Errorf("%s: got no error", what)
		}
		wantPaths(t, d.to, "a d d/b d/c x")
	}
}

// TestDryRun: a dry run leaves the destination unchanged and counts the files that the transfer
// would receive or delete. The destination may be missing.
func TestDryRun(t *testing.T) {
	both(t, func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error)) {
		for _, name := range []string{"a", "d/b"} {
			writeFile(t, filepath.Join(from, name), []byte(name))
		}
		wantOK(t, "Symlink", os.Symlink("a", filepath.Join(from, "link")))
		dry := func(sent, unchanged int64) {
			t.Helper()
			s, err := copyTo(TransferConfig{DryRun: true, Delete: true})
			wantOK(t, "a dry run", err)
			if s.Sent != sent || s.Unchanged != unchanged || s.Deleted != 0 {
				t.Errorf("Status() = %+v, want %d sent and %d unchanged", s, sent, unchanged)
			}
		}
		dry(3, 0)
		if _, err := os.Lstat(to); !os.IsNotExist(err) {
			t.Errorf("Lstat: got %v, want that the destination does not exist", err)
		}
		_, err := copyTo(TransferConfig{})
		wantOK(t, "copy", err)
		writeFile(t, filepath.Join(to, "a"), []byte("another"))
		dry(1, 2)
		wantBytes(t, filepath.Join(to, "a"), []byte("another"))
	})
}

// TestSingleFile: a single file is compared by size and modification time, as in a directory. A dry run only counts it, even if the
// directory of the destination is missing, and an unchanged file is not reported as read.
func TestSingleFile(t *testing.T) {
	both(t, func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error)) {
		wantOK(t, "Remove", os.Remove(from))
		content := make([]byte, manyChunks)
		fill(content, 1)
		writeFile(t, from, content)
		copied := func(what string, cfg TransferConfig, sent, unchanged int64) {
			t.Helper()
			s, err := copyTo(cfg)
			wantOK(t, what, err)
			if s.Sent != sent || s.Unchanged != unchanged || s.Total != manyChunks || s.Bytes != s.Total && !cfg.DryRun {
				t.Errorf("%s: Status() = %+v, want %d sent and %d unchanged", what, s, sent, unchanged)
			}
		}
		copied("a dry run", TransferConfig{DryRun: true}, 1, 0)
		if _, err := os.Lstat(to); !os.IsNotExist(err) {
			t.Errorf("Lstat after a dry run: got %v, want that the file does not exist", err)
		}
		copied("the first copy", TransferConfig{}, 1, 0)
		wantFile(t, to, content)

		other := bytes.Clone(content)
		other[5]++
		writeFile(t, to, other) // with the same time
		wantOK(t, "Chmod", os.Chmod(to, 0o700))
		copied("a dry run with an equal time", TransferConfig{DryRun: true}, 0, 1)
		if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("after a dry run: %v, %v, want the old permissions", info, err)
		}
		copied("a copy of a file with an equal time", TransferConfig{}, 0, 1)
		wantFile(t, to, other)
		if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("the copy: %v, %v, want the permissions of the source", info, err)
		}
		copied("a dry run with Checksum", TransferConfig{DryRun: true, Checksum: true}, 1, 0)
		copied("a copy with Checksum", TransferConfig{Checksum: true}, 1, 0)
		wantFile(t, to, content)

		now := time.Now().Add(time.Hour) // modified just now, or by a clock that is ahead
		for _, name := range []string{from, to} {
			wantOK(t, "Chtimes", os.Chtimes(name, now, now))
		}
		copied("a dry run of a fresh file", TransferConfig{DryRun: true}, 1, 0)
		copied("a copy of a fresh, equal file", TransferConfig{}, 0, 1)
	})
	var ops, mine operations
	d := reporting(t, Read, &ops, &mine)
	d.write(t, "f", 10, 1)
	for range 2 {
		wantOK(t, "Get", d.peer.Get("d/f", d.to, TransferConfig{}).Wait(soon(t)))
	}
	x := d.peer.Get("d/f", filepath.Join(d.to, "none", "f"), TransferConfig{DryRun: true})
	wantOK(t, "Get to a missing directory", x.Wait(soon(t)))
	if s := x.Status(); s.Sent != 1 || s.Unchanged != 0 {
		t.Errorf("a dry run to a missing directory: Status() = %+v, want 1 sent", s)
	}
	d.noneOpen(t)
	ops.want(t, "get", "d/f", 10, nil)
}

// TestFilter: rules select the listed and transferred entries. Excluded directories are not read.
func TestFilter(t *testing.T) {
	both(t, func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error)) {
		for _, name := range []string{"a.o", "a.c", "d/a.c", "d/a.o", "e/d/a.c", "e/keep.o"} {
			writeFile(t, filepath.Join(from, name), []byte(name))
		}
		s, err := copyTo(TransferConfig{Filter: []string{"+ keep.*", "- *.o", "- /d/"}})
		wantOK(t, "copy", err)
		wantPaths(t, to, "a.c e e/d e/d/a.c e/keep.o")
		if s.Sent != 3 || s.Total != s.Bytes {
			t.Errorf("Status() = %+v, want 3 files", s)
		}
		_, err = copyTo(TransferConfig{Filter: []string{"*.o"}})
		wantErr(t, "a rule without a sign", err, verbs.ErrInvalid)
	})
}

// TestStat describes files and directories, but only names that the peer serves.
func TestStat(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "a/f", 10, 1)
	for name, want := range map[string]fs.FileMode{"d": fs.ModeDir, "d/a": fs.ModeDir, "d/a/f": 0} {
		info, err := d.peer.Stat(soon(t), name)
		wantOK(t, "Stat", err)
		if info.Name != name || info.Mode.Type() != want || want == 0 && (info.Size != 10 || !info.ModTime.Equal(someDay)) {
			t.Errorf("Stat(%q) = %+v", name, info)
		}
	}
	for _, name := range []string{"", "d/b", "e", "d/..", "../d"} {
		_, err := d.peer.Stat(soon(t), name)
		wantErr(t, "Stat of "+name, err, ErrNotFound)
	}
	d.noneOpen(t)
}

// TestDeleteBelowLeftOutDirectory: Delete removes no entry if any directory cannot be listed, even one below an omitted parent.
func TestDeleteBelowLeftOutDirectory(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "t/d/sub/f", 1, 1)
	writeFile(t, filepath.Join(d.to, "d"), nil)
	writeFile(t, filepath.Join(d.to, "x"), nil)
	d.here.received = func(m any) {
		if m, ok := m.(*fileTreed); ok {
			m.steps, m.steps[1].failed = m.steps[:2], "no"
		}
	}
	wantErr(t, "Get", d.peer.Get("d/t", d.to, TransferConfig{Delete: true}).Wait(soon(t)), ErrIncomplete)
	wantPaths(t, d.to, "d x")
}

// TestNamedPaths: with paths in Filter, only they are copied, and missing ones are named.
func TestNamedPaths(t *testing.T) {
	both(t, func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error)) {
		for _, name := range []string{"a/1", "a/2", "b/c/3", "b/c/4", "d"} {
			writeFile(t, filepath.Join(from, name), []byte(name))
		}
		s, err := copyTo(TransferConfig{Filter: []string{"= a/1", "= b/c", "= none/x"}})
		wantErr(t, "a copy of named paths", err, ErrIncomplete)
		if s.Sent != 3 || s.Failed != 1 || !strings.Contains(err.Error(), "none/x") {
			t.Errorf("Status() = %+v with %v, want 3 sent, and none/x failed", s, err)
		}
		for name, want := range map[string]bool{"a/1": true, "a/2": false, "b/c/3": true, "b/c/4": true, "d": false, "none": false} {
			if _, err := os.Lstat(filepath.Join(to, name)); (err == nil) != want {
				t.Errorf("%s: %v, want it to exist: %t", name, err, want)
			}
		}
	})
}

// TestKeepTop: with KeepTop, an existing destination keeps its permissions and times, and a new one
// gets the source's.
func TestKeepTop(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "t/f", 100, 1)
	top := filepath.Join(d.dir, "t")
	wantOK(t, "Chtimes", os.Chtimes(top, someDay, someDay))
	wantOK(t, "Chmod", os.Chmod(d.to, 0o751))
	writeFile(t, filepath.Join(d.to, "extra"), nil)
	wantOK(t, "Get", d.peer.Get("d/t", d.to, TransferConfig{KeepTop: true, Delete: true}).Wait(soon(t)))
	if info, err := os.Stat(d.to); err != nil || info.Mode().Perm() != 0o751 || info.ModTime().Equal(someDay) {
		t.Errorf("the destination has %v, %v, want its own attributes", info, err)
	}
	if _, err := os.Stat(filepath.Join(d.to, "extra")); err == nil {
		t.Error("the extra file exists, want it deleted")
	}
	to := filepath.Join(d.to, "new")
	wantOK(t, "Get", d.peer.Get("d/t", to, TransferConfig{KeepTop: true}).Wait(soon(t)))
	if info, err := os.Stat(to); err != nil || !info.ModTime().Equal(someDay) {
		t.Errorf("a new destination has %v, %v, want the time of the source", info, err)
	}
}

// TestReadOfExcluded: during a Put, the peer can read only entries that Filter includes, whatever
// it requests.
func TestReadOfExcluded(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Write)
	for _, name := range []string{"a", "sub/b", "key", "keys/c", "large"} {
		writeFile(t, filepath.Join(d.to, "from", name), []byte(name))
	}
	wantOK(t, "Symlink", os.Symlink("key", filepath.Join(d.to, "from/link")))
	wantOK(t, "Symlink", os.Symlink("keys", filepath.Join(d.to, "from/links")))
	cfg := TransferConfig{Filter: []string{"- key", "- keys/"}}
	l, err := d.peer.newDownload(cfg, &counts{})
	wantOK(t, "newPull", err)
	x := &Export{
		engine: d.here.Engine, cfg: ExportConfig{Name: secretName(), Path: filepath.Join(d.to, "from")},
		upload: &uploadSource{peer: d.peer, counts: &counts{}, filter: l.filter, rules: l.rules},
	}
	wantOK(t, "publish", errors.Join(x.open(), d.here.publish(x)))
	defer func() { wantOK(t, "Close", x.Close()) }()
	thief, to := d.there.client(), t.TempDir()
	for _, name := range []string{"/key", "/keys/c", "/link", "/links/c", "/keys", "/sub", ""} {
		cfg := TransferConfig{}
		if name == "/sub" { // allowed, but not as the top of a listing
			cfg = TransferConfig{Filter: []string{"- nothing"}}
		}
		wantErr(t, "Get of "+name, thief.Get(x.cfg.Name+name, to, cfg).Wait(soon(t)), ErrNotFound)
		_, err := thief.List(soon(t), x.cfg.Name+name)
		wantErr(t, "List of "+name, err, ErrNotFound)
	}
	wantPaths(t, to, "")
	for _, after := range []string{"keys/", "keys/a"} { // continues a listing in an excluded directory
		m, err := decode(d.peer.link.In(d.peer.session()).answerTree(soon(t), &fileTree{id: 1, walk: 1, name: x.cfg.Name, after: after, rules: l.rules}))
		page, ok := m.(*fileTreed)
		if err != nil || !ok || len(page.steps) == 0 || page.steps[0].Name != "large" {
			t.Errorf("the listing after %q: got %+v, %v, want the entries behind the excluded directory", after, m, err)
		}
	}
	d.there.received = func(m any) { // requests an unlisted name
		if m, ok := m.(*fileTreed); ok {
			key := m.steps[0]
			key.Name, key.Size = "key", 3
			m.steps = slices.Insert(m.steps, 1, key)
		}
	}
	wantErr(t, "Get", thief.Get(x.cfg.Name, to, cfg).Wait(soon(t)), ErrIncomplete)
	d.there.received = nil
	wantPaths(t, to, "a large link links sub sub/b")
}

// TestKeepTopOfPut: with KeepTop, several peers can put files into an Export concurrently. The
// attributes of its directory are kept.
func TestKeepTopOfPut(t *testing.T) {
	n := memoryNetwork(1)
	d := newDepot(t, n, Write)
	wantOK(t, "Chmod", os.Chmod(d.dir, 0o751))
	met, resume := make(chan struct{}), make(chan struct{})
	d.there.chunkReceived = func(_ int64, b []byte) {
		if string(b) == "first" {
			close(met)
			<-resume
		}
	}
	put := func(p *Peer, name string) *Transfer {
		from := filepath.Join(d.to, name)
		writeFile(t, filepath.Join(from, name), []byte(name))
		wantOK(t, "Chtimes", os.Chtimes(from, someDay, someDay))
		return p.Put(from, "d", TransferConfig{KeepTop: true})
	}
	first := put(d.peer, "first")
	<-met
	wantOK(t, "Put of another peer", put(n.start(t, hostConfig{name: "other"}).to(d.there), "second").Wait(soon(t)))
	close(resume)
	wantOK(t, "Put", first.Wait(soon(t)))
	wantPaths(t, d.dir, "first second")
	if info, err := os.Stat(d.dir); err != nil || info.Mode().Perm() != 0o751 || info.ModTime().Equal(someDay) {
		t.Errorf("the destination has %v, %v, want its own attributes", info, err)
	}
}

// TestKeepTopBesideMirror: a Put with KeepTop may run concurrently with a Put of the whole
// directory; two of the latter exclude each other.
func TestKeepTopBesideMirror(t *testing.T) {
	n := memoryNetwork(1)
	d := newDepot(t, n, Write)
	met, resume := make(chan struct{}), make(chan struct{})
	d.there.chunkReceived = func(_ int64, b []byte) {
		if string(b) == "first" {
			close(met)
			<-resume
		}
	}
	put := func(p *Peer, name string, keep bool) *Transfer {
		from := filepath.Join(d.to, name)
		writeFile(t, filepath.Join(from, name), []byte(name))
		return p.Put(from, "d/t", TransferConfig{KeepTop: keep})
	}
	first := put(d.peer, "first", false)
	<-met
	other := n.start(t, hostConfig{name: "other"}).to(d.there)
	wantOK(t, "Put with KeepTop", put(other, "second", true).Wait(soon(t)))
	wantErr(t, "Put of the directory", put(other, "third", false).Wait(soon(t)), ErrBusy)
	close(resume)
	wantOK(t, "Put", first.Wait(soon(t)))
	wantPaths(t, filepath.Join(d.dir, "t"), "first second")
}
