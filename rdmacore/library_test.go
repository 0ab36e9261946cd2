//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// wants fails the test unless err wraps sentinel and contains all words.
func wants(tb testing.TB, what string, err, sentinel error, words ...string) {
	tb.Helper()
	if !errors.Is(err, sentinel) {
		tb.Errorf("%s = %v, want an error that wraps %q", what, err, sentinel)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			tb.Errorf("%s = %q, want %q in it", what, err, w)
		}
	}
}

// A library that is missing, invalid, or lacks a function is an error.
func TestLoadErrors(t *testing.T) {
	_, err := rdmacore.Load(rdmacore.Config{Library: "libno-such-verbs.so.9"})
	wants(t, "Load of a library that is not there", err, rdmacore.ErrNoLibrary, "libno-such-verbs.so.9", "install")
	wants(t, "Load of a library that is not there", err, verbs.ErrNotSupported)

	text := filepath.Join(t.TempDir(), "libtext.so")
	if err := os.WriteFile(text, []byte("no library"), 0o600); err != nil {
		t.Fatalf("WriteFile = %v, want nil", err)
	}
	_, err = rdmacore.Load(rdmacore.Config{Library: text})
	wants(t, "Load of a text", err, rdmacore.ErrNoLibrary)

	_, err = rdmacore.Load(rdmacore.Config{Library: "libc.so.6"})
	wants(t, "Load of another library", err, rdmacore.ErrOldLibrary, "ibv_get_device_list@IBVERBS_1.1")
}

// standinWith compiles a stand-in with its own version script.
func standinWith(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "standin.map")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatalf("WriteFile = %v, want nil", err)
	}
	library, err := compileStandin(path)
	return placeStandin(t, library, err)
}

// The error names the functions that an old library lacks.
func TestLoadOldLibrary(t *testing.T) {
	old := standinWith(t, "IBVERBS_1.0 { global: ibv_*; local: *; };")
	_, err := rdmacore.Load(rdmacore.Config{Library: old})
	wants(t, "Load of a library without IBVERBS_1.1", err, rdmacore.ErrOldLibrary, "IBVERBS_1.1", old)

	lacks := standinWith(t, `IBVERBS_1.0 { global: ibv_create_comp_channel; ibv_destroy_comp_channel; local: ibv_create_qp; *; };
		IBVERBS_1.1 { global: ibv_[abd-z]*; ibv_c[al]*; ibv_create_[a-p]*; ibv_create_srq; } IBVERBS_1.0;`)
	_, err = rdmacore.Load(rdmacore.Config{Library: lacks})
	wants(t, "Load of a library without ibv_create_qp", err, rdmacore.ErrOldLibrary, "ibv_create_qp@IBVERBS_1.1")
}

// Without a device, the error names the fix.
func TestNoDevice(t *testing.T) {
	lib, s := loadStandin(t, rdmacore.Config{})
	for errno, word := range map[syscall.Errno]string{
		syscall.ENOSYS: "modprobe", syscall.ENOENT: "modprobe", syscall.EACCES: "permission", syscall.ENOMEM: "cannot allocate memory",
	} {
		s.failWith(verbDevices, errno)
		_, err := lib.Devices()
		wants(t, "Devices with "+errno.Error(), err, rdmacore.ErrNoDevice, word)
	}
	s.failWith(verbDevices, 0)
	s.devices = 0
	_, err := lib.Devices()
	wants(t, "Devices of a library that lists none", err, rdmacore.ErrNoDevice, "driver")
	wants(t, "Devices of a library that lists none", err, verbs.ErrNotFound)
}

func TestDevices(t *testing.T) {
	lib, s := loadStandin(t, rdmacore.Config{})
	s.devices = 3
	devices, err := lib.Devices()
	ok(t, err, "Devices")
	if len(devices) != 3 || devices[2].Name() != "standin2" || devices[2].GUID() != 0x0102030405060702 || devices[2].Driver() != "" {
		t.Fatalf("Devices = %d devices, the last %q %v %q, want 3, standin2, its GUID and no driver",
			len(devices), devices[len(devices)-1].Name(), devices[len(devices)-1].GUID(), devices[len(devices)-1].Driver())
	}
	s.devices = 2 // one is unplugged
	_, err = devices[2].Open()
	wants(t, "Open of a device that is gone", err, verbs.ErrNotFound, "standin2")
	ctx, err := devices[1].Open()
	ok(t, err, "Open")
	wants(t, "Close of a library with a context", lib.Close(), verbs.ErrBusy)
	ok(t, ctx.Close(), "Close of the context")
	ok(t, ctx.Close(), "second Close of the context")
}

// A closed library and its devices cannot open anything.
func TestClosedLibrary(t *testing.T) {
	lib, _ := loadStandin(t, rdmacore.Config{})
	devices, err := lib.Devices()
	ok(t, err, "Devices")
	ok(t, lib.Close(), "Close")
	ok(t, lib.Close(), "second Close")
	_, err = lib.Devices()
	wants(t, "Devices of a closed library", err, verbs.ErrClosed)
	_, err = devices[0].Open()
	wants(t, "Open on a closed library", err, verbs.ErrClosed)
}

func TestOpenErrors(t *testing.T) {
	lib, s := loadStandin(t, rdmacore.Config{})
	devices, err := lib.Devices()
	ok(t, err, "Devices")
	s.failWith(verbOpen, syscall.EACCES)
	_, err = devices[0].Open()
	wants(t, "Open without permission", err, syscall.EACCES, "standin0", "/dev/infiniband", "container")
	s.failWith(verbOpen, syscall.ENOENT)
	_, err = devices[0].Open()
	wants(t, "Open without a device file", err, verbs.ErrNotFound, "ib_uverbs")
	s.failWith(verbOpen, 0)
	s.failWith(verbQuery, syscall.EIO)
	_, err = devices[0].Open() // opened and closed again
	wants(t, "Open of a device that does not answer", err, verbs.ErrDeviceFatal, "query device")
}

func TestForkSafe(t *testing.T) {
	lib, s := loadStandin(t, rdmacore.Config{ForkSafe: true})
	if s.forks != 1 || lib.Path() == "" {
		t.Errorf("ibv_fork_init was called %d times, want once", s.forks)
	}
	path, s := newStandin(t)
	s.failWith(verbFork, syscall.EINVAL)
	_, err := rdmacore.Load(rdmacore.Config{Library: path, ForkSafe: true})
	wants(t, "Load with ForkSafe after a registration", err, verbs.ErrInvalid, "ibv_fork_init", "before any registration")
	_, s = loadStandin(t, rdmacore.Config{})
	if s.forks != 0 {
		t.Errorf("ibv_fork_init was called %d times without ForkSafe, want never", s.forks)
	}
}
