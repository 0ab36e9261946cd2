package files

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
)

// orderedTree creates entries whose names sort around the separator, nested and empty directories, and a directory with the last
// name. It returns the number of files.
func orderedTree(t testing.TB, dir string) (files int) {
	t.Helper()
	for _, name := range []string{"a/b", "a/c", "a-b", "a.b", "a0", "b/a/a", "b/a/b", "b/b", "d/d/d", "e", "z/z/z"} {
		writeFile(t, filepath.Join(dir, name), nil)
		files++
	}
	for _, name := range []string{"a/empty", "b/c", "c", "d/d/a", "z/z/zz"} {
		wantOK(t, "Mkdir", os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	return files
}

// walkOrder returns the paths below dir in the order of WalkDir.
func walkOrder(t testing.TB, dir string) (list []string) {
	t.Helper()
	wantOK(t, "WalkDir", filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(dir, name); rel != "." {
			list = append(list, filepath.ToSlash(rel))
		}
		return err
	}))
	return list
}

// TestPagesOfListing: pages of all lengths together have each entry once, in the order of WalkDir, whether the walk continues or a
// new one starts at the cursor. The server's cursor is the client's, otherwise the walk cannot continue.
func TestPagesOfListing(t *testing.T) {
	dir := t.TempDir()
	orderedTree(t, dir)
	want := walkOrder(t, dir)
	root, err := os.OpenRoot(dir)
	wantOK(t, "OpenRoot", err)
	defer func() { wantOK(t, "Close", root.Close()) }()
	for n := 1; n <= len(want)+1; n++ {
		for _, again := range []bool{false, true} {
			var got []string
			w, at := &treeWalk{}, positionAt("")
			for more, pages := true, 0; more; pages++ {
				if w.Walk == nil || again {
					w.Walk, err = chunk.NewWalk(root, ".", at.cursor(), maxNames, nil, chunk.Want{})
					wantOK(t, "NewWalk", err)
				}
				m := &fileTreed{steps: make([]step, maxSteps-n)} // only n entries fit
				var cursor string
				cursor, more, err = w.page(t.Context(), m, at.cursor())
				wantOK(t, "page", err)
				if again {
					w.Close()
				}
				for i := range m.steps[maxSteps-n:] {
					if s := &m.steps[maxSteps-n+i]; !at.next(s) {
						t.Fatalf("pages of %d: %q at depth %d follows %q", n, s.Name, s.depth, at.path())
					}
					got = append(got, at.path())
				}
				if cursor != at.cursor() || len(m.steps) > maxSteps || pages > len(want) {
					t.Fatalf("page %d of %d: the cursor is %q behind %d entries, want %q", pages, n, cursor, len(m.steps)-(maxSteps-n), at.cursor())
				}
			}
			w.Close()
			if !slices.Equal(got, want) {
				t.Errorf("pages of %d, new walks %v: got %q, want %q", n, again, got, want)
			}
		}
	}
}

// TestPageBoundaries: the first page of a listing ends behind each entry of a tree in turn. The next one has all the others. The
// listing is read once, and counted completely by Put.
func TestPageBoundaries(t *testing.T) {
	d := depotIn(t, memoryNetwork(1), Read|Write, memoryDir(t), memoryDir(t))
	v := d.server(t)
	sample := t.TempDir()
	files := orderedTree(t, sample)
	order, size := walkOrder(t, sample), 0
	for i, last := range order {
		size += len(filepath.Base(last)) + 64
		name := fmt.Sprintf("%02d", i)
		top := filepath.Join(d.dir, name)
		wantOK(t, "Mkdir", os.Mkdir(top, 0o700))
		orderedTree(t, top)
		links := fillPage(t, top, maxPage-size)
		want := walkOrder(t, top)

		var got []string
		at := positionAt("")
		for pages, more := 1, true; more; pages++ {
			m, err := decode(v.answerTree(soon(t), &fileTree{id: 1, walk: uint32(i + 1), name: "d/" + name, after: at.cursor()}))
			page, ok := m.(*fileTreed)
			if err != nil || !ok {
				t.Fatalf("page %d: got %+v, %v, want entries", pages, m, err)
			}
			for i := range page.steps {
				if !at.next(&page.steps[i]) {
					t.Fatalf("behind %q: %q follows %q", last, page.steps[i].Name, at.path())
				}
				got = append(got, at.path())
			}
			if more = page.more; pages == 1 && got[len(got)-1] != last {
				t.Fatalf("the first page ends with %q, want %q", got[len(got)-1], last)
			}
			d.there.mu.Lock()
			kept := len(v.state.walks)
			d.there.mu.Unlock()
			if kept > 1 || (kept == 1) != more {
				t.Fatalf("behind %q: %d walks are kept after page %d, so the listing is read again", last, kept, pages)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("behind %q: got %q, want %q", last, got, want)
		}
		x := d.peer.Put(top, "d/to", TransferConfig{DryRun: true})
		wantOK(t, "Put", x.Wait(soon(t)))
		if s := x.Status(); s.Listed != int64(files+links) || s.Sent != s.Listed {
			t.Errorf("behind %q: %d entries listed and %d sent, want %d", last, s.Listed, s.Sent, files+links)
		}
	}
}

// fillPage creates symbolic links that precede all other names and fill size bytes of a page. It returns their number.
func fillPage(t testing.TB, dir string, size int) (links int) {
	t.Helper()
	const least, most = 100, 4000
	for ; size > 0; links++ {
		n := min(size, most)
		if left := size - n; left > 0 && left < least {
			n -= least
		}
		name := fmt.Sprintf("!%04d", links)
		wantOK(t, "Symlink", os.Symlink(strings.Repeat("x", n-64-len(name)), filepath.Join(dir, name)))
		size -= n
	}
	return links
}

// TestListingOfLostSession: a listing for a peer whose session is lost stops, and closes its directories.
func TestListingOfLostSession(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "t/f", 10, 1)
	v := d.server(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(ErrPeerGone)
	for range 20 { // the request may also fail before it reads the directory
		m, err := decode(v.answerTree(ctx, &fileTree{id: 1, walk: 1, name: "d/t"}))
		if _, ok := m.(*rpc.Refusal); !ok || err != nil {
			t.Fatalf("a listing for a lost session: got %+v, %v, want a refusal", m, err)
		}
	}
}

// TestCloseOfListedExport: Export.Close closes the directories of unfinished listings, so that their file system can be unmounted.
func TestCloseOfListedExport(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "f"), nil)
	fillPage(t, dir, maxPage)
	x, err := d.there.Serve(ExportConfig{Name: "x", Path: dir, DefaultAccess: Read})
	wantOK(t, "Serve", err)
	v := d.server(t)
	for i, name := range []string{"x", "d", "x"} {
		m, err := decode(v.answerTree(soon(t), &fileTree{id: 1, walk: uint32(i + 1), name: name}))
		if page, ok := m.(*fileTreed); err != nil || !ok || page.more != (name == "x") {
			t.Fatalf("the listing of %s: got %+v, %v", name, m, err)
		}
	}
	wantOK(t, "Close", x.Close())
	d.there.mu.Lock()
	defer d.there.mu.Unlock()
	if n := len(v.state.walks); n != 0 {
		t.Errorf("%d listings are kept, want none", n)
	}
}
