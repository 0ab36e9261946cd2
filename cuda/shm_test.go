//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/cuda"
	"ibverbx/verbs"
)

// regionNames names the regions of a side.
var regionNames = [farRegions]string{"device", "small", "host"}

// checkShm copies between two processes in all combinations, and checks that the GPU does so
// without packets where possible.
func checkShm(t *testing.T, g *cuda.GPU, env []string) {
	t.Helper()
	n := startFar(t, g, env)
	for theirs := range farRegions {
		n.awaitShared(theirs)
	}
	for own := range farRegions {
		for theirs := range farRegions {
			for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpRDMAWriteWithImm} {
				for _, length := range []int{1, 100, 2900, farSize - 7} {
					if length > min(n.mem[own].Len()-3, int(farLen(theirs))-7) {
						continue
					}
					t.Run(fmt.Sprintf("%s/%s/%v/%d", regionNames[own], regionNames[theirs], op, length), func(t *testing.T) {
						n.checkRequest(t, n.request(op, own, theirs, length), own, theirs)
					})
				}
			}
		}
	}
	t.Run("batch", n.checkBatch)
	t.Run("end", func(t *testing.T) {
		before := n.ask(order{Do: "sum", Region: inDevice}).Sum
		if s := n.do(n.request(verbs.OpRDMAWrite, inDevice, inDevice, farSize-6)); s != verbs.StatusRemAccessErr {
			t.Errorf("a WRITE over the end = %v, want %v", s, verbs.StatusRemAccessErr)
		}
		if n.ask(order{Do: "sum", Region: inDevice}).Sum != before {
			t.Error("a WRITE that was refused has changed the memory")
		}
	})
}

// farLen is the length of a region.
func farLen(region int) uint64 {
	if region == inSmall {
		return 3000
	}
	return farSize
}

// fillAs returns the bytes that end.fill writes.
func fillAs(region, seed int) []byte {
	b := make([]byte, farLen(region))
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

// checkRequest executes a request and checks all bytes of both regions.
func (n *near) checkRequest(t *testing.T, wr verbs.SendWR, own, theirs int) {
	t.Helper()
	mine, err := n.fill(own, 1)
	ok(t, err, "fill")
	n.ask(order{Do: "fill", Region: theirs, Seed: 2})
	yours, length := fillAs(theirs, 2), int(wr.SGE[0].Length)
	wr.Imm = uint32(length)
	was, sent := n.nic.Stats().Direct, n.nic.Stats().PacketsSent
	if s := n.do(wr); s != verbs.StatusSuccess {
		t.Fatalf("the request ends with %v, want success", s)
	}
	packets := uint64(0)
	if wr.Opcode == verbs.OpRDMAWriteWithImm {
		packets = 1
		if imm := n.ask(order{Do: "receive"}).Imm; imm != wr.Imm {
			t.Errorf("the immediate is %d, want %d", imm, wr.Imm)
		}
	}
	want := uint64(1)
	if theirs == inHost && own != inHost && length < 64<<10 { // the host region is not pinned for the GPU
		want, packets = 0, n.nic.Stats().PacketsSent-sent
	}
	if d, p := n.direct(was), n.nic.Stats().PacketsSent-sent; d != want || p != packets {
		t.Errorf("%d direct requests and %d packets, want %d and %d", d, p, want, packets)
	}
	if wr.Opcode == verbs.OpRDMARead {
		copy(mine[3:3+length], yours[7:])
	} else {
		copy(yours[7:7+length], mine[3:])
	}
	got := make([]byte, len(mine))
	_, err = n.mem[own].ReadAt(got, 0)
	ok(t, err, "ReadAt")
	if !bytes.Equal(got, mine) {
		t.Error("this side's memory has other bytes")
	}
	if n.ask(order{Do: "sum", Region: theirs}).Sum != sha256.Sum256(yours) {
		t.Error("the memory of the other process has other bytes")
	}
}

// checkBatch writes 200 blocks with one post.
func (n *near) checkBatch(t *testing.T) {
	mine, err := n.fill(inDevice, 5)
	ok(t, err, "fill")
	n.ask(order{Do: "fill", Region: inDevice, Seed: 6})
	want, wrs := fillAs(inDevice, 6), make([]verbs.SendWR, 200)
	for i := range wrs {
		wrs[i] = n.request(verbs.OpRDMAWrite, inDevice, inDevice, 1000)
		wrs[i].SGE[0].Addr += uint64(1000 * i)
		wrs[i].RemoteAddr += uint64(1000 * (199 - i))
		wrs[i].Flags = 0
		copy(want[7+1000*(199-i):][:1000], mine[3+1000*i:])
	}
	wrs[199].Flags = verbs.SendSignaled
	was := n.nic.Stats().Direct
	if s := n.do(wrs...); s != verbs.StatusSuccess || n.direct(was) != 200 {
		t.Errorf("the batch ends with %v after %d direct requests, want success and 200", s, n.direct(was))
	}
	if n.ask(order{Do: "sum", Region: inDevice}).Sum != sha256.Sum256(want) {
		t.Error("the memory of the other process has other bytes")
	}
}

// TestShm runs checkShm on the stand-in.
func TestShm(t *testing.T) {
	g, f := openNear(t)
	env, far := standInEnv(t)
	t.Run("all", func(t *testing.T) {
		checkShm(t, g, env)
		if f.calls[callIPCOpen] != 2 || f.opened != 2 {
			t.Errorf("%d handles were opened and %d are open, want 2", f.calls[callIPCOpen], f.opened)
		}
	})
	f.settled(t)
	far.settled(t)
}

// TestGPUShm runs checkShm on a GPU.
func TestGPUShm(t *testing.T) { checkShm(t, onGPUNear(t), nil) }

// onGPUNear opens the machine's GPU for startFar, which closes it.
func onGPUNear(tb testing.TB) *cuda.GPU {
	tb.Helper()
	skipWithoutGPU(tb)
	g, err := cuda.Open(0)
	ok(tb, err, "Open")
	return g
}

// openNear opens a GPU of a new stand-in for startFar, which closes it.
func openNear(tb testing.TB) (*cuda.GPU, *fake) {
	tb.Helper()
	d, f := load(tb)
	g, err := d.Open(0)
	ok(tb, err, "Open")
	return g, f
}

// TestShmFallsBack: packets carry data between regions that no GPU can copy directly.
func TestShmFallsBack(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(near, far *fake)
	}{
		{"no handle", func(_, far *fake) { far.failWith(callIPCGet, 801) }},
		{"another GPU without peer access", func(near, _ *fake) { near.failWith(callIPCOpen, 217) }},
		{"a handle that is not valid", func(near, _ *fake) { near.failWith(callIPCOpen, 1) }},
		{"the allocation is not known", func(near, _ *fake) { near.fail[callRange], near.after[callRange] = 1, 3 }},
		{"copies of the other's memory fail", func(near, _ *fake) { near.noAlias = 1 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, f := openNear(t)
			env, far := standInEnv(t)
			tt.change(f, far)
			t.Run("all", func(t *testing.T) {
				n := startFar(t, g, env)
				n.awaitShared(inHost) // the last region to become accessible
				was := n.nic.Stats().Direct
				for i := range 5 {
					mine, err := n.fill(inDevice, i)
					ok(t, err, "fill")
					length := 1 + i*50_000
					write, read := n.request(verbs.OpRDMAWrite, inDevice, inDevice, length), n.request(verbs.OpRDMARead, inHost, inDevice, length)
					write.Flags = 0
					if s := n.do(write, read); s != verbs.StatusSuccess {
						t.Fatalf("the requests end with %v, want success", s)
					}
					if !bytes.Equal(n.mem[inHost].Bytes()[3:3+length], mine[3:3+length]) {
						t.Fatal("a READ brings other bytes than the WRITE before it")
					}
				}
				if d := n.direct(was); d != 0 || f.opened > 1 {
					t.Errorf("%d direct requests and %d open handles, want none", d, f.opened)
				}
			})
			f.settled(t)
			far.settled(t)
		})
	}
}

// TestShmFails: whichever driver call fails, a request succeeds only if its bytes are in place.
func TestShmFails(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(near *fake)
		want   verbs.Status
	}{
		// The other process copies the packets of host memory to its GPU.
		{"queue", func(f *fake) { f.failWith(callCopy, 1) }, verbs.StatusSuccess},
		{"lost", func(f *fake) { atomic.StoreInt64(&f.lost, 719) }, verbs.StatusSuccess},
		// Copies may still be in progress.
		{"synchronize", func(f *fake) { f.failWith(callSync, 1) }, verbs.StatusGeneralErr},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, f := openNear(t)
			env, far := standInEnv(t)
			t.Run("all", func(t *testing.T) {
				n := startFar(t, g, env)
				n.awaitShared(inDevice)
				mine, err := n.fill(inHost, 1)
				ok(t, err, "fill")
				n.ask(order{Do: "fill", Region: inDevice, Seed: 2})
				yours := fillAs(inDevice, 2)
				tt.change(f)
				s := n.do(n.request(verbs.OpRDMAWrite, inHost, inDevice, 200_000))
				f.failWith(callCopy, 0)
				f.failWith(callSync, 0)
				if s != tt.want {
					t.Errorf("the WRITE ends with %v, want %v", s, tt.want)
				}
				copy(yours[7:][:200_000], mine[3:])
				if s == verbs.StatusSuccess && n.ask(order{Do: "sum", Region: inDevice}).Sum != sha256.Sum256(yours) {
					t.Error("a WRITE succeeds, and its bytes are not in place")
				}
			})
			f.settled(t)
			far.settled(t)
		})
	}
}

// TestShmLost: losing the GPU during a copy fails the request.
func TestShmLost(t *testing.T) {
	g, f := openNear(t)
	env, far := standInEnv(t)
	t.Run("all", func(t *testing.T) {
		n := startFar(t, g, env)
		n.awaitShared(inDevice)
		done := n.held(f, n.request(verbs.OpRDMARead, inDevice, inDevice, 200_000))
		atomic.StoreInt64(&f.lost, 719)
		atomic.StoreInt64(&f.gate, 0)
		if s := <-done; s != verbs.StatusGeneralErr {
			t.Errorf("the READ ends with %v, want %v", s, verbs.StatusGeneralErr)
		}
	})
	f.settled(t)
	far.settled(t)
}

// held posts a request and returns once this side's GPU blocks in its synchronization, on f.gate.
func (n *near) held(f *fake, wr verbs.SendWR) <-chan verbs.Status {
	n.tb.Helper()
	atomic.StoreInt64(&f.gate, 1)
	done, waits := make(chan verbs.Status, 1), make(chan error, 1)
	go func() {
		s, err := n.try(wr)
		if err != nil {
			waits <- err
		}
		done <- s
	}()
	f.awaitSynchronization(n.tb, waits)
	return done
}

// awaitClosed waits until all handles are closed.
func (f *fake) awaitClosed(tb testing.TB) {
	tb.Helper()
	for deadline := time.Now().Add(time.Minute); atomic.LoadInt64(&f.opened) != 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			tb.Fatal("a handle is open a minute after its region is gone")
		}
	}
}

// TestShmDeregister: the other process deregisters and frees memory only after this side's copies
// have completed.
func TestShmDeregister(t *testing.T) {
	g, f := openNear(t)
	env, far := standInEnv(t)
	t.Run("all", func(t *testing.T) {
		n := startFar(t, g, env)
		n.awaitShared(inDevice)
		mine, err := n.fill(inDevice, 1)
		ok(t, err, "fill")
		done := n.held(f, n.request(verbs.OpRDMAWrite, inDevice, inDevice, farSize-7))
		n.give(order{Do: "close", Region: inDevice})
		closed := make(chan struct{})
		go func() {
			n.answer()
			close(closed)
		}()
		for range 300 {
			runtime.Gosched()
		}
		select {
		case <-closed:
			t.Error("the region is closed while a copy is under way")
		default:
		}
		atomic.StoreInt64(&f.gate, 0)
		if s := <-done; s != verbs.StatusSuccess {
			t.Errorf("the WRITE ends with %v, want success", s)
		}
		<-closed
		want := fillAs(inDevice, 0)
		clear(want)
		copy(want[7:], mine[3:3+farSize-7])
		if n.ask(order{Do: "sum", Region: inDevice}).Sum != sha256.Sum256(want) {
			t.Error("the bytes are not in place when the region is closed")
		}
		n.ask(order{Do: "free", Region: inDevice})
		f.awaitClosed(t)
		if s := n.do(n.request(verbs.OpRDMAWrite, inDevice, inDevice, 100)); s != verbs.StatusRemAccessErr {
			t.Errorf("a WRITE to the region that is gone = %v, want %v", s, verbs.StatusRemAccessErr)
		}
	})
	f.settled(t)
	far.settled(t)
}

// TestGPUOpenedOutlives: opened memory stays mapped for copies and for the kernel after the other
// process frees it or exits.
func TestGPUOpenedOutlives(t *testing.T) {
	n := startFar(t, onGPUNear(t), nil)
	h := n.ask(order{Do: "handle", Region: inDevice}).Handle
	opened, err := n.gpu.OpenMemory(h)
	ok(t, err, "OpenMemory")
	defer func() { ok(t, opened.Free(), "Free") }()
	twice, err := n.gpu.OpenMemory(h) // as two NICs do
	ok(t, err, "OpenMemory again")
	ok(t, twice.Free(), "Free of one of two")
	copies := make([]verbs.DeviceCopy, 64)
	for i := range copies {
		copies[i] = verbs.DeviceCopy{To: opened.Addr() + uint64(i*4096), From: n.mem[inDevice].Addr() + uint64(i*4096), Len: 4096}
	}
	check := func(when string, seed int) {
		want, err := n.fill(inDevice, seed)
		ok(t, err, "fill")
		ok(t, n.gpu.Copy(copies), "Copy "+when)
		got := make([]byte, farSize)
		if _, err := opened.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: ReadAt = %v, or other bytes", when, err)
		}
	}
	check("before", 1)
	n.ask(order{Do: "close", Region: inDevice})
	n.ask(order{Do: "free", Region: inDevice})
	n.ask(order{Do: "base"})
	check("after the memory was freed", 2)
	ok(t, n.cmd.Process.Kill(), "Kill")
	_ = n.cmd.Wait() // it was killed
	check("after the end of the process", 3)
	if !n.gpu.HasKernel() {
		t.Error("the kernel is not loaded")
	}
}

// TestGPUShmFreed: the other process frees memory that this side has opened. Both GPUs stay usable.
func TestGPUShmFreed(t *testing.T) {
	n := startFar(t, onGPUNear(t), nil)
	n.awaitShared(inDevice)
	n.awaitShared(inSmall)
	for _, region := range []int{inDevice, inSmall} {
		n.ask(order{Do: "close", Region: region})
		n.ask(order{Do: "free", Region: region})
	}
	want, err := n.fill(inDevice, 4)
	ok(t, err, "fill")
	if s := n.do(n.request(verbs.OpRDMAWrite, inDevice, inHost, farSize-7)); s != verbs.StatusSuccess {
		t.Errorf("a WRITE from the GPU = %v, want success", s)
	}
	if s := n.do(n.request(verbs.OpRDMARead, inHost, inHost, farSize-7)); s != verbs.StatusSuccess || !bytes.Equal(n.mem[inHost].Bytes()[3:][:farSize-7], want[3:][:farSize-7]) {
		t.Errorf("a READ = %v, or other bytes", s)
	}
	if s := n.do(n.request(verbs.OpRDMAWrite, inDevice, inSmall, 100)); s != verbs.StatusRemAccessErr {
		t.Errorf("a WRITE to the region that is gone = %v, want %v", s, verbs.StatusRemAccessErr)
	}
}

// checkShmKilled kills the other process during requests. They complete, eventually with an error,
// and the GPU stays usable. closed waits until the opened memory is closed.
func checkShmKilled(t *testing.T, g *cuda.GPU, env []string, during func(n *near), closed func()) {
	t.Helper()
	n := startFar(t, g, env)
	n.awaitShared(inDevice)
	during(n)
	s := verbs.StatusSuccess
	for s == verbs.StatusSuccess {
		s = n.do(n.request(verbs.OpRDMAWrite, inDevice, inDevice, farSize-7))
	}
	if s != verbs.StatusRetryExcErr {
		t.Errorf("a request to a process that was killed ends with %v, want %v", s, verbs.StatusRetryExcErr)
	}
	if closed != nil {
		closed()
	}
	want, err := n.fill(inDevice, 3)
	ok(t, err, "fill after the end of the other process")
	got := make([]byte, len(want))
	if _, err := n.mem[inDevice].ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("ReadAt after the end of the other process = %v, or other bytes", err)
	}
}

// TestShmKilled runs it on the stand-in: the process is killed during a copy.
func TestShmKilled(t *testing.T) {
	g, f := openNear(t)
	env, _ := standInEnv(t)
	t.Run("all", func(t *testing.T) {
		checkShmKilled(t, g, env, func(n *near) {
			done := n.held(f, n.request(verbs.OpRDMAWrite, inDevice, inDevice, farSize-7))
			ok(t, n.cmd.Process.Kill(), "Kill")
			atomic.StoreInt64(&f.gate, 0)
			if s := <-done; s != verbs.StatusSuccess && s != verbs.StatusRetryExcErr {
				t.Errorf("the WRITE ends with %v, want success or %v", s, verbs.StatusRetryExcErr)
			}
		}, func() { f.awaitClosed(t) })
	})
	f.settled(t)
}

// TestGPUShmKilled runs it on a GPU.
func TestGPUShmKilled(t *testing.T) {
	checkShmKilled(t, onGPUNear(t), nil, func(n *near) {
		go func() { _ = n.cmd.Process.Kill() }()
	}, nil)
}
