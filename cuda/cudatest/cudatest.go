// Package cudatest provides a GPU to tests ([Open], and [Environ] for other processes): with make test-gpu the
// machine's first GPU, otherwise a stand-in for libcuda, built from cuda/testdata/fakecuda.c with a C compiler.
package cudatest

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"ibverbx/cuda"
	"ibverbx/verbs"
)

// Real reports whether tests use the machine's GPU (make test-gpu).
func Real() bool { return os.Getenv("IBVERBX_TEST_GPU") != "" }

// Open opens a GPU until the test ends; its memory must be free by then. Without a GPU, and without a compiler or cgo for the stand-in, it
// skips the test.
func Open(tb testing.TB) *cuda.GPU {
	tb.Helper()
	var cfg cuda.Config
	if !Real() {
		file, dir := standIn(tb, 1)
		tb.Setenv(stateVariable, file) // the stand-in reads it while being loaded
		cfg.Library = filepath.Join(dir, cuda.DefaultLibrary)
	}
	d, err := cuda.Load(cfg)
	if !Real() && errors.Is(err, cuda.ErrNoDriver) {
		tb.Skipf("needs a GPU (make test-gpu) or cgo for the stand-in: %v", err)
	}
	if err != nil {
		tb.Fatalf("Load = %v, want nil", err)
	}
	g, err := d.Open(0)
	if err != nil {
		tb.Fatalf("Open = %v, want nil", err)
	}
	tb.Cleanup(func() {
		if err := g.Close(); err != nil {
			tb.Errorf("Close of the GPU = %v, want nil", err)
		}
	})
	return g
}

// Alloc allocates GPU memory until the test ends.
func Alloc(tb testing.TB, g *cuda.GPU, size int) *verbs.Memory {
	tb.Helper()
	m, err := g.Alloc(size)
	if err != nil {
		tb.Fatalf("Alloc = %v, want nil", err)
	}
	tb.Cleanup(func() {
		if err := m.Free(); err != nil {
			tb.Errorf("Free = %v, want nil", err)
		}
	})
	return m
}

// Environ returns the environment variables that give a new process the requested number of stand-in GPUs, with 1 GiB each, or the
// machine's GPUs with make test-gpu. Processes access each other's memory only by handles.
func Environ(tb testing.TB, gpus int) []string {
	tb.Helper()
	if Real() {
		return nil
	}
	file, dir := standIn(tb, gpus)
	return []string{stateVariable + "=" + file, "LD_LIBRARY_PATH=" + dir}
}

// Opened returns the number of memory handles opened by the processes with an environment from Environ. Only the stand-in counts them.
func Opened(tb testing.TB, env []string) int {
	tb.Helper()
	_, file, _ := strings.Cut(env[0], "=")
	state, err := os.ReadFile(file)
	if err != nil {
		tb.Fatalf("the state of the stand-in: %v", err)
	}
	return int(binary.NativeEndian.Uint64(state[8*stateIPCOpen:]))
}

const (
	// stateVariable is the variable with the name of the stand-in's state file.
	stateVariable = "IBVERBX_TEST_CUDA"
	// Indexes of state fields, in words of 8 bytes.
	stateIPCOpen, stateGPUs, stateBytes, stateKind = 88, 96, 97, 110
	stateSize                                      = 4096
)

// build compiles the stand-in once per process.
var build = sync.OnceValues(compile)

// standIn returns the state file and the directory of a new stand-in with the given number of GPUs.
func standIn(tb testing.TB, gpus int) (file, dir string) {
	tb.Helper()
	library, err := build()
	if errors.Is(err, exec.ErrNotFound) {
		tb.Skipf("needs a GPU (make test-gpu) or a C compiler for the stand-in: %v", err)
	}
	if err != nil {
		tb.Fatalf("compile the stand-in: %v", err)
	}
	dir = tb.TempDir() // a separate file, which the dynamic linker loads as another library
	state := make([]byte, stateSize)
	for field, value := range map[int]int{stateGPUs: gpus, stateBytes: 1 << 30, stateKind: 2} {
		binary.NativeEndian.PutUint64(state[8*field:], uint64(value))
	}
	file = filepath.Join(dir, "state")
	err = errors.Join(os.WriteFile(file, state, 0o600), os.WriteFile(filepath.Join(dir, cuda.DefaultLibrary), library, 0o600))
	if err != nil {
		tb.Fatalf("write the stand-in: %v", err)
	}
	return file, dir
}

// compile compiles the stand-in, whose source is found from the directory of any package of the module.
func compile() (library []byte, err error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		return nil, err
	}
	root := "."
	for range 8 {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		root = filepath.Join(root, "..")
	}
	dir, err := os.MkdirTemp("", "cudatest")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "libcuda.so")
	cmd := exec.Command(cc, "-O2", "-shared", "-fPIC", "-o", path, filepath.Join(root, "cuda", "testdata", "fakecuda.c"), "-lpthread")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, errors.Join(err, errors.New(string(out)))
	}
	return os.ReadFile(path)
}
