package files

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx/internal/chunk"
)

// immutable is FS_IMMUTABLE_FL: even root cannot change the attributes of such a file.
const immutable = 0x10

// TestLocalPathsHidden: errors of the serving side name files as the peer does. They do not reveal where an Export is.
func TestLocalPathsHidden(t *testing.T) {
	d := depotIn(t, memoryNetwork(1), Read|Write, memoryDir(t), t.TempDir())
	hidden := func(t *testing.T, what string, err error) {
		t.Helper()
		if err == nil || strings.Contains(err.Error(), d.dir) || !strings.Contains(err.Error(), "large") {
			t.Errorf("%s: got %v, want an error that names the file without %s", what, err, d.dir)
		}
	}
	t.Run("xattrs", func(t *testing.T) {
		d.write(t, "t/large", 100, 1)
		for _, name := range []string{"user.a", "user.b"} {
			if err := unix.Setxattr(filepath.Join(d.dir, "t/large"), name, make([]byte, 20<<10), 0); err != nil {
				t.Skipf("the file system has no large extended attributes: %v", err)
			}
		}
		for _, name := range []string{"d/t/large", "d/t"} {
			hidden(t, "Get of "+name, d.peer.Get(name, d.to, TransferConfig{Xattrs: true}).Wait(soon(t)))
		}
	})
	t.Run("failures", func(t *testing.T) {
		from, to := filepath.Join(t.TempDir(), "t"), filepath.Join(d.dir, "to")
		b := make([]byte, 2*chunk.Size)
		fill(b, 1)
		writeFile(t, filepath.Join(from, "large"), b)
		writeFile(t, filepath.Join(to, "large"), b)
		wantOK(t, "Chmod", os.Chmod(filepath.Join(from, "large"), 0o600))
		f, err := os.Open(filepath.Join(to, "large"))
		wantOK(t, "Open", err)
		defer f.Close()
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, immutable); err != nil {
			t.Skipf("files cannot be made immutable: %v", err)
		}
		defer func() { wantOK(t, "ioctl", unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, 0)) }()
		hidden(t, "Put", d.peer.Put(from, "d/to", TransferConfig{Checksum: true}).Wait(soon(t)))
	})
}
