package files

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"ibverbx/internal/chunk"
	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/node"
	"ibverbx/transfer"
)

// makeTree creates a tree with files of many sizes, an empty directory, a link, and more entries than fit in
// one response.
func makeTree(t testing.TB, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for i := range maxEntries + 10 {
		files[fmt.Sprintf("many/%d", i)] = fmt.Appendf(nil, "file %d", i)
	}
	for i, size := range []int{0, 1, chunk.Size, chunk.Size + 1, 3 * chunk.Size} {
		b := make([]byte, size)
		fill(b, uint64(i))
		files[fmt.Sprintf("a/b/%d", i)] = b
	}
	for name, b := range files {
		writeFile(t, filepath.Join(dir, name), b)
	}
	wantOK(t, "Mkdir", os.Mkdir(filepath.Join(dir, "empty"), 0o750))
	wantOK(t, "Symlink", os.Symlink("../nowhere", filepath.Join(dir, "a/link")))
	return files
}

func wantTree(t testing.TB, dir string, files map[string][]byte) {
	t.Helper()
	for name, b := range files {
		wantBytes(t, filepath.Join(dir, name), b)
	}
	if link, err := os.Readlink(filepath.Join(dir, "a/link")); link != "../nowhere" {
		t.Errorf("the link is to %q, %v", link, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "empty")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the empty directory: %v, %v", info, err)
	}
	wantOK(t, "WalkDir", filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if match, _ := filepath.Match(".*.ibx-partial", filepath.Base(name)); match {
			t.Errorf("there is %s", name)
		}
		return err
	}))
}

// TestGetTree gets a directory, and gets it again when part of it exists.
func TestGetTree(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	files := makeTree(t, filepath.Join(d.dir, "top"))
	dest := filepath.Join(d.to, "new")
	x := d.peer.Get("d/top", dest, TransferConfig{Sync: SyncNever})
	wantOK(t, "Get of a directory", x.Wait(soon(t)))
	wantTree(t, dest, files)
	if s := x.Status(); s.Bytes != s.Total || s.Total < 5*chunk.Size || s.BytesReused != 0 {
		t.Errorf("Status() = %+v", s)
	}
	wantOK(t, "Remove", os.Remove(filepath.Join(dest, "a/b/4")))
	x = d.peer.Get("d/top", dest, TransferConfig{Sync: SyncNever})
	wantOK(t, "Get of a directory", x.Wait(soon(t)))
	wantTree(t, dest, files)
	if s := x.Status(); s.Total-s.BytesReused != 3*chunk.Size {
		t.Errorf("Status() = %+v, want all but 3 chunks kept", s)
	}
}

// TestPutFile puts a file and a directory.
func TestPutFile(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read|Write)
	b := make([]byte, manyChunks)
	fill(b, 1)
	writeFile(t, filepath.Join(d.to, "f"), b)
	x := d.peer.Put(filepath.Join(d.to, "f"), "d/new/g", TransferConfig{})
	wantOK(t, "Put", x.Wait(soon(t)))
	wantFile(t, filepath.Join(d.dir, "new/g"), b)
	if s := x.Status(); s.Bytes != manyChunks || s.Total != manyChunks || s.Chunks != 6 || s.BytesReused != 0 {
		t.Errorf("Status() = %+v", s)
	}
	x = d.peer.Put(filepath.Join(d.to, "f"), "d/new/g", TransferConfig{})
	wantOK(t, "Put", x.Wait(soon(t)))
	if s := x.Status(); s.BytesReused != manyChunks {
		t.Errorf("Status() of another Put = %+v, want everything kept", s)
	}
	files := makeTree(t, filepath.Join(d.to, "top"))
	wantOK(t, "Put of a directory", d.peer.Put(filepath.Join(d.to, "top"), "d/tree", TransferConfig{}).Wait(soon(t)))
	wantTree(t, filepath.Join(d.dir, "tree"), files)
	wantErr(t, "Put to an export itself", d.peer.Put(filepath.Join(d.to, "f"), "d", TransferConfig{}).Wait(soon(t)), ErrDenied)
	wantErr(t, "Put to no export", d.peer.Put(filepath.Join(d.to, "f"), "e/f", TransferConfig{}).Wait(soon(t)), ErrNotFound)
	wantErr(t, "Put of nothing", d.peer.Put(filepath.Join(d.to, "no"), "d/f", TransferConfig{}).Wait(soon(t)), fs.ErrNotExist)
	d.here.mu.Lock()
	defer d.here.mu.Unlock()
	if n := len(d.here.exports); n != 0 {
		t.Errorf("%d exports of Put are left", n)
	}
}

// TestPutFileAcrossSessions: a put resumes after a lost session, a restart of the peer, and a Cancel.
func TestPutFileAcrossSessions(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Write)
	b := make([]byte, 24*chunk.Size)
	fill(b, 1)
	name := filepath.Join(d.to, "f")
	writeFile(t, name, b)
	put := func(event func(x *Transfer)) error {
		met, resume := make(chan struct{}), make(chan struct{})
		var once sync.Once
		d.there.chunkReceived = func(k int64, _ []byte) {
			if k == 5 {
				once.Do(func() { close(met) })
				<-resume
			}
		}
		x := d.peer.Put(name, "d/f", TransferConfig{Fresh: true})
		<-met
		event(x)
		close(resume)
		return x.Wait(soon(t))
	}
	wantOK(t, "Put across a lost session", put(func(*Transfer) { lose(d.peer) }))
	wantFile(t, filepath.Join(d.dir, "f"), b)
	wantErr(t, "Put that is canceled", put((*Transfer).Cancel), ErrCanceled)
	d.there.chunkReceived = nil
	x := d.peer.Put(name, "d/f", TransferConfig{Checksum: true})
	wantOK(t, "Put after a Cancel", x.Wait(soon(t)))
	if s := x.Status(); s.BytesReused == 0 {
		t.Errorf("Status() = %+v, want that something was kept", s)
	}
	wantFile(t, filepath.Join(d.dir, "f"), b)
	old := d.there
	met := make(chan struct{})
	old.chunkReceived = func(k int64, _ []byte) {
		if k == 5 {
			close(met)
			<-old.ctx.Done()
		}
	}
	x = d.peer.Put(name, "d/f", TransferConfig{Fresh: true})
	<-met
	d.restart()
	wantOK(t, "Put across a restart", x.Wait(soon(t)))
	wantFile(t, filepath.Join(d.dir, "f"), b)
	old, met = d.there, make(chan struct{})
	old.chunkReceived = func(k int64, _ []byte) {
		if k == 5 {
			close(met)
			<-old.ctx.Done()
		}
	}
	x = d.peer.Put(name, "d/f", TransferConfig{Fresh: true})
	<-met
	d.there = old.startAgain()
	wantOK(t, "Put to a server that is stopped and started", x.Wait(soon(t)))
	wantFile(t, filepath.Join(d.dir, "f"), b)
}

// TestTreeEscapes: neither requested names nor symbolic links lead out of an exported directory, and entries
// of a peer's tree stay below the target.
func TestTreeEscapes(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read|Write)
	outside := t.TempDir()
	writeFile(t, filepath.Join(outside, "secret"), []byte("secret"))
	wantOK(t, "Symlink", os.Symlink(outside, filepath.Join(d.dir, "out")))
	wantOK(t, "Symlink", os.Symlink(filepath.Join(outside, "secret"), filepath.Join(d.dir, "link")))
	writeFile(t, filepath.Join(d.to, "f"), []byte("f"))
	for _, name := range []string{"d/out/secret", "d/link", "d/../x", "..", "/etc/passwd", "d//f", "d/./f", ""} {
		err := d.peer.Get(name, filepath.Join(d.to, "got"), TransferConfig{}).Wait(soon(t))
		wantErr(t, "Get of "+name, err, ErrNotFound)
	}
	for _, name := range []string{"d/out", "d/out/secret"} {
		_, err := d.peer.List(soon(t), name)
		wantErr(t, "List of "+name, err, ErrNotFound)
	}
	for _, name := range []string{"d/out/f", "d/out/new/f", "d/link", "d/../f", "/f", "d/.f.ibx-partial"} {
		if err := d.peer.Put(filepath.Join(d.to, "f"), name, TransferConfig{}).Wait(soon(t)); err == nil {
			t.Errorf("Put to %q: got no error", name)
		}
	}
	left, err := os.ReadDir(outside)
	wantBytes(t, filepath.Join(outside, "secret"), []byte("secret"))
	if err != nil || len(left) != 1 {
		t.Errorf("outside there is %v, %v", left, err)
	}
	// Existing links are not followed either.
	wantOK(t, "Symlink", os.Symlink(outside, filepath.Join(d.to, "sub")))
	writeFile(t, filepath.Join(d.dir, "tree/sub/f"), []byte("f"))
	if err := d.peer.Get("d/tree", d.to, TransferConfig{}).Wait(soon(t)); err == nil {
		t.Error("Get of a tree through a link: got no error")
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 1 {
		t.Errorf("outside there is %v, %v", left, err)
	}
}

// TestFileNamesHidden: a name denied to a peer gets the same response as an unknown name, and is not listed.
func TestFileNamesHidden(t *testing.T) {
	n := memoryNetwork(1)
	d := newDepot(t, n, Read)
	d.write(t, "f", 10, 1)
	for name, public := range map[string]Access{"hidden": 0, "in": Write, "both": Read | Write} {
		_, err := d.there.Serve(ExportConfig{Name: name, Path: d.dir, DefaultAccess: public})
		wantOK(t, "Export", err)
	}
	list, err := d.peer.List(soon(t), "")
	wantOK(t, "List", err)
	if names := namesOf(list); !slices.Equal(names, []string{"both", "d", "in"}) {
		t.Errorf("List found %q", names)
	}
	hidden := d.peer.Get("hidden/f", d.to, TransferConfig{}).Wait(soon(t))
	absent := d.peer.Get("absent/f", d.to, TransferConfig{}).Wait(soon(t))
	wantErr(t, "Get of a hidden name", hidden, ErrNotFound)
	if a, b := errors.Unwrap(hidden).Error(), errors.Unwrap(absent).Error(); a != b {
		t.Errorf("a hidden name is answered with %q, one that does not exist with %q", a, b)
	}
	wantErr(t, "Put to a hidden name", d.peer.Put(filepath.Join(d.dir, "f"), "hidden/g", TransferConfig{}).Wait(soon(t)), ErrNotFound)
	wantErr(t, "Put to what can be read", d.peer.Put(filepath.Join(d.dir, "f"), "d/g", TransferConfig{}).Wait(soon(t)), ErrDenied)
	wantErr(t, "Get of what can be written", d.peer.Get("in/f", d.to, TransferConfig{}).Wait(soon(t)), ErrDenied)
	list, err = d.peer.List(soon(t), "d")
	wantOK(t, "List", err)
	if names := namesOf(list); !slices.Equal(names, []string{"d/f"}) || list[0].Size != 10 {
		t.Errorf("List found %+v", list)
	}
	list, err = d.peer.List(soon(t), "d/f")
	wantOK(t, "List of a file", err)
	if names := namesOf(list); !slices.Equal(names, []string{"d/f"}) {
		t.Errorf("List found %+v", list)
	}
}

// TestAuthorizeExports: Config.Authorize controls access to an Export and everything in it.
// Symbolic links, including ones created by the peer, cannot lead outside it.
func TestAuthorizeExports(t *testing.T) {
	n := memoryNetwork(1)
	dir, to := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(dir, "private/f"), []byte("secret"))
	writeFile(t, filepath.Join(dir, "open/f"), []byte("open"))
	names := make(chan string, 100)
	authorize := func(_ context.Context, _ *node.Peer, name string, _ Access) (Access, error) {
		if names <- name; name == "open" {
			return Read | Write, nil
		}
		return 0, fs.ErrPermission
	}
	there, here := n.start(t, hostConfig{name: "there", engine: Config{Authorize: authorize}}), n.start(t, hostConfig{name: "here"})
	for _, name := range []string{"open", "private"} {
		_, err := there.Serve(ExportConfig{Name: name, Path: filepath.Join(dir, name), DefaultAccess: Read | Write})
		wantOK(t, "Export", err)
	}
	p := here.to(there)
	wantOK(t, "Get", p.Get("open/f", to, TransferConfig{}).Wait(soon(t)))
	wantErr(t, "Get of what Authorize hides", p.Get("private/f", to, TransferConfig{}).Wait(soon(t)), ErrNotFound)
	list, err := p.List(soon(t), "")
	wantOK(t, "List", err)
	if names := namesOf(list); !slices.Equal(names, []string{"open"}) {
		t.Errorf("List found %q, want only the granted export", names)
	}
	tree := filepath.Join(t.TempDir(), "t")
	writeFile(t, filepath.Join(tree, "w"), []byte("written"))
	wantOK(t, "Symlink", os.Symlink("../../private", filepath.Join(tree, "x")))
	wantOK(t, "Put of a link", p.Put(tree, "open/t", TransferConfig{}).Wait(soon(t)))
	wantErr(t, "Get through a link", p.Get("open/t/x/f", to, TransferConfig{}).Wait(soon(t)), ErrNotFound)
	if err := p.Put(filepath.Join(tree, "w"), "open/t/x/f", TransferConfig{}).Wait(soon(t)); err == nil {
		t.Error("Put through a link: got no error")
	}
	wantBytes(t, filepath.Join(dir, "private/f"), []byte("secret"))
	close(names)
	for name := range names {
		if name != "open" && name != "private" {
			t.Errorf("Authorize was called for %q, want names of exports", name)
		}
	}
}

func namesOf(list []Info) (names []string) {
	for _, i := range list {
		names = append(names, i.Name)
	}
	return names
}

// TestLongFileNames: a name too long for any request fails at once. Sending it would make the peer
// close each session.
func TestLongFileNames(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read|Write)
	want := d.write(t, "f", 10, 1)
	long := "d/" + strings.Repeat("x/", maxPath/2) + "f"
	s := d.peer.session()
	_, err := d.peer.List(soon(t), long)
	wantErr(t, "List", err, ErrTooLong)
	wantErr(t, "Get", d.peer.Get(long, d.to, TransferConfig{}).Wait(soon(t)), ErrTooLong)
	wantErr(t, "Put", d.peer.Put(filepath.Join(d.dir, "f"), long, TransferConfig{}).Wait(soon(t)), ErrTooLong)
	root, err := os.OpenRoot(d.dir)
	wantOK(t, "OpenRoot", err)
	defer root.Close()
	deep := strings.Repeat(strings.Repeat("x", 240)+"/", 18) + "f" // too long for a system call, but a peer may send it
	wantOK(t, "MkdirAll", root.MkdirAll(filepath.Dir(deep), 0o700))
	wantErr(t, "Get of a deep tree", d.peer.Get("d", filepath.Join(d.to, "deep"), TransferConfig{}).Wait(soon(t)), ErrTooLong)
	if d.peer.session() != s {
		t.Error("the session has ended")
	}
	wantOK(t, "Get", d.peer.Get("d/f", d.to, TransferConfig{}).Wait(soon(t)))
	wantFile(t, filepath.Join(d.to, "f"), want)
}

// TestPutsBothWays: puts that wait for the peer leave free slots for the requests that fetch the files of the
// peer's puts.
func TestPutsBothWays(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read|Write)
	_, err := d.here.Serve(ExportConfig{Name: "h", Path: d.to, DefaultAccess: Read | Write})
	wantOK(t, "Export", err)
	source := filepath.Join(t.TempDir(), "f")
	writeFile(t, source, []byte("some bytes"))
	back := d.there.client()
	var all []*Transfer
	for i := range maxRequests + 8 {
		all = append(all, d.peer.Put(source, fmt.Sprintf("d/%d", i), TransferConfig{}), back.Put(source, fmt.Sprintf("h/%d", i), TransferConfig{}))
	}
	for _, x := range all {
		wantOK(t, "Put", x.Wait(soon(t)))
	}
}

// TestConfigExports: the exports in Config are available to the earliest possible request. If one cannot be
// exported, the Engine is not created.
func TestConfigExports(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", 100, 1)
	for i := range 3 {
		x := make(chan *Transfer, 1)
		d.there.stop()
		go func() { x <- d.peer.Get("d/f", filepath.Join(d.to, fmt.Sprint(i)), TransferConfig{}) }()
		d.there = d.there.startAgain()
		wantOK(t, "Get", (<-x).Wait(soon(t)))
		wantFile(t, filepath.Join(d.to, fmt.Sprint(i)), want)
	}
	here := d.here
	here.stop()
	n := (&nodetest.Host{Links: here.net.links}).Start(t, nil)
	e, err := transfer.New(transfer.Config{Node: n.Node})
	wantOK(t, "transfer.New", err)
	_, err = New(Config{Transfer: e, Exports: []ExportConfig{{Name: "d", Path: d.dir}, {Name: "e", Path: d.dir + "/no"}}})
	wantErr(t, "New", err, fs.ErrNotExist)
	wantOK(t, "Close", errors.Join(e.Close(soon(t)), n.Close()))
}

// TestTooLongFile: a file larger than MaxFileSize is refused by its owner.
func TestTooLongFile(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "f", 0, 1)
	if err := os.Truncate(filepath.Join(d.dir, "f"), MaxFileSize+1); err != nil {
		t.Skipf("no file of that length: %v", err)
	}
	err := d.peer.Get("d/f", d.to, TransferConfig{}).Wait(soon(t))
	if wantErr(t, "Get", err, ErrFailed); !strings.Contains(err.Error(), "too long") {
		t.Errorf("Get: got %v, want that it says why", err)
	}
	d.noneOpen(t)
}

// TestListInPages: a directory is read once for all pages of a listing and then forgotten. A name created
// meanwhile is missing from this listing but present in the next.
func TestListInPages(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	for i := range 2*maxEntries + 10 {
		writeFile(t, filepath.Join(d.dir, fmt.Sprintf("dir/%05d", i)), nil)
	}
	v := d.server(t)
	page := func(after string) *fileEntries {
		m, err := decode(v.answerList(soon(t), &fileList{1, "d/dir", after}))
		entries, ok := m.(*fileEntries)
		if err != nil || !ok {
			t.Fatalf("list: got %+v, %v, want entries", m, err)
		}
		return entries
	}
	m := page("")
	writeFile(t, filepath.Join(d.dir, "dir/99999"), nil)
	n := len(m.entries)
	for m.more {
		m = page(m.entries[len(m.entries)-1].Name)
		n += len(m.entries)
	}
	if want := 2*maxEntries + 10; n != want {
		t.Errorf("%d entries, want the %d of the first look", n, want)
	}
	d.there.mu.Lock()
	if left := len(v.state.listings); left != 0 {
		t.Errorf("%d lists are kept, want none", left)
	}
	d.there.mu.Unlock()
	list, err := d.peer.List(soon(t), "d/dir")
	if wantOK(t, "List", err); len(list) != n+1 {
		t.Errorf("List found %d names, want %d", len(list), n+1)
	}
}

// TestPutLinkToFile: the path of Put and of an Export may be a symbolic link that leads anywhere.
func TestPutLinkToFile(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read|Write)
	want := []byte("some bytes")
	writeFile(t, filepath.Join(d.to, "a/f"), want)
	wantOK(t, "Mkdir", os.Mkdir(filepath.Join(d.to, "b"), 0o700))
	for name, to := range map[string]string{"file": "../a/f", "dir": "../a"} {
		wantOK(t, "Symlink", os.Symlink(to, filepath.Join(d.to, "b", name)))
		x := d.peer.Put(filepath.Join(d.to, "b", name), "d/"+name, TransferConfig{})
		wantOK(t, "Put", x.Wait(soon(t)))
		if s := x.Status(); s.Total != int64(len(want)) {
			t.Errorf("Status() = %+v, want the size of the file", s)
		}
	}
	wantFile(t, filepath.Join(d.dir, "file"), want)
	wantFile(t, filepath.Join(d.dir, "dir/f"), want)
}

// TestSyncDir: a tree in new directories whose names are flushed to disk.
func TestSyncDir(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "top/a/f", 10, 1)
	dest := filepath.Join(d.to, "x/y")
	if got, want := newParents(dest), []string{filepath.Join(d.to, "x"), d.to}; !slices.Equal(got, want) {
		t.Errorf("newHolders() = %q, want %q", got, want)
	}
	wantOK(t, "Get", d.peer.Get("d/top", dest, TransferConfig{Sync: SyncBatch}).Wait(soon(t)))
	wantFile(t, filepath.Join(dest, "a/f"), want)
	if got := newParents(dest); len(got) != 0 {
		t.Errorf("newHolders() of what is there = %q, want none", got)
	}
}

// TestTreeWithBadFile: a file that cannot be received is left out of the tree and named by the
// error.
func TestTreeWithBadFile(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "t/a", 100, 1)
	d.write(t, "t/c/d", 100, 2)
	long := strings.Repeat("b", 250) // its partial file's name would be too long
	d.write(t, "t/"+long, 100, 3)
	err := d.peer.Get("d/t", d.to, TransferConfig{}).Wait(soon(t))
	wantErr(t, "Get", err, ErrDenied)
	if !strings.Contains(err.Error(), long) || !strings.Contains(err.Error(), "1 omitted, the rest is stored") {
		t.Errorf("got %q, want the name of the file that was left out", err)
	}
	for _, name := range []string{"a", "c/d"} {
		if _, err := os.Stat(filepath.Join(d.to, name)); err != nil {
			t.Errorf("got %v, want the other files", err)
		}
	}
}

// TestPutAgainAfterRestart: a named client that is killed during a Put and returns immediately is
// not refused while its old Put is being closed.
func TestPutAgainAfterRestart(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read|Write)
	b := make([]byte, 8*chunk.Size)
	fill(b, 1)
	name := filepath.Join(d.to, "f")
	writeFile(t, name, b)
	met, resume := make(chan struct{}, 100), make(chan struct{})
	d.there.chunkReceived = func(int64, []byte) { // a slow disk
		met <- struct{}{}
		<-resume
	}
	d.peer.Put(name, "d/f", TransferConfig{})
	<-met
	d.here = d.here.restart()
	d.peer = d.here.to(d.there)
	x := d.peer.Put(name, "d/f", TransferConfig{})
	eventually(t, "the new put is being served, or refused", func() bool {
		p := d.there.client()
		p.link.Mu.Lock()
		defer p.link.Mu.Unlock()
		return len(p.link.Serving) > 0 || x.Err() != nil
	})
	close(resume)
	wantOK(t, "Put of the successor", x.Wait(soon(t)))
	wantFile(t, filepath.Join(d.dir, "f"), b)
}
