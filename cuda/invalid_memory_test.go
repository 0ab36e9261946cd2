//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"ibverbx/cuda"
	"ibverbx/verbs"
)

// TestIPCOfDeadProcess: opening a handle of an exited process fails with the usual explanation, and
// leaves no handle open. TestGPUProcesses does it with a real process.
func TestIPCOfDeadProcess(t *testing.T) {
	g, f := open(t)
	h, err := g.IPCHandle(alloc(t, g, 4096))
	ok(t, err, "IPCHandle")
	for _, code := range []int64{1, 201, 304, 400} {
		f.failWith(callIPCOpen, code)
		_, err := g.OpenIPC(h)
		var e *cuda.Error
		if !errors.As(err, &e) || e.Code != int(code) || !strings.Contains(err.Error(), "the other process must be alive, on this host, and not this process") || f.opened != 0 {
			t.Errorf("OpenIPC = %v, and %d handles are open; want the code %d, what to look at, and none", err, f.opened, code)
		}
	}
}

// checkFreed uses adopted memory that its library has freed. Copies fail, and the process and the
// GPU stay usable.
func checkFreed(t *testing.T, g *cuda.GPU) {
	t.Helper()
	for _, size := range []int{4096, 64 << 20} {
		m, err := g.Alloc(size)
		ok(t, err, "Alloc")
		other, b := alloc(t, g, size), make([]byte, size)
		part, err := g.Adopt(m.Addr(), size)
		ok(t, err, "Adopt")
		t.Cleanup(func() { ok(t, part.Free(), "Free of adopted memory") })
		ok(t, m.Free(), "Free")
		for what, err := range map[string]error{
			"WriteAt": errorOf(part.WriteAt(b, 0)), "ReadAt": errorOf(part.ReadAt(b, 0)),
			"CopyFrom to it": part.CopyFrom(0, other, 0, size), "CopyFrom it": other.CopyFrom(0, part, 0, size),
		} {
			t.Logf("%d bytes: %s = %v", size, what, err)
			if !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s of freed memory = %v, want ErrInvalid", what, err)
			}
		}
		w := newWire(t, onMemoryLink(t), other, part)
		if s := w.write(t, make([]verbs.SendWR, 1), size); s != verbs.StatusRemOpErr {
			t.Errorf("a WRITE to freed memory ends with %v, want %v", s, verbs.StatusRemOpErr)
		}
		_, err = other.WriteAt(b, 0)
		ok(t, err, "WriteAt of other memory")
	}
}

func TestFreedUnderUse(t *testing.T) {
	g, f := open(t)
	f.total = 1 << 30
	checkFreed(t, g)
}

// TestGPUFreedUnderUse runs in a separate process, which a bug would crash.
func TestGPUFreedUnderUse(t *testing.T) {
	const child = "IBVERBX_TEST_GPU_FREED"
	g := onGPU(t)
	if os.Getenv(child) != "" {
		checkFreed(t, g)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestGPUFreedUnderUse$", "-test.v")
	cmd.Env = append(os.Environ(), child+"=1")
	out, err := cmd.CombinedOutput()
	if t.Logf("%s", out); err != nil {
		t.Errorf("the process ends with %v", err)
	}
}

// TestNoDMABuf: without dma-buf support in the driver, DMABuf returns ErrNotSupported. Everything
// else works.
func TestNoDMABuf(t *testing.T) {
	g, f := open(t)
	f.noDMABuf = 1
	m := alloc(t, g, 4096)
	if file, _, err := m.DMABuf(); file != nil || !errors.Is(err, verbs.ErrNotSupported) || !strings.Contains(err.Error(), "export dma-buf on cuda:0: ") || !strings.Contains(err.Error(), "CUDA_ERROR_NOT_SUPPORTED") {
		t.Errorf("DMABuf = %v, %v, want ErrNotSupported with CUDA's name", file, err)
	}
	_, err := m.WriteAt([]byte("works"), 0)
	ok(t, err, "WriteAt")
}
