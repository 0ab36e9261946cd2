package files

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"ibverbx/internal/chunk"
)

// blocks returns the disk space that a file uses, in bytes.
func blocks(t testing.TB, name string) int64 {
	t.Helper()
	info, err := os.Stat(name)
	wantOK(t, "Stat", err)
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// TestResumeSparse: holes in a file are not sent and use no disk space, even where the target had
// data.
func TestResumeSparse(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := make([]byte, 40*chunk.Size)
	fill(want[3*chunk.Size:4*chunk.Size], 1)
	fill(want[30*chunk.Size:31*chunk.Size], 2)
	name, dest := filepath.Join(d.dir, "f"), filepath.Join(d.to, "f")
	f, err := os.Create(name)
	wantOK(t, "Create", err)
	wantOK(t, "Truncate", f.Truncate(int64(len(want))))
	for _, k := range []int64{3, 30} {
		_, err = f.WriteAt(want[k*chunk.Size:][:chunk.Size], k*chunk.Size)
		wantOK(t, "WriteAt", err)
	}
	wantOK(t, "Close", f.Close())
	if blocks(t, name) > 4*chunk.Size {
		t.Skip("the file system has no holes")
	}
	have := bytes.Clone(want)
	fill(have[10*chunk.Size:12*chunk.Size], 3)
	for _, partial := range [][]byte{nil, have} {
		_ = os.Remove(dest)
		if partial != nil {
			writeFile(t, filepath.Join(d.to, ".f.ibx-partial"), partial)
		}
		x := d.peer.Get("d/f", dest, TransferConfig{})
		wantOK(t, "Get", x.Wait(soon(t)))
		wantFile(t, dest, want)
		if used := blocks(t, dest); partial == nil && used > 4*chunk.Size {
			t.Errorf("the file uses %d bytes, want about 2 chunks", used)
		}
	}
	if sent := d.peer.Node().Stats().Counters.BytesRead; sent != 0 {
		t.Errorf("%d bytes were read by requests of this side", sent)
	}
	for _, p := range d.there.peers.All() {
		if sent := (*Peer)(p).Node().Stats().Counters.BytesWritten; sent != 2*chunk.Size {
			t.Errorf("%d bytes were sent, want 2 chunks", sent)
		}
	}
}

// TestDiskFull: a full disk fails the transfer, and the next one reuses the written data.
func TestDiskFull(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	if err := syscall.Mount("none", d.to, "tmpfs", 0, "size=6m"); err != nil {
		t.Skipf("no file system that can be filled: %v", err)
	}
	t.Cleanup(func() { wantOK(t, "Unmount", syscall.Unmount(d.to, 0)) })
	ballast := filepath.Join(d.to, "ballast")
	writeFile(t, ballast, make([]byte, 3*chunk.Size))
	want := d.write(t, "f", 5*chunk.Size, 1)
	dest := filepath.Join(d.to, "f")
	wantErr(t, "Get", d.peer.Get("d/f", dest, TransferConfig{}).Wait(soon(t)), syscall.ENOSPC)
	wantOK(t, "Remove", os.Remove(ballast))
	x := d.peer.Get("d/f", dest, TransferConfig{})
	wantOK(t, "Get", x.Wait(soon(t)))
	wantFile(t, dest, want)
	if s := x.Status(); s.BytesReused == 0 {
		t.Errorf("Status() = %+v, want that something was kept", s)
	}
}

// TestListPipe: List omits special files.
func TestListPipe(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	wantOK(t, "Mkfifo", syscall.Mkfifo(filepath.Join(d.dir, "pipe"), 0o600))
	list, err := d.peer.List(soon(t), "d")
	if wantOK(t, "List", err); len(list) != 0 {
		t.Errorf("List found %+v, want nothing", list)
	}
	_, err = d.peer.List(soon(t), "d/pipe")
	wantErr(t, "List of a pipe", err, ErrDenied)
}

// TestPlantedPartialFile: neither Get nor Put uses a partial file that another user has planted at
// the destination.
func TestPlantedPartialFile(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can act as another user")
	}
	d := newDepot(t, memoryNetwork(1), Read|Write)
	want := d.write(t, "f", chunk.Size, 1)
	from := filepath.Join(t.TempDir(), "g")
	writeFile(t, from, want)
	for _, planted := range []string{filepath.Join(d.to, ".f.ibx-partial"), filepath.Join(d.dir, ".g.ibx-partial")} {
		writeFile(t, planted, want)
		wantOK(t, "Chown", os.Chown(planted, 4321, 4321))
	}
	wantErr(t, "Get", d.peer.Get("d/f", filepath.Join(d.to, "f"), TransferConfig{}).Wait(soon(t)), ErrDenied)
	wantErr(t, "Put", d.peer.Put(from, "d/g", TransferConfig{}).Wait(soon(t)), ErrDenied)
	for _, name := range []string{filepath.Join(d.to, "f"), filepath.Join(d.dir, "g")} {
		if _, err := os.Lstat(name); !os.IsNotExist(err) {
			t.Errorf("%s: error %v, want that it does not exist", name, err)
		}
	}
}

// TestSpecialFiles: FIFOs and sockets in a directory are skipped. The Status of Get and Put counts
// all of them, and names the first ones.
func TestSpecialFiles(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read|Write)
	writeFile(t, filepath.Join(d.dir, "top/a/f"), []byte("file"))
	var want []string
	for i := range maxNamed + 3 {
		want = append(want, fmt.Sprintf("a/pipe%02d", i))
		wantOK(t, "Mkfifo", syscall.Mkfifo(filepath.Join(d.dir, "top", want[i]), 0o600))
	}
	t.Chdir(filepath.Join(d.dir, "top")) // socket paths are short
	l, err := net.Listen("unix", "socket")
	wantOK(t, "Listen", err)
	defer func() { _ = l.Close() }()
	to := filepath.Join(d.to, "new")
	get := d.peer.Get("d/top", to, TransferConfig{})
	wantOK(t, "Get", get.Wait(soon(t)))
	put := d.peer.Put(filepath.Join(d.dir, "top"), "d/put", TransferConfig{})
	wantOK(t, "Put", put.Wait(soon(t)))
	for _, s := range []Status{get.Status(), put.Status()} {
		if s.Skipped != maxNamed+4 || !slices.Equal(s.SkippedNames, want[:maxNamed]) || s.Total != 4 {
			t.Errorf("Status() = %+v, want %d skipped files, %q first", s, maxNamed+4, want[:maxNamed])
		}
	}
	for _, dir := range []string{to, filepath.Join(d.dir, "put")} {
		wantFile(t, filepath.Join(dir, "a/f"), []byte("file"))
		for name, most := range map[string]int{"": 1, "a": 1} {
			if list, err := os.ReadDir(filepath.Join(dir, name)); len(list) != most {
				t.Errorf("%s/%s has %v, %v, want %d entry", dir, name, list, err, most)
			}
		}
	}
	list, err := d.peer.List(soon(t), "d/top")
	wantOK(t, "List", err)
	if len(list) != 1 || list[0].Name != "d/top/a" {
		t.Errorf("List = %v, want the directory only", list)
	}
}
