package files

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
)

// sameFile reports whether two names are hard links of one file.
func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.Lstat(a)
	wantOK(t, "Lstat", err)
	y, err := os.Lstat(b)
	wantOK(t, "Lstat", err)
	return os.SameFile(x, y)
}

// TestHardLinks: hard links inside a tree are hard links in its copy, and a second copy leaves the
// tree unchanged.
func TestHardLinks(t *testing.T) {
	both(t, func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error)) {
		writeFile(t, filepath.Join(from, "a"), []byte("small"))
		writeFile(t, filepath.Join(from, "b/large"), make([]byte, 2*chunk.Size))
		wantOK(t, "Mkdir", os.Mkdir(filepath.Join(from, "c"), 0o700))
		for _, l := range [][2]string{{"a", "c/a"}, {"a", "z"}, {"b/large", "c/large"}} {
			wantOK(t, "Link", os.Link(filepath.Join(from, l[0]), filepath.Join(from, l[1])))
		}
		wantOK(t, "Chtimes", os.Chtimes(filepath.Join(from, "c"), someDay, someDay))
		wantOK(t, "Chmod", os.Chmod(filepath.Join(from, "c"), 0o500))
		t.Cleanup(func() { _, _ = os.Chmod(filepath.Join(from, "c"), 0o700), os.Chmod(filepath.Join(to, "c"), 0o700) })
		check := func(what string, sent, unchanged int64) {
			t.Helper()
			s, err := copyTo(TransferConfig{})
			wantOK(t, what, err)
			if s.Sent != sent || s.Unchanged != unchanged {
				t.Errorf("%s: Status() = %+v, want %d sent and %d unchanged", what, s, sent, unchanged)
			}
			for _, l := range [][2]string{{"a", "c/a"}, {"a", "z"}, {"b/large", "c/large"}} {
				if !sameFile(t, filepath.Join(to, l[0]), filepath.Join(to, l[1])) {
					t.Errorf("%s: %s is not a link to %s", what, l[1], l[0])
				}
			}
			if info, err := os.Stat(filepath.Join(to, "c")); err != nil || !info.ModTime().Equal(someDay) || info.Mode().Perm() != 0o500 {
				t.Errorf("%s: the directory has %v, %v, want the source's attributes", what, info, err)
			}
		}
		s, err := copyTo(TransferConfig{DryRun: true})
		wantOK(t, "a dry run", err)
		if s.Sent != 5 {
			t.Errorf("a dry run: Status() = %+v, want 5 sent", s)
		}
		check("the first copy", 5, 0)
		check("the second copy", 0, 5)
		wantOK(t, "Chmod", os.Chmod(filepath.Join(to, "c"), 0o700))
		wantOK(t, "Remove", os.Remove(filepath.Join(to, "c/a")))
		writeFile(t, filepath.Join(to, "c/a"), []byte("small")) // a copy is replaced by a link
		check("a copy after a link became a file", 1, 4)
		writeFile(t, filepath.Join(from, "a"), []byte("SMALLER"))
		check("a copy of a changed file", 3, 2)
		wantBytes(t, filepath.Join(to, "z"), []byte("SMALLER"))
	})
}

// TestHardLinkToOldVersion: if the first name of a file cannot be received, its other names are not
// linked to an old version.
func TestHardLinkToOldVersion(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "t/a", 100, 1)
	wantOK(t, "Link", os.Link(filepath.Join(d.dir, "t/a"), filepath.Join(d.dir, "t/b")))
	writeFile(t, filepath.Join(d.to, "a"), []byte("old"))
	d.here.received = func(m any) {
		if m, ok := m.(*fileBatched); ok {
			m.results[0].outcome = batchRefused + batchOutcome(rpc.Denied)
		}
	}
	x := d.peer.Get("d/t", d.to, TransferConfig{})
	wantErr(t, "Get", x.Wait(soon(t)), ErrIncomplete)
	if s := x.Status(); s.Failed != 2 {
		t.Errorf("Status() = %+v, want 2 failed", s)
	}
	if _, err := os.Lstat(filepath.Join(d.to, "b")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Lstat: %v, want no file", err)
	}
	wantBytes(t, filepath.Join(d.to, "a"), []byte("old"))
}

// TestXattrs: with Xattrs, files and directories get exactly the source's extended attributes.
func TestXattrs(t *testing.T) {
	both(t, func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error)) {
		names := []string{"small", "large", "sub"}
		writeFile(t, filepath.Join(from, "small"), []byte("s"))
		writeFile(t, filepath.Join(from, "large"), make([]byte, chunk.Size))
		wantOK(t, "Mkdir", os.Mkdir(filepath.Join(from, "sub"), 0o700))
		set := func(value string) {
			for _, name := range names {
				err := unix.Setxattr(filepath.Join(from, name), "user.test", []byte(value), 0)
				if errors.Is(err, unix.ENOTSUP) {
					t.Skip("the file system has no extended attributes")
				}
				wantOK(t, "Setxattr", err)
			}
		}
		check := func(want string) {
			t.Helper()
			for _, name := range names {
				b := make([]byte, 100)
				n, err := unix.Getxattr(filepath.Join(to, name), "user.test", b)
				if n = max(n, 0); string(b[:n]) != want || want != "" && err != nil {
					t.Errorf("%s has %q, %v, want %q", name, b[:n], err, want)
				}
			}
		}
		set("one")
		_, err := copyTo(TransferConfig{})
		wantOK(t, "a copy without Xattrs", err)
		check("")
		s, err := copyTo(TransferConfig{Xattrs: true})
		wantOK(t, "a copy of attributes", err)
		if check("one"); s.Unchanged != 2 {
			t.Errorf("Status() = %+v, want unchanged files", s)
		}
		set("two")
		wantOK(t, "Setxattr", unix.Setxattr(filepath.Join(to, "small"), "user.more", []byte("x"), 0))
		wantOK(t, "Chmod", os.Chmod(filepath.Join(from, "large"), 0o444))
		_, err = copyTo(TransferConfig{Xattrs: true, Fresh: true})
		wantOK(t, "a fresh copy", err)
		check("two")
		if _, err := unix.Getxattr(filepath.Join(to, "small"), "user.more", make([]byte, 9)); !errors.Is(err, unix.ENODATA) {
			t.Errorf("an attribute that the source lacks: %v, want %v", err, unix.ENODATA)
		}
		set("three")
		_, err = copyTo(TransferConfig{Xattrs: true})
		wantOK(t, "a copy to files that cannot be written", err)
		check("three")
	})
}

// TestOwner: with Owner, files, directories and links get the source's owner, and a second copy
// leaves the tree unchanged.
func TestOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give files to other users")
	}
	for _, put := range []bool{false, true} {
		t.Run(fmt.Sprintf("put=%t", put), func(t *testing.T) {
			d := newDepot(t, memoryNetwork(1), Read|Write)
			from, to := filepath.Join(d.dir, "t"), d.to
			copyTo := func(cfg TransferConfig) *Transfer { return d.peer.Get("d/t", to, cfg) }
			if put {
				from, to = filepath.Join(t.TempDir(), "t"), filepath.Join(d.dir, "to")
				copyTo = func(cfg TransferConfig) *Transfer { return d.peer.Put(from, "d/to", cfg) }
			}
			names := []string{"small", "large", "sub", "link"}
			writeFile(t, filepath.Join(from, "small"), []byte("s"))
			writeFile(t, filepath.Join(from, "large"), make([]byte, chunk.Size))
			wantOK(t, "Mkdir", os.Mkdir(filepath.Join(from, "sub"), 0o700))
			wantOK(t, "Symlink", os.Symlink("x", filepath.Join(from, "link")))
			for i, name := range names {
				wantOK(t, "Lchown", os.Lchown(filepath.Join(from, name), 1000+i, 2000+i))
			}
			if put {
				wantErr(t, "Put to an Export without Owners", copyTo(TransferConfig{Owner: true}).Wait(soon(t)), ErrDenied)
				d.there.exports["d"].cfg.Owners = true
			}
			for run := range 2 {
				x := copyTo(TransferConfig{Owner: true})
				wantOK(t, "copy", x.Wait(soon(t)))
				for i, name := range names {
					info, err := os.Lstat(filepath.Join(to, name))
					wantOK(t, "Lstat", err)
					if s := info.Sys().(*syscall.Stat_t); int(s.Uid) != 1000+i || int(s.Gid) != 2000+i {
						t.Errorf("%s belongs to %d:%d, want %d:%d", name, s.Uid, s.Gid, 1000+i, 2000+i)
					}
				}
				if s := x.Status(); run == 1 && (s.Sent != 0 || s.Unchanged != 3) {
					t.Errorf("the second copy: Status() = %+v, want only unchanged files", s)
				}
			}
		})
	}
}

// TestSparse: holes of small and large files are holes in the copy.
func TestSparse(t *testing.T) {
	both(t, func(t *testing.T, from, to string, copyTo func(TransferConfig) (Status, error)) {
		sizes := map[string]int64{"small": 200 << 10, "large": 3*chunk.Size + 5}
		for name, size := range sizes {
			f, err := os.Create(filepath.Join(from, name))
			wantOK(t, "Create", err)
			_, err = f.WriteAt([]byte("data"), 64<<10)
			wantOK(t, "write", errors.Join(err, f.Truncate(size), f.Close()))
		}
		for range 2 {
			_, err := copyTo(TransferConfig{})
			wantOK(t, "copy", err)
			for name, size := range sizes {
				want, err := os.ReadFile(filepath.Join(from, name))
				wantOK(t, "ReadFile", err)
				got, err := os.ReadFile(filepath.Join(to, name))
				wantOK(t, "ReadFile", err)
				if !bytes.Equal(got, want) {
					t.Errorf("%s has other contents", name)
				}
				info, err := os.Stat(filepath.Join(to, name))
				wantOK(t, "Stat", err)
				if used := info.Sys().(*syscall.Stat_t).Blocks * 512; used > 32<<10 || info.Size() != size {
					t.Errorf("%s uses %d bytes of %d, want holes", name, used, info.Size())
				}
			}
		}
	})
}

// TestPacer: granted bytes are spaced at the rate, and refunded ones are granted again.
func TestPacer(t *testing.T) {
	p, now := newRateLimiter(1000), time.Now()
	var waits []time.Duration
	for _, n := range []int64{500, 1000, 100} {
		waits = append(waits, p.reserve(now, n))
	}
	p.refund(600)
	waits = append(waits, p.reserve(now, 1), p.reserve(now.Add(time.Minute), 1))
	want := []time.Duration{0, time.Second / 2, 3 * time.Second / 2, time.Second, 0}
	if !slices.Equal(waits, want) {
		t.Errorf("waits %v, want %v", waits, want)
	}
}

// TestLimitedRate: BytesPerSecond spaces requests in both directions, and a waiting transfer can be canceled.
func TestLimitedRate(t *testing.T) {
	both(t, func(t *testing.T, from, _ string, copyTo func(TransferConfig) (Status, error)) {
		for i := range 4 {
			writeFile(t, filepath.Join(from, fmt.Sprint(i)), []byte(strings.Repeat("x", 200<<10)))
		}
		writeFile(t, filepath.Join(from, "large"), bytes.Repeat([]byte("y"), chunk.Size))
		begin := time.Now()
		_, err := copyTo(TransferConfig{BytesPerSecond: 4 << 20})
		wantOK(t, "a copy", err)
		if took := time.Since(begin); took < 180*time.Millisecond { // all but the last request, of at most 1 MiB
			t.Errorf("1.8 MiB took %v at 4 MiB/s", took)
		}
	})
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "f", 3*chunk.Size, 1)
	x := d.peer.Get("d/f", d.to, TransferConfig{BytesPerSecond: 1000})
	eventually(t, "a chunk is there", func() bool { return x.Status().Chunks > 0 })
	x.Cancel()
	wantErr(t, "Get that is canceled", x.Wait(soon(t)), ErrCanceled)
}

// TestLyingAttributes: unrequested attributes are ignored, false hard links are errors, and links
// in the destination are not followed.
func TestLyingAttributes(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "t/a", 100, 1)
	d.write(t, "t/b", 200, 2)
	d.write(t, "t/s/c", 100, 3)
	same := chunk.Identity{Device: 1, Inode: 1}
	lie := func(change func(steps []step)) {
		d.here.received = func(m any) {
			if m, ok := m.(*fileTreed); ok {
				change(m.steps)
			}
		}
	}
	lie(func(steps []step) {
		for i := range steps {
			steps[i].Owner, steps[i].Xattrs = &chunk.Owner{UID: 1234, GID: 1234}, []chunk.Xattr{{Name: "user.evil", Value: "x"}}
		}
	})
	wantOK(t, "Get with attributes unasked", d.peer.Get("d/t", d.to, TransferConfig{}).Wait(soon(t)))
	for _, name := range []string{"a", "s"} {
		info, err := os.Lstat(filepath.Join(d.to, name))
		wantOK(t, "Lstat", err)
		if uid := int(info.Sys().(*syscall.Stat_t).Uid); uid != os.Geteuid() {
			t.Errorf("%s belongs to %d", name, uid)
		}
		if n, err := unix.Listxattr(filepath.Join(d.to, name), nil); err == nil && n > 0 {
			t.Errorf("%s has extended attributes", name)
		}
	}

	to := t.TempDir()
	lie(func(steps []step) { steps[0].Same, steps[1].Same = same, same })
	wantErr(t, "Get with a false hard link", d.peer.Get("d/t", to, TransferConfig{}).Wait(soon(t)), ErrIncomplete)
	if _, err := os.Lstat(filepath.Join(to, "b")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Lstat of a false hard link: %v, want no file", err)
	}

	to, outside := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(outside, "c"), []byte("outside"))
	wantOK(t, "Symlink", os.Symlink(outside, filepath.Join(to, "s")))
	lie(func(steps []step) { steps[0].Same, steps[len(steps)-1].Same = same, same })
	wantErr(t, "Get into a link", d.peer.Get("d/t", to, TransferConfig{}).Wait(soon(t)), ErrIncomplete)
	wantBytes(t, filepath.Join(outside, "c"), []byte("outside"))
	if list, err := os.ReadDir(outside); err != nil || len(list) != 1 {
		t.Errorf("outside there is %v, %v, want one file", list, err)
	}
	d.noneOpen(t)
}

// TestManyLinks: the memory for hard links is bounded, whatever names and attributes a peer lists.
// Names beyond the limit become copies.
func TestManyLinks(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	wantOK(t, "OpenRoot", err)
	defer func() { wantOK(t, "Close", root.Close()) }()
	xattrs := []chunk.Xattr{{Name: "user.x", Value: strings.Repeat("x", 30<<10)}}
	tree, err := chunk.NewTree(root, chunk.TreeConfig{})
	wantOK(t, "NewTree", err)
	top, err := tree.Top(chunk.Entry{Xattrs: xattrs}, false)
	wantOK(t, "Top", err)
	x := &treeDownload{download: &download{}, first: map[chunk.Identity]string{}}
	long, links := strings.Repeat("p", 4000), 0
	for i := range 100_000 {
		x.dirs = []openedDir{{Dir: top}}
		e := &treeEntry{path: long + fmt.Sprint(i), step: step{Entry: chunk.Entry{Name: "f", Xattrs: xattrs, Same: chunk.Identity{Inode: uint64(1 + i/2)}}}}
		if x.isHardLink(e) {
			links++
			if x.dirs[0].links[0].Entry.Xattrs != nil {
				t.Fatal("a link keeps the extended attributes of its file")
			}
		}
	}
	if kept := links*(30<<10+2*4000) + len(x.first)*4000; links == 0 || kept > 2*maxLinkBytes {
		t.Errorf("%d links and %d files are kept, with %d MiB, want at most %d MiB", links, len(x.first), kept>>20, maxLinkBytes>>20)
	}
	wantOK(t, "Close", tree.Close(true))
}

// TestLinksReplacedMeanwhile: hard links are created below the destination even if a received
// directory is replaced by a link that leads outside.
func TestLinksReplacedMeanwhile(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "t/a", 100, 1)
	wantOK(t, "Mkdir", os.Mkdir(filepath.Join(d.dir, "t/s"), 0o700))
	wantOK(t, "Link", os.Link(filepath.Join(d.dir, "t/a"), filepath.Join(d.dir, "t/s/a")))
	outside := t.TempDir()
	d.here.received = func(m any) {
		if _, ok := m.(*fileBatched); ok { // the listing is complete by now
			eventually(t, "the directory is there", func() bool { return os.Rename(filepath.Join(d.to, "s"), filepath.Join(d.to, "old")) == nil })
			wantOK(t, "Symlink", os.Symlink(outside, filepath.Join(d.to, "s")))
		}
	}
	wantErr(t, "Get", d.peer.Get("d/t", d.to, TransferConfig{}).Wait(soon(t)), ErrIncomplete)
	if list, err := os.ReadDir(outside); err != nil || len(list) != 0 {
		t.Errorf("outside there is %v, %v, want nothing", list, err)
	}
}

// TestUnofferedAttributes: the peer of an upload gets neither owners nor extended attributes, unless they are to be copied.
func TestUnofferedAttributes(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Write)
	from := filepath.Join(d.to, "from")
	writeFile(t, filepath.Join(from, "f"), []byte("f"))
	wantOK(t, "Mkdir", os.Mkdir(filepath.Join(from, "sub"), 0o700))
	for _, name := range []string{"", "f", "sub"} {
		if err := unix.Setxattr(filepath.Join(from, name), "user.origin", []byte("x"), 0); err != nil {
			t.Skipf("the file system has no extended attributes: %v", err)
		}
	}
	v, want := d.peer.link.In(d.peer.session()), chunk.Want{Owner: true, Xattrs: true}
	for _, offered := range []chunk.Want{{}, {Owner: true}, {Xattrs: true}, want} {
		source := newUploadSource(d.peer, TransferConfig{Owner: offered.Owner, Xattrs: offered.Xattrs}, &counts{})
		x := &Export{engine: d.here.Engine, cfg: ExportConfig{Name: secretName(), Path: from}, upload: source}
		wantOK(t, "publish", errors.Join(x.open(), d.here.publish(x)))
		var got []chunk.Entry
		m, err := decode(v.answerTree(soon(t), &fileTree{id: 1, walk: 1, name: x.cfg.Name, want: want}))
		wantOK(t, "list", err)
		for i := range m.(*fileTreed).steps {
			got = append(got, m.(*fileTreed).steps[i].Entry)
		}
		for _, name := range []string{"", "/f", "/sub"} {
			m, err := decode(v.answerDescribe(soon(t), &fileOpen{id: 1, name: x.cfg.Name + name, want: want}))
			wantOK(t, "open", err)
			got = append(got, m.(*fileOpened).entry.Entry)
		}
		for _, e := range got {
			if (e.Owner != nil) != offered.Owner || (e.Xattrs != nil) != offered.Xattrs {
				t.Errorf("with %+v, %q is described with owner %v and extended attributes %v", offered, e.Name, e.Owner, e.Xattrs)
			}
		}
		wantOK(t, "Close", x.Close())
	}
}
