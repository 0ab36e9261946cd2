package chunk

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func openSource(t *testing.T, root *os.Root, name string) *Source {
	t.Helper()
	s, err := OpenSource(root, name)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

// TestServedFileTruncated: truncating a file or writing to it while it is read is an error.
func TestServedFileTruncated(t *testing.T) {
	root, dir := newRoot(t)
	name := filepath.Join(dir, "f")
	must(t, os.WriteFile(name, content(3*Size, 1), 0o600))
	s := openSource(t, root, "f")
	must(t, s.Check())
	buf := make([]byte, Size)
	must(t, os.Truncate(name, 2*Size+5))
	if _, _, _, err := s.Read(1, buf); err != nil {
		t.Errorf("a chunk that is still there: %v", err)
	}
	_, _, _, err := s.Read(2, buf)
	wants(t, err, ErrChanged, "a chunk that is gone")
	wants(t, s.Check(), ErrChanged, "a truncated file")
	_, _, _, err = s.Read(3, buf)
	if err == nil {
		t.Error("there is no chunk 3")
	}
}

// TestServedFileReplaced: a replaced file is still read to its end, and Check detects it.
func TestServedFileReplaced(t *testing.T) {
	root, dir := newRoot(t)
	must(t, os.WriteFile(filepath.Join(dir, "f"), content(2*Size, 2), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "g"), content(2*Size, 3), 0o600))
	s := openSource(t, root, "f")
	must(t, os.Rename(filepath.Join(dir, "g"), filepath.Join(dir, "f")))
	if _, digest, _, err := s.Read(1, make([]byte, Size)); err != nil || digest != Digest(content(2*Size, 2)[Size:]) {
		t.Errorf("Read = %#x, %v; want the old bytes", digest, err)
	}
	wants(t, s.Check(), ErrChanged, "a replaced file")
	must(t, os.Remove(filepath.Join(dir, "f")))
	wants(t, s.Check(), ErrChanged, "a removed file")
}

// TestServedFileWritten: a write that keeps the file's length is detected by its time.
func TestServedFileWritten(t *testing.T) {
	root, dir := newRoot(t)
	name := filepath.Join(dir, "f")
	must(t, os.WriteFile(name, content(Size, 4), 0o600))
	must(t, os.Chtimes(name, someDay, someDay))
	s := openSource(t, root, "f")
	must(t, os.WriteFile(name, content(Size, 5), 0o600))
	wants(t, s.Check(), ErrChanged, "a file with other bytes")
}

// TestSourceKinds: only regular files inside the root can be read.
func TestSourceKinds(t *testing.T) {
	root, dir := newRoot(t)
	must(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	_, err := OpenSource(root, "d")
	wants(t, err, ErrKind, "a directory")
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "out")))
	if _, err := OpenSource(root, "out"); err == nil {
		t.Error("a symbolic link leads out of the directory")
	}
	must(t, os.WriteFile(filepath.Join(dir, "f"), nil, 0o600))
	must(t, os.Symlink("f", filepath.Join(dir, "in")))
	must(t, openSource(t, root, "in").Check())
	if _, err := OpenSource(root, "none"); !os.IsNotExist(err) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// TestPartialSource: partial files, and files in directories named like one, are not served.
func TestPartialSource(t *testing.T) {
	root, dir := newRoot(t)
	must(t, os.Mkdir(filepath.Join(dir, ".d.ibx-partial"), 0o700))
	for _, name := range []string{".f.ibx-partial", ".d.ibx-partial/f"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte("f"), 0o600))
		_, err := OpenSource(root, name)
		wants(t, err, fs.ErrNotExist, name)
	}
}
