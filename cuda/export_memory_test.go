//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ibverbx/cuda"
	"ibverbx/verbs"
)

// checkDMABuf exports memory of several sizes, and parts of it.
func checkDMABuf(t *testing.T, g *cuda.GPU) {
	t.Helper()
	page := uint64(os.Getpagesize())
	for _, size := range []int{100, 1 << 16, 4 << 20} {
		m := alloc(t, g, size)
		part, err := g.Adopt(m.Addr()+64, size-64)
		ok(t, err, "Adopt")
		for _, m := range []*verbs.Memory{m, part} {
			file, offset, err := m.DMABuf()
			ok(t, err, "DMABuf")
			end, err := file.Seek(0, 2)
			if err != nil || uint64(end) < offset+uint64(m.Len()) || offset != m.Addr()%page {
				t.Errorf("the dma-buf of %d bytes at %#x has %d bytes (%v) and offset %d", m.Len(), m.Addr(), end, err, offset)
			}
			ok(t, file.Close(), "Close of the dma-buf")
		}
		ok(t, part.Free(), "Free")
	}
}

// checkAdopt adopts parts of an allocation, and ranges beyond it.
func checkAdopt(t *testing.T, g *cuda.GPU) {
	t.Helper()
	m, err := g.Alloc(1 << 20)
	ok(t, err, "Alloc")
	part, err := g.Adopt(m.Addr()+4096, 1<<20-4096)
	ok(t, err, "Adopt")
	want, got := pattern(1000, 3), make([]byte, 1000)
	_, err = part.WriteAt(want, 10)
	ok(t, err, "WriteAt")
	_, err = m.ReadAt(got, 4106)
	ok(t, err, "ReadAt")
	if !bytes.Equal(got, want) {
		t.Error("the adopted memory is not where it was said to be")
	}
	ok(t, part.Free(), "Free of adopted memory")
	host, err := verbs.AllocMemory(4096, nil)
	ok(t, err, "AllocMemory")
	defer func() { ok(t, host.Free(), "Free") }()
	_, crossing := g.Adopt(m.Addr()+4096, 1<<20)
	_, ordinary := g.Adopt(host.Addr(), 4096)
	addr := m.Addr()
	ok(t, m.Free(), "Free")
	_, freed := g.Adopt(addr, 100)
	for what, err := range map[string]error{"crossing": crossing, "of the host": ordinary, "freed": freed} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("Adopt of a range that is %s = %v, want ErrInvalid", what, err)
		}
	}
}

func TestDMABuf(t *testing.T) { g, _ := open(t); checkDMABuf(t, g) }
func TestAdopt(t *testing.T)  { g, _ := open(t); checkAdopt(t, g) }

// TestAdoptForeign: only this GPU's memory at a fixed address can be adopted.
func TestAdoptForeign(t *testing.T) {
	g, f := open(t)
	f.foreign, f.foreignBytes = 0x700000000000, 4096
	m, err := g.Adopt(uint64(f.foreign)+96, 4000)
	ok(t, err, "Adopt")
	ok(t, m.Free(), "Free")
	ok(t, m.Free(), "second Free")
	if f.calls[callFree] != 0 {
		t.Error("Free of adopted memory frees the allocation")
	}
	for _, tt := range []struct {
		change func()
		want   string
	}{
		{func() { f.ordinal = 1 }, "memory of cuda:1"},
		{func() { f.managed = 1 }, "managed memory"},
		{func() { f.memoryType = 1 }, "host memory; use verbs.AdoptMemory"},
		{func() { f.failWith(callPointer, 1) }, "CUDA does not know this address"},
	} {
		tt.change()
		if _, err := g.Adopt(uint64(f.foreign), 4096); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("Adopt = %v, want ErrInvalid and %q", err, tt.want)
		}
	}
}

// TestIPC opens memory by its handle. A handle that exceeds the allocation is rejected.
func TestIPC(t *testing.T) {
	g, f := open(t)
	m := alloc(t, g, 1<<20)
	part, err := g.Adopt(m.Addr()+1000, 5000)
	ok(t, err, "Adopt")
	h, err := g.IPCHandle(part)
	ok(t, err, "IPCHandle")
	ok(t, part.Free(), "Free")
	if h.Offset != 1000 || h.Size != 5000 {
		t.Errorf("the handle has offset %d and size %d, want 1000 and 5000", h.Offset, h.Size)
	}
	got, err := g.OpenIPC(h)
	ok(t, err, "OpenIPC")
	_, err = got.WriteAt([]byte("abcd"), 4996)
	ok(t, err, "WriteAt")
	b := make([]byte, 4)
	if _, err := m.ReadAt(b, 5996); err != nil || string(b) != "abcd" {
		t.Errorf("ReadAt = %v and %q, want nil and abcd", err, b)
	}
	ok(t, got.Free(), "Free")
	for _, bad := range []cuda.IPCHandle{
		{Handle: h.Handle, Offset: 0, Size: 1<<20 + 1},
		{Handle: h.Handle, Offset: 1 << 20, Size: 1},
		{Handle: h.Handle, Offset: 1 << 60, Size: 1 << 60},
		{Handle: h.Handle, Offset: ^uint64(0), Size: 1},
		{Handle: h.Handle, Size: ^uint64(0)},
		{Handle: h.Handle},
		{Size: 1},
	} {
		if _, err := g.OpenIPC(bad); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("OpenIPC of %d bytes at %d = %v, want ErrInvalid", bad.Size, bad.Offset, err)
		}
	}
	f.failWith(callRange, 304)
	if _, err := g.OpenIPC(h); err == nil || f.opened != 0 {
		t.Errorf("OpenIPC = %v, and %d handles stay open; want an error and none", err, f.opened)
	}
}

// TestOldDriver: a driver that lacks newer functions works otherwise.
func TestOldDriver(t *testing.T) {
	path, f := place(t, compile(t, "-DOLD"))
	d, err := cuda.Load(cuda.Config{Library: path})
	ok(t, err, "Load")
	if devices, err := d.Devices(); err != nil || devices[0].DMABuf {
		t.Errorf("Devices = %+v, %v, want no dma-buf", devices, err)
	}
	g, err := d.Open(1)
	ok(t, err, "Open")
	m, err := g.Alloc(10)
	ok(t, err, "Alloc")
	_, _, err = m.DMABuf()
	for _, err := range []error{err, errorOf(g.IPCHandle(m)), errorOf(g.OpenIPC(cuda.IPCHandle{Size: 1}))} {
		if !errors.Is(err, verbs.ErrNotSupported) || !strings.Contains(err.Error(), "update the NVIDIA driver") {
			t.Errorf("%v, want ErrNotSupported", err)
		}
	}
	ok(t, m.Free(), "Free")
	ok(t, g.Close(), "Close")
	f.settled(t)
}

// TestLoadErrors: the library is missing, is not a library, or lacks a function.
func TestLoadErrors(t *testing.T) {
	text := filepath.Join(t.TempDir(), "libcuda.so.1")
	ok(t, os.WriteFile(text, []byte("text"), 0o600), "WriteFile")
	ancient, _ := place(t, compile(t, "-DcuMemcpyHtoDAsync_v2=absent"))
	for path, want := range map[string]string{
		"/nonexistent/libcuda.so.1": "install the NVIDIA driver", text: "install the NVIDIA driver", ancient: "has no cuMemcpyHtoDAsync_v2",
	} {
		if _, err := cuda.Load(cuda.Config{Library: path}); !errors.Is(err, cuda.ErrNoDriver) || !errors.Is(err, verbs.ErrNotSupported) || !strings.Contains(err.Error(), want) {
			t.Errorf("Load = %v, want ErrNoDriver and %q", err, want)
		}
	}
}
