//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// Kinds of objects and verbs, as in testdata/standin.h.
const (
	liveList = iota
	liveContext
	livePD
	liveMR
	liveChannel
	liveCQ
	liveSRQ
	liveQP
	liveAH
	liveKinds
)

const (
	verbDevices = iota
	verbOpen
	verbClose
	verbQuery
	verbGID
	verbPD
	verbDeallocPD
	verbMR
	verbDereg
	verbChannel
	verbCQ
	verbDestroyCQ
	verbArm
	verbAsync
	verbSRQ
	verbModifySRQ
	verbQP
	verbQueryQP
	verbModifyQP
	verbDestroyQP
	verbAH
	verbFork
	verbPost
	verbPoll
	verbDMABuf
	verbClock
)

// seen is a work request as the stand-in's driver received it.
type seen struct {
	wrID, remoteAddr, compareAdd, swap                uint64
	opcode, flags, imm, numSGE, rkey, ah, qpn, remote uint32
	sge                                               [4]verbs.SGE
}

// deviceState describes the stand-in's device.
type deviceState struct {
	oldContext, noUC, ports uint64
	gids                    [2]uint64
}

// cqState controls how the stand-in creates extended CQs, and records their use.
type cqState struct {
	noFlags, none, timestamps, steps, made, tries uint64
	flags                                         [8]uint64
	visits, overlaps, overrun                     uint64
}

// standin is struct standin of testdata/standin.h: the settings and counters of the stand-in for
// libibverbs. Both sides map it.
type standin struct {
	live                                              [16]int64
	fail                                              [32]int64
	devices                                           uint64
	device                                            deviceState
	room, record, endless                             uint64
	idle, status, opcode, linger, overlaps            uint64
	keys, numbers, access, forks, acks, extendedCalls uint64
	posted, received, doorbells, polls                uint64
	modifyMask, flowLabel, deregs                     uint64
	cq                                                cqState
	seen                                              [8]seen
	modify                                            [36]uint32
	dmaBuf                                            [4]uint64 // offset, length, iova and fd of the last one
	sysfs                                             [128]byte
}

// failWith makes a verb fail with an errno from now on; 0 makes it succeed again.
func (s *standin) failWith(verb int, errno syscall.Errno) { s.fail[verb] = int64(errno) }

// beRXE gives the stand-in the sysfs entry of a Soft-RoCE device, and its quirk.
func (s *standin) beRXE(tb testing.TB) {
	tb.Helper()
	dir := tb.TempDir()
	if n := copy(s.sysfs[:len(s.sysfs)-1], dir); n != len(dir) {
		tb.Fatalf("the path %s has %d bytes, want at most %d", dir, len(dir), n)
	}
	ok(tb, os.Mkdir(filepath.Join(dir, "standin0"), 0o700), "Mkdir")
	ok(tb, os.WriteFile(filepath.Join(dir, "standin0", "parent"), []byte("net0\n"), 0o600), "WriteFile")
	s.cq.steps = 1
}

// compileStandin compiles the stand-in with a version script for the linker and returns the
// library.
func compileStandin(script string) ([]byte, error) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		if cc, err = exec.LookPath("gcc"); err != nil {
			return nil, errNoCompiler
		}
	}
	dir, err := os.MkdirTemp("", "standin")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "libstandin.so")
	out, err := exec.Command(cc, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", path, "testdata/standin.c", "testdata/standin_queue.c",
		"-Wl,--version-script="+script, "-lpthread").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.ReadFile(path)
}

var errNoCompiler = errors.New("neither cc nor gcc is installed")

// usualStandin is the stand-in for most tests, compiled once.
var usualStandin = sync.OnceValues(func() ([]byte, error) { return compileStandin("testdata/standin.map") })

// placeStandin writes a library to its own file and returns the path. The dynamic linker then
// treats it as a different library.
func placeStandin(tb testing.TB, library []byte, err error) string {
	tb.Helper()
	if errors.Is(err, errNoCompiler) {
		tb.Skipf("needs a C compiler for the stand-in of libibverbs: %v", err)
	}
	if err != nil {
		tb.Fatalf("compile the stand-in: %v, want success", err)
	}
	path := filepath.Join(tb.TempDir(), "libstandin.so")
	if err := os.WriteFile(path, library, 0o600); err != nil {
		tb.Fatalf("write the stand-in: %v, want success", err)
	}
	return path
}

// newStandin returns the path of a new stand-in and its state. It has one device without dma-buf
// support, which accepts every request and completes it with success.
func newStandin(tb testing.TB) (path string, s *standin) {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "state")
	if err := os.WriteFile(file, make([]byte, unsafe.Sizeof(standin{})), 0o600); err != nil {
		tb.Fatalf("write the state of the stand-in: %v, want success", err)
	}
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Fatalf("open the state of the stand-in: %v, want success", err)
	}
	defer unix.Close(fd)
	b, err := unix.Mmap(fd, 0, int(unsafe.Sizeof(standin{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		tb.Fatalf("map the state of the stand-in: %v, want success", err)
	}
	tb.Cleanup(func() { _ = unix.Munmap(b) })
	s = (*standin)(unsafe.Pointer(unsafe.SliceData(b)))
	s.devices, s.room = 1, math.MaxUint64
	s.failWith(verbDMABuf, syscall.EOPNOTSUPP)
	tb.Setenv("IBVERBX_TEST_STANDIN", file) // read when the library is loaded
	library, err := usualStandin()
	return placeStandin(tb, library, err), s
}

// loadStandin loads a new stand-in for the duration of the test.
func loadStandin(tb testing.TB, cfg rdmacore.Config) (*rdmacore.Library, *standin) {
	tb.Helper()
	path, s := newStandin(tb)
	cfg.Library = path
	lib, err := rdmacore.Load(cfg)
	if err != nil {
		tb.Fatalf("Load = %v, want the stand-in", err)
	}
	tb.Cleanup(func() {
		if err := lib.Close(); err != nil {
			tb.Errorf("close the library: %v", err)
		}
		for kind := range liveKinds {
			if n := s.live[kind]; n != 0 {
				tb.Errorf("%d objects of kind %d are alive at the end, want 0", n, kind)
			}
		}
	})
	return lib, s
}

// rig holds a connected QP and everything it depends on.
type rig struct {
	state *standin
	ctx   verbs.Context
	pd    verbs.PD
	cq    verbs.CQ
	waker *verbs.Waker
	qp    verbs.QP
	mem   *verbs.Memory
	mr    verbs.MR
}

func openStandin(tb testing.TB, cfg rdmacore.Config) (verbs.Context, *standin) {
	tb.Helper()
	lib, s := loadStandin(tb, cfg)
	return openFirst(tb, lib), s
}

// openFirst opens a stand-in's device for the duration of the test.
func openFirst(tb testing.TB, lib *rdmacore.Library) verbs.Context {
	tb.Helper()
	devices, err := lib.Devices()
	if err != nil {
		tb.Fatalf("Devices = %v, want the device of the stand-in", err)
	}
	ctx, err := devices[0].Open()
	if err != nil {
		tb.Fatalf("Open = %v, want a context", err)
	}
	tb.Cleanup(func() {
		if err := ctx.Close(); err != nil {
			tb.Errorf("close the context: %v", err)
		}
	})
	return ctx
}

func newRig(tb testing.TB, cfg rdmacore.Config, typ verbs.QPType) *rig {
	tb.Helper()
	lib, s := loadStandin(tb, cfg)
	return newRigOn(tb, lib, s, typ)
}

func newRigOn(tb testing.TB, lib *rdmacore.Library, s *standin, typ verbs.QPType) *rig {
	tb.Helper()
	r := &rig{state: s, waker: verbs.NewWaker(), ctx: openFirst(tb, lib)}
	var err error
	r.pd, err = r.ctx.AllocPD()
	ok(tb, err, "AllocPD")
	r.cq, err = r.ctx.CreateCQ(verbs.CQConfig{Depth: 512, Waker: r.waker})
	ok(tb, err, "CreateCQ")
	r.qp = r.newQP(tb, verbs.QPConfig{Type: typ})
	ok(tb, connect(r.qp), "Connect")
	r.mem, err = verbs.AllocMemory(4096, nil)
	ok(tb, err, "AllocMemory")
	r.mr, err = r.pd.RegisterMemory(r.mem, verbs.AccessAll)
	ok(tb, err, "RegisterMemory")
	tb.Cleanup(func() {
		ok(tb, r.mr.Close(), "Close of the MR")
		ok(tb, r.mem.Free(), "Free")
	})
	return r
}

// newQP creates a QP with queues of 512 requests of 4 elements and 64 inline bytes.
func (r *rig) newQP(tb testing.TB, cfg verbs.QPConfig) verbs.QP {
	tb.Helper()
	cfg.SendCQ, cfg.RecvCQ, cfg.MaxSendWR, cfg.MaxSendSGE, cfg.MaxRecvSGE, cfg.MaxInline = r.cq, r.cq, 512, 4, 4, 64
	if cfg.SRQ == nil {
		cfg.MaxRecvWR = 512
	}
	qp, err := r.pd.CreateQP(cfg)
	ok(tb, err, "CreateQP")
	return qp
}

// connect connects a QP to itself.
func connect(qp verbs.QP) error {
	ep, err := qp.Endpoint()
	if err != nil {
		return err
	}
	return qp.Connect(ep)
}

func ok(tb testing.TB, err error, what string) {
	tb.Helper()
	if err != nil {
		tb.Fatalf("%s = %v, want nil", what, err)
	}
}
