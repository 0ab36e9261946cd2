//go:build linux

package softnic_test

import (
	"bytes"
	"os"
	"runtime"
	"testing"
	"time"

	"ibverbx/verbs"
)

// TestShmTwoProcesses: a WRITE, a READ and notified WRITEs between two processes.
func TestShmTwoProcesses(t *testing.T) {
	s, _ := startFar(t, shmEcho)
	const size = 1 << 20
	half := s.mem.Bytes()[size : 2*size]
	for i := range size {
		s.mem.Bytes()[i] = byte(i*7 + i>>8)
	}
	s.send([]verbs.SendWR{s.request(verbs.OpRDMAWrite, size)})
	s.await(1)
	wr := s.request(verbs.OpRDMARead, size)
	wr.SGE[0].Addr += size
	s.send([]verbs.SendWR{wr})
	s.await(1)
	if !bytes.Equal(half, s.mem.Bytes()[:size]) {
		t.Error("a READ does not return what a WRITE has put into the other process")
	}
	s.receive(make([]verbs.RecvWR, 64))
	s.pingPong(1000, false)
	s.pingPong(100, true)
}

// TestShmKernelCopies: the kernel copies to and from another process's memory without a file. If the
// system forbids that, packets carry the data.
func TestShmKernelCopies(t *testing.T) {
	s, _ := startFar(t, shmPlain)
	const size = 1 << 20
	half := s.mem.Bytes()[size : 2*size]
	for k := 0; ; k++ {
		was := s.nic.Stats().Direct
		for i := range size {
			s.mem.Bytes()[i] = byte(i*7 + i>>8 + k)
		}
		requests := []verbs.SendWR{s.request(verbs.OpRDMAWrite, 0), s.request(verbs.OpRDMARead, 0)}
		for i := range requests { // SGEs of different lengths, one of them empty
			addr := s.mr.Addr() + uint64(i*size)
			requests[i].SetSGE(verbs.SGE{Addr: addr, Length: 1000, LKey: s.mr.LKey()}, verbs.SGE{LKey: s.mr.LKey()}, verbs.SGE{Addr: addr + 1000, Length: size - 1000, LKey: s.mr.LKey()})
		}
		s.send(requests)
		s.await(2)
		if !bytes.Equal(half, s.mem.Bytes()[:size]) {
			t.Fatal("a READ does not return what a WRITE has put into the other process")
		}
		if !s.kernel {
			t.Skip("the system does not allow process_vm_readv; packets were right")
		}
		if s.nic.Stats().Direct == was+2 {
			break
		}
		if k == 1000 { // the far side may not have announced its region before
			t.Fatal("the kernel has not copied")
		}
	}
}

// TestShmPeerKilled: a process killed at any point leaves no lock held. The other side's requests fail
// with RETRY_EXC_ERR because the kernel closes the socket: the QPs have no timeout. On an idle machine
// that takes at most 50 ms, so only the minimum over all runs is checked.
func TestShmPeerKilled(t *testing.T) {
	least := time.Hour
	defer func() {
		if least > 50*time.Millisecond && !t.Failed() {
			t.Errorf("a death was reported after %v or more, want within 50 ms", least)
		}
	}()
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpSend, verbs.OpRDMAWriteWithImm, verbs.OpAtomicFetchAndAdd} {
		for _, pause := range []time.Duration{0, 100 * time.Microsecond, 3 * time.Millisecond} {
			t.Run(op.String()+" "+pause.String(), func(t *testing.T) {
				s, far := startFar(t, shmEcho)
				s.receive(make([]verbs.RecvWR, 64))
				killed := make(chan time.Time, 1)
				go func() {
					time.Sleep(pause)
					_ = far.Process.Signal(os.Kill)
					killed <- time.Now()
				}()
				n := 64 << 10
				if op == verbs.OpAtomicFetchAndAdd {
					n = 8
				}
				wrs := []verbs.SendWR{s.request(op, n)}
				status := verbs.StatusSuccess
				for posted, done := 0, 0; status == verbs.StatusSuccess; {
					if posted-done < 16 {
						s.send(wrs)
						posted++
					}
					for _, wc := range s.poll() {
						if wc.Opcode == op.WC() {
							done++
						}
						if wc.Opcode == op.WC() && wc.Status != verbs.StatusSuccess {
							status = wc.Status
							break
						}
					}
				}
				if status != verbs.StatusRetryExcErr {
					t.Errorf("a request to a process that was killed ends with %v, want %v", status, verbs.StatusRetryExcErr)
				}
				took := time.Since(<-killed)
				t.Logf("reported %v after the kill", took)
				least = min(least, took)
				must(t, s.mr.Close())
			})
		}
	}
}

// TestShmPeerKilledInside: MR.Close returns even if a process is killed while writing to local memory.
// The memory does not change afterwards.
func TestShmPeerKilledInside(t *testing.T) {
	noRaces(t)
	for k, pause := range []time.Duration{0, 100 * time.Microsecond, time.Millisecond, 0, 0} {
		mode := shmFlood
		if k >= 3 {
			mode = shmChild
		}
		s, far := startFar(t, mode)
		if mode == shmChild && !s.kernel {
			t.Skip("the system does not allow process_vm_readv, and nothing else tells of the end of a process whose socket lives")
		}
		for last := len(s.mem.Bytes()) - 4096; s.mem.Bytes()[last] == 0; {
			runtime.Gosched()
		}
		go func() { _ = far.Process.Signal(os.Kill) }()
		time.Sleep(pause)
		must(t, s.mr.Close())
		after := bytes.Clone(s.mem.Bytes())
		far.end()
		if !bytes.Equal(after, s.mem.Bytes()) {
			t.Errorf("killed %v before MR.Close: the memory changes after MR.Close", pause)
		}
	}
}

// TestShmPeerKilledAsleep: a sleeping program is notified of the peer's death, too.
func TestShmPeerKilledAsleep(t *testing.T) {
	s, far := startFar(t, shmIdle) // it does not post receives, so a SEND waits
	s.send([]verbs.SendWR{s.request(verbs.OpSend, 8)})
	go func() { _ = far.Process.Signal(os.Kill) }()
	if wcs := s.doze(t.Context()); len(wcs) != 1 || wcs[0].Status != verbs.StatusRetryExcErr {
		t.Errorf("the completions are %+v, want one with %v", wcs, verbs.StatusRetryExcErr)
	}
	if s.qp.State() != verbs.StateErr {
		t.Errorf("the QP is in %v, want ERR", s.qp.State())
	}
}

// TestShmPeerKilledSocketKept: requests to a killed process fail even if another process keeps its socket
// open, and even if they need only the shared memory, which still exists.
func TestShmPeerKilledSocketKept(t *testing.T) {
	noRaces(t)
	s, far := startFar(t, shmChild)
	if !s.kernel {
		t.Skip("the system does not allow process_vm_readv, and nothing else tells of the end of a process whose socket lives")
	}
	must(t, far.Process.Signal(os.Kill))
	wrs := []verbs.SendWR{s.request(verbs.OpRDMAWrite, 64<<10)}
	wrs[0].RemoteAddr += 1 << 20
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
		s.send(wrs)
		wcs := s.poll()
		for len(wcs) == 0 {
			wcs = s.poll()
		}
		if wcs[0].Status == verbs.StatusRetryExcErr {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("a request to a process that was killed ends with %v, want %v", wcs[0].Status, verbs.StatusRetryExcErr)
		}
	}
}
