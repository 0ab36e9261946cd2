//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"ibverbx/cuda"
	"ibverbx/verbs"
)

// Driver functions, as in testdata/fakecuda.c.
const (
	callInit = iota
	callVersion
	callCount
	callDevice
	callName
	callTotal
	callAttribute
	callPCI
	callRetain
	callRelease
	callPush
	callPop
	callAlloc
	callFree
	callRange
	callPointer
	callPin
	callUnpin
	callCopy
	callStream
	callSync
	callDestroy
	callDMABuf
	callIPCGet
	callIPCOpen
	callIPCClose
	callLoad
	callFunction
	callLaunch
	callUnload
)

// stateVariable names the stand-in's state file.
const stateVariable = "IBVERBX_TEST_CUDA"

// fake is struct state of testdata/fakecuda.c. Both sides map it.
type fake struct {
	fail, after, calls              [32]int64
	gpus, total, noDMABuf           int64
	lost, gate, waiting             int64
	contexts, allocs, streams, pins int64
	opened, bytes, depth, copied    int64
	memoryType, managed, ordinal    int64
	foreign, foreignBytes           int64
	modules, noHostPointers         int64
	ownHandles, noAlias             int64
}

// failWith makes a function fail with a code from now on; 0 makes it succeed again.
func (f *fake) failWith(call int, code int64) { f.fail[call], f.after[call] = code, 0 }

// settled fails the test if a driver object is still open.
func (f *fake) settled(tb testing.TB) {
	tb.Helper()
	if f.contexts != 0 || f.allocs != 0 || f.streams != 0 || f.pins != 0 || f.opened != 0 || f.bytes != 0 || f.depth != 0 || f.modules != 0 {
		tb.Errorf("alive at the end: %d contexts, %d allocations of %d bytes, %d streams, %d pins, %d opened handles, %d pushed contexts, %d modules; want none",
			f.contexts, f.allocs, f.bytes, f.streams, f.pins, f.opened, f.depth, f.modules)
	}
}

// compile compiles the stand-in for libcuda with additional arguments.
func compile(tb testing.TB, args ...string) []byte {
	tb.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		tb.Skipf("needs a C compiler for the stand-in of libcuda: %v", err)
	}
	path := filepath.Join(tb.TempDir(), "libfake.so")
	args = append(args, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", path, "testdata/fakecuda.c", "-lpthread")
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		tb.Fatalf("compile the stand-in: %v\n%s", err, out)
	}
	b, err := os.ReadFile(path)
	ok(tb, err, "ReadFile")
	return b
}

// usual is the stand-in for most tests, compiled once.
var usual struct {
	sync.Once
	library []byte
}

// place writes a library to a separate file, which the dynamic linker loads as another library, and
// returns its path and its state.
func place(tb testing.TB, library []byte) (string, *fake) {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "state")
	ok(tb, os.WriteFile(file, make([]byte, unsafe.Sizeof(fake{})), 0o600), "WriteFile")
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	ok(tb, err, "open the state")
	defer unix.Close(fd)
	b, err := unix.Mmap(fd, 0, int(unsafe.Sizeof(fake{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	ok(tb, err, "map the state")
	tb.Cleanup(func() { _ = unix.Munmap(b) })
	f := (*fake)(unsafe.Pointer(unsafe.SliceData(b)))
	f.gpus, f.total, f.memoryType, f.ownHandles = 2, 64<<20, 2, 1
	tb.Setenv(stateVariable, file) // read when the library is loaded
	path := filepath.Join(tb.TempDir(), "libfake.so")
	ok(tb, os.WriteFile(path, library, 0o600), "WriteFile")
	return path, f
}

// standInEnv returns the environment for another process with a new stand-in, and the stand-in's
// state.
func standInEnv(tb testing.TB) ([]string, *fake) {
	tb.Helper()
	own := os.Getenv(stateVariable)
	path, f := standIn(tb)
	env := []string{stateVariable + "=" + os.Getenv(stateVariable), libraryVariable + "=" + path}
	tb.Setenv(stateVariable, own)
	return env, f
}

// standIn returns the path of a new stand-in with two GPUs of 64 MiB, and its state.
func standIn(tb testing.TB) (string, *fake) {
	tb.Helper()
	usual.Do(func() { usual.library = compile(tb) })
	if usual.library == nil {
		tb.Skip("needs a C compiler for the stand-in of libcuda")
	}
	return place(tb, usual.library)
}

// load loads a new stand-in.
func load(tb testing.TB) (*cuda.Driver, *fake) {
	tb.Helper()
	path, f := standIn(tb)
	d, err := cuda.Load(cuda.Config{Library: path})
	ok(tb, err, "Load")
	return d, f
}

// open opens the first GPU of a new stand-in. At the end of the test, all driver objects must be
// closed.
func open(tb testing.TB) (*cuda.GPU, *fake) {
	tb.Helper()
	d, f := load(tb)
	g, err := d.Open(0)
	ok(tb, err, "Open")
	tb.Cleanup(func() {
		if f.lost == 0 {
			ok(tb, g.Close(), "Close")
		}
		f.settled(tb)
	})
	return g, f
}

// alloc allocates memory for the duration of the test.
func alloc(tb testing.TB, g *cuda.GPU, size int) *verbs.Memory {
	tb.Helper()
	m, err := g.Alloc(size)
	ok(tb, err, "Alloc")
	tb.Cleanup(func() { ok(tb, m.Free(), "Free") })
	return m
}

func ok(tb testing.TB, err error, what string) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%s = %v, want nil", what, err)
	}
}

// shut blocks synchronizations; the returned function unblocks them.
func (f *fake) shut() (open func()) {
	atomic.StoreInt64(&f.gate, 1)
	return func() { atomic.StoreInt64(&f.gate, 0) }
}

// awaitSynchronization waits until a synchronization blocks. done receives the result of the
// synchronizing call.
func (f *fake) awaitSynchronization(tb testing.TB, done <-chan error) {
	tb.Helper()
	for atomic.LoadInt64(&f.waiting) == 0 {
		if len(done) > 0 {
			tb.Fatalf("the call returns %v without a synchronization", <-done)
		}
		runtime.Gosched()
	}
}
