//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx"
	"ibverbx/rdmacore"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// exporter is a device that exports its memory as dma-bufs, unless err is set. files holds the
// exports.
type exporter struct {
	verbstest.MemoryDevice
	err   error
	files []*os.File
}

func (e *exporter) DMABuf(addr, _ uint64) (*os.File, uint64, error) {
	if e.err != nil {
		return nil, 0, e.err
	}
	fd, err := unix.MemfdCreate("dma-buf", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, 0, err
	}
	f := os.NewFile(uintptr(fd), "dma-buf")
	e.files = append(e.files, f)
	return f, addr & 4095, f.Truncate(1 << 20)
}

// wantClosed checks that all exports have been closed.
func (e *exporter) wantClosed(t *testing.T, what string) {
	t.Helper()
	for i, f := range e.files {
		if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: export %d is open, want it closed", what, i)
		}
	}
}

// deviceAddr is not page-aligned, like some GPU memory.
const deviceAddr, deviceSize = 0xd000_0000_0200, 100_000

func (e *exporter) memory(t *testing.T) *verbs.Memory {
	t.Helper()
	m, err := verbs.NewDeviceMemory(e, deviceAddr, deviceSize, func() error { return nil })
	ok(t, err, "NewDeviceMemory")
	t.Cleanup(func() { ok(t, m.Free(), "Free, after all registrations were closed") })
	return m
}

// Device memory reaches the driver as a dma-buf. Work requests use its addresses.
func TestRegisterDeviceMemory(t *testing.T) {
	ctx, s := openDMABufs(t)
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: ctx})
	ok(t, err, "NewRails")
	e := new(exporter)
	m := e.memory(t)
	region, err := rails.Register(m, verbs.AccessAll)
	ok(t, err, "Register")
	e.wantClosed(t, "after Register")
	if got, want := [3]uint64(s.dmaBuf[:3]), [3]uint64{deviceAddr & 4095, deviceSize, deviceAddr}; got != want || s.access != uint64(verbs.AccessAll) {
		t.Errorf("the driver got %#x and access %#x, want offset, length and iova %#x and %#x", got, s.access, want, verbs.AccessAll)
	}
	if r := region.Remote(); r.Addr != deviceAddr || r.Length != deviceSize || region.Bytes() != nil {
		t.Errorf("the region has %d bytes at %#x, want %d at %#x and none for the CPU", r.Length, r.Addr, deviceSize, uint64(deviceAddr))
	}
	wants(t, "Free of registered memory", m.Free(), verbs.ErrBusy)
	ok(t, region.Close(), "Close of the region")
	ok(t, rails.Close(), "Close of the rails")
}

// A failed registration of device memory leaks nothing, and the error contains the fix.
func TestRegisterDeviceMemoryRefused(t *testing.T) {
	for _, tt := range []struct {
		name       string
		dmaBuf, mr syscall.Errno // errnos of the driver
		export     error
		access     verbs.Access
		want       error
		words      []string
	}{
		{
			"a NIC without dma-bufs and peer memory", syscall.EOPNOTSUPP, syscall.EFAULT, nil, verbs.AccessAll, verbs.ErrNotSupported,
			[]string{"memory of fake:0", "dma-buf", "nvidia-peermem", "software NICs", "bad address"},
		},
		{
			"a device without dma-bufs", 0, syscall.EFAULT, fmt.Errorf("%w: no dma-bufs", verbs.ErrNotSupported), verbs.AccessAll, syscall.EFAULT,
			[]string{"no dma-bufs", "nvidia-peermem"},
		},
		{"a device that is lost", 0, 0, verbs.ErrDeviceFatal, verbs.AccessAll, verbs.ErrDeviceFatal, nil},
		{"no memory for keys", 0, syscall.ENOMEM, nil, verbs.AccessAll, verbs.ErrLimit, []string{"RLIMIT_MEMLOCK"}},
		{"no memory for keys by address", syscall.EOPNOTSUPP, syscall.ENOMEM, nil, verbs.AccessAll, verbs.ErrLimit, []string{"RLIMIT_MEMLOCK"}},
		{"wrong access", 0, 0, nil, verbs.AccessRemoteWrite, verbs.ErrInvalid, []string{"local write"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			lib, s := loadStandin(t, rdmacore.Config{})
			s.failWith(verbDMABuf, tt.dmaBuf)
			pd, err := openFirst(t, lib).AllocPD()
			ok(t, err, "AllocPD")
			e := &exporter{err: tt.export}
			s.failWith(verbMR, tt.mr)
			live := s.live
			_, err = pd.RegisterMemory(e.memory(t), tt.access)
			wants(t, "RegisterMemory", err, tt.want, tt.words...)
			e.wantClosed(t, "after RegisterMemory")
			if s.live != live {
				t.Errorf("objects alive after a refusal = %v, want %v", s.live, live)
			}
			ok(t, pd.Close(), "Close of the PD")
		})
	}
}

// Without dma-bufs, the address is registered, which nvidia-peermem supports.
func TestRegisterPeerMemory(t *testing.T) {
	ctx, _ := openStandin(t, rdmacore.Config{})
	pd, err := ctx.AllocPD()
	ok(t, err, "AllocPD")
	e := new(exporter)
	mr, err := pd.RegisterMemory(e.memory(t), verbs.AccessAll)
	ok(t, err, "RegisterMemory")
	if mr.Addr() != deviceAddr || mr.Len() != deviceSize {
		t.Errorf("the region is %d bytes at %#x, want %d at %#x", mr.Len(), mr.Addr(), deviceSize, uint64(deviceAddr))
	}
	ok(t, mr.Close(), "Close")
	ok(t, pd.Close(), "Close of the PD")
	e.wantClosed(t, "after Close")
}
