//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"ibverbx/cuda"
	"ibverbx/verbs"
)

// skipWithoutGPU skips a test unless make test-gpu runs it.
func skipWithoutGPU(tb testing.TB) {
	tb.Helper()
	if os.Getenv("IBVERBX_TEST_GPU") == "" {
		tb.Skip("needs a GPU; make test-gpu runs it")
	}
}

// onGPU opens the machine's first GPU, with make test-gpu.
func onGPU(tb testing.TB) *cuda.GPU {
	tb.Helper()
	skipWithoutGPU(tb)
	g, err := cuda.Open(0)
	ok(tb, err, "Open")
	tb.Cleanup(func() { ok(tb, g.Close(), "Close") })
	return g
}

// TestGPU runs the stand-in's tests on a real GPU.
func TestGPU(t *testing.T) {
	g := onGPU(t)
	devices, err := cuda.Devices()
	ok(t, err, "Devices")
	t.Logf("%+v", devices)
	for name, check := range map[string]func(*testing.T, *cuda.GPU){
		"copies": checkCopies, "blocks": checkBlocks, "stream": checkStream, "threads": checkThreads, "adopt": checkAdopt,
	} {
		t.Run(name, func(t *testing.T) { check(t, g) })
	}
	t.Run("dma-buf", func(t *testing.T) {
		if !devices[0].DMABuf {
			t.Skip("the driver exports no dma-bufs of this GPU")
		}
		checkDMABuf(t, g)
	})
	t.Run("out of memory", func(t *testing.T) {
		if _, err := g.Alloc(1 << 50); !errors.Is(err, cuda.ErrOutOfMemory) {
			t.Errorf("Alloc of a PiB = %v, want ErrOutOfMemory", err)
		} else {
			t.Log(err)
		}
	})
}

const (
	// childVariable holds the task of a child process.
	childVariable = "IBVERBX_TEST_GPU_CHILD"
	// libraryVariable holds the path of the child's stand-in. If it is empty, the child uses the
	// machine's GPU.
	libraryVariable = "IBVERBX_TEST_CUDA_LIBRARY"
)

// openChild opens the child's GPU.
func openChild() (*cuda.GPU, error) {
	path := os.Getenv(libraryVariable)
	if path == "" {
		return cuda.Open(0)
	}
	d, err := cuda.Load(cuda.Config{Library: path})
	if err != nil {
		return nil, err
	}
	return d.Open(0)
}

// child runs the task of a child process. It returns false in other processes.
func child() bool {
	task := os.Getenv(childVariable)
	if task == "" {
		return false
	}
	run := childTask
	if task == farTask {
		run = func(string) error { return far() }
	}
	if err := run(task); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// childTask exports a handle and exits, or writes to the memory of a handle.
func childTask(task string) error {
	g, err := openChild()
	if err != nil {
		return err
	}
	if task == "make" {
		m, err := g.Alloc(1 << 20)
		if err != nil {
			return err
		}
		h, err := g.IPCHandle(m)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(h)
	}
	var h cuda.IPCHandle
	if err := json.Unmarshal([]byte(task), &h); err != nil {
		return err
	}
	m, err := g.OpenIPC(h)
	if err != nil {
		return err
	}
	_, err = m.WriteAt([]byte("from the other process"), 0)
	return errors.Join(err, m.Free(), g.Close())
}

// TestGPUProcesses shares memory with another process, and opens the handle of an exited one.
func TestGPUProcesses(t *testing.T) { checkProcesses(t, onGPU(t), nil) }

// TestProcesses does the same on the stand-in.
func TestProcesses(t *testing.T) {
	g, _ := open(t)
	env, _ := standInEnv(t)
	checkProcesses(t, g, env)
}

func checkProcesses(t *testing.T, g *cuda.GPU, env []string) {
	t.Helper()
	run := func(task string) []byte {
		cmd := exec.Command(os.Args[0])
		cmd.Env, cmd.Stderr = append(append(os.Environ(), env...), childVariable+"="+task), os.Stderr
		out, err := cmd.Output()
		ok(t, err, "the other process")
		return out
	}
	m := alloc(t, g, 8<<20)
	part, err := g.Adopt(m.Addr()+5000, 100)
	ok(t, err, "Adopt")
	h, err := g.IPCHandle(part)
	ok(t, err, "IPCHandle")
	task, err := json.Marshal(h)
	ok(t, err, "Marshal")
	run(string(task))
	got := make([]byte, 22)
	if _, err := m.ReadAt(got, 5000); err != nil || string(got) != "from the other process" {
		t.Errorf("ReadAt = %v and %q, want the bytes of the other process", err, got)
	}
	ok(t, part.Free(), "Free")
	ok(t, json.Unmarshal(run("make"), &h), "Unmarshal")
	if _, err := g.OpenIPC(h); err == nil {
		t.Error("OpenIPC of a handle of a process that has ended = nil, want an error")
	} else {
		t.Log(err)
	}
}

// BenchmarkGPU measures single synchronized copies.
func BenchmarkGPU(b *testing.B) {
	g := onGPU(b)
	const most = 64 << 20
	x, y := alloc(b, g, most), alloc(b, g, most)
	host, err := verbs.AllocMemory(most, nil)
	ok(b, err, "AllocMemory")
	pin, err := g.Pin(host)
	ok(b, err, "Pin")
	s, err := g.NewStream()
	ok(b, err, "NewStream")
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		for name, queue := range map[string]func() error{
			"write":  func() error { return s.Write(x, 0, host.Bytes()[:size]) },
			"read":   func() error { return s.Read(host.Bytes()[:size], x, 0) },
			"device": func() error { return s.Copy(y, 0, x, 0, size) },
			"batch": func() error { // as many blocks as possible, at most 1,000
				for i := range min(1000, most/size) {
					if err := s.Write(x, i*size, host.Bytes()[i*size:][:size]); err != nil {
						return err
					}
				}
				return nil
			},
		} {
			b.Run(fmt.Sprintf("%s/size=%d", name, size), func(b *testing.B) {
				n := size
				if name == "batch" {
					n *= min(1000, most/size)
				}
				b.SetBytes(int64(n))
				for b.Loop() {
					if err := errors.Join(queue(), s.Synchronize()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
	ok(b, s.Close(), "Close")
	ok(b, pin.Close(), "Close")
	ok(b, host.Free(), "Free")
}
