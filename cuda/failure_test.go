//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"ibverbx/cuda"
	"ibverbx/verbs"
)

// everything calls every function once and returns the first error. It releases all resources, even
// after an error, unless releasing fails.
func everything(d *cuda.Driver) (err error) {
	if _, err := d.Devices(); err != nil {
		return err
	}
	g, err := d.Open(0)
	if err != nil {
		return err
	}
	closing := func(f func() error) {
		if e := f(); err == nil {
			err = e
		}
	}
	defer closing(g.Close)
	m, err := g.Alloc(10_000)
	if err != nil {
		return err
	}
	defer closing(m.Free)
	part, err := g.Adopt(m.Addr(), 100)
	if err != nil {
		return err
	}
	defer closing(part.Free)
	host, err := verbs.AllocMemory(100, nil)
	if err != nil {
		return err
	}
	defer closing(host.Free)
	pin, err := g.Pin(host)
	if err != nil {
		return err
	}
	defer closing(pin.Close)
	file, _, err := m.DMABuf()
	if err != nil {
		return err
	}
	defer closing(file.Close)
	h, err := g.IPCHandle(m)
	if err != nil {
		return err
	}
	opened, err := g.OpenIPC(h)
	if err != nil {
		return err
	}
	defer closing(opened.Free)
	s, err := g.NewStream()
	if err != nil {
		return err
	}
	defer closing(s.Close)
	return errors.Join(s.Write(m, 0, host.Bytes()), s.Synchronize())
}

// TestEveryCallCanFail: whichever call of the driver fails, and whichever time, the caller gets an
// error with CUDA's name and text. Once calls succeed again, everything can be released and used
// again.
func TestEveryCallCanFail(t *testing.T) {
	names := []string{
		callDevice: "cuDeviceGet", callName: "cuDeviceGetName", callTotal: "cuDeviceTotalMem", callAttribute: "cuDeviceGetAttribute", callPCI: "cuDeviceGetPCIBusId",
		callRetain: "cuDevicePrimaryCtxRetain", callPush: "cuCtxPushCurrent", callAlloc: "cuMemAlloc", callRange: "cuMemGetAddressRange",
		callPointer: "cuPointerGetAttribute", callPin: "cuMemHostRegister", callCopy: "cuMemcpyHtoDAsync", callStream: "cuStreamCreate",
		callDMABuf: "cuMemGetHandleForAddressRange", callIPCGet: "cuIpcGetMemHandle", callIPCOpen: "cuIpcOpenMemHandle",
	}
	for call, name := range names {
		if name == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			d, f := load(t)
			ok(t, everything(d), "everything")
			times := f.calls[call]
			if call == callPush { // calls that release resources fail too
				times = 1
			}
			for i := range times {
				f.calls[call], f.after[call], f.fail[call] = 0, i, 304
				err := everything(d)
				f.failWith(call, 0)
				f.settled(t)
				var e *cuda.Error
				if optional := call == callAttribute && (i%4 > 1); optional && err == nil {
					continue // these attributes are too new for some drivers
				}
				if !errors.As(err, &e) || e.Call != name || e.Code != 304 || !strings.Contains(err.Error(), "CUDA_ERROR_OPERATING_SYSTEM") || !strings.Contains(err.Error(), "text of the code") {
					t.Errorf("call %d: %v, want a failed %s in CUDA's words", i, err, name)
				}
			}
			ok(t, everything(d), "everything at the end")
			f.settled(t)
		})
	}
}

// TestReleaseCanFail: a resource whose release fails stays open, and can be released later.
func TestReleaseCanFail(t *testing.T) {
	g, f := open(t)
	m, err := g.Alloc(100)
	ok(t, err, "Alloc")
	s, err := g.NewStream()
	ok(t, err, "NewStream")
	host, err := verbs.AllocMemory(100, nil)
	ok(t, err, "AllocMemory")
	f.failWith(callPin, 304)
	if _, err := g.Pin(host); err == nil {
		t.Error("Pin with a failed call = nil, want its error")
	}
	f.failWith(callPin, 0)
	pin, err := g.Pin(host)
	ok(t, err, "Pin")
	for _, tt := range []struct {
		call  int
		close func() error
	}{{callUnpin, pin.Close}, {callSync, s.Close}, {callDestroy, s.Close}, {callFree, m.Free}, {callDestroy, g.Close}} {
		f.failWith(tt.call, 304)
		if err := tt.close(); err == nil || errors.Is(err, verbs.ErrBusy) {
			t.Errorf("release with a failed call %d = %v, want its error", tt.call, err)
		}
		f.failWith(tt.call, 0)
		if tt.call != callSync {
			ok(t, tt.close(), "release")
			ok(t, tt.close(), "second release")
		}
	}
	ok(t, host.Free(), "Free")
	for what, err := range map[string]error{
		"Alloc": errorOf(g.Alloc(1)), "Adopt": errorOf(g.Adopt(1, 1)), "NewStream": errorOf(g.NewStream()), "OpenIPC": errorOf(g.OpenIPC(cuda.IPCHandle{Size: 1})),
		"Pin": errorOf(g.Pin(host)), "Write": s.Write(m, 0, nil), "Synchronize": s.Synchronize(), "WriteAt": errorOf(m.WriteAt(nil, 0)),
		"IPCHandle": errorOf(g.IPCHandle(m)),
	} {
		if !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("%s after Close = %v, want ErrClosed", what, err)
		}
	}
}

// TestFreeAfterFailedCopy: after a failed synchronization, a copy may still use the memory. Free
// synchronizes again, and frees the memory if that succeeds.
func TestFreeAfterFailedCopy(t *testing.T) {
	g, f := open(t)
	m, err := g.Alloc(100)
	ok(t, err, "Alloc")
	f.failWith(callSync, 304)
	if _, err := m.WriteAt([]byte("abcd"), 0); err == nil {
		t.Error("WriteAt with a failed synchronization = nil, want its error")
	}
	if err := m.Free(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Free while the synchronization fails = %v, want ErrBusy", err)
	}
	f.failWith(callSync, 0)
	ok(t, m.Free(), "Free")
}

// TestOutOfMemory: Alloc returns ErrOutOfMemory on a full GPU, and freed memory can be allocated
// again.
func TestOutOfMemory(t *testing.T) {
	g, _ := open(t)
	m, err := g.Alloc(40 << 20)
	ok(t, err, "Alloc")
	_, err = g.Alloc(40 << 20)
	want := "allocate memory on cuda:0: 41943040 bytes: limit reached: out of memory: cuMemAlloc: out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)"
	if !errors.Is(err, cuda.ErrOutOfMemory) || !errors.Is(err, verbs.ErrLimit) || err.Error() != want {
		t.Errorf("Alloc = %v, want %s", err, want)
	}
	ok(t, m.Free(), "Free")
	m, err = g.Alloc(40 << 20)
	ok(t, err, "Alloc after Free")
	ok(t, m.Free(), "Free")
}

// TestDeviceLost: losing the GPU during a copy fails the copy. Everything is released, and reports
// the loss once. The codes are the ones after which CUDA rejects all further work of the process.
func TestDeviceLost(t *testing.T) {
	for _, code := range []int64{4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810} {
		t.Run(strconv.FormatInt(code, 10), func(t *testing.T) { checkLost(t, code) })
	}
}

func checkLost(t *testing.T, code int64) {
	t.Helper()
	g, f := open(t)
	m, err := g.Alloc(100)
	ok(t, err, "Alloc")
	s, err := g.NewStream()
	ok(t, err, "NewStream")
	host, err := verbs.AllocMemory(100, nil)
	ok(t, err, "AllocMemory")
	pin, err := g.Pin(host)
	ok(t, err, "Pin")
	ok(t, s.Write(m, 0, host.Bytes()), "Write")
	reopen := f.shut()
	done := make(chan error, 1)
	go func() { done <- s.Synchronize() }()
	f.awaitSynchronization(t, done)
	atomic.StoreInt64(&f.lost, code)
	reopen()
	for what, err := range map[string]error{
		"Synchronize": <-done, "WriteAt": errorOf(m.WriteAt([]byte("a"), 0)), "Alloc": errorOf(g.Alloc(1)),
		"Close of the stream": s.Close(), "Close of the pin": pin.Close(), "Free": m.Free(),
	} {
		if !errors.Is(err, cuda.ErrDeviceLost) || !errors.Is(err, verbs.ErrDeviceFatal) {
			t.Errorf("%s = %v, want ErrDeviceLost", what, err)
		}
	}
	if f.copied != 0 {
		t.Errorf("%d copies were executed, want none", f.copied)
	}
	for _, again := range []func() error{s.Close, pin.Close, m.Free, host.Free, g.Close, g.Close} {
		ok(t, again(), "another Close")
	}
}

// TestNoGPU: a driver without a GPU, and one that cannot be initialized.
func TestNoGPU(t *testing.T) {
	for code, want := range map[int64]error{100: cuda.ErrNoDevice, 801: verbs.ErrNotSupported, 12345: nil} {
		path, f := standIn(t)
		f.failWith(callInit, code)
		_, err := cuda.Load(cuda.Config{Library: path})
		if err == nil || want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), "cuInit") {
			t.Errorf("Load with code %d = %v, want %v", code, err, want)
		}
	}
}
