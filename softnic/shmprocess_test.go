//go:build linux

package softnic_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// shmFarEnv selects the far side's behavior. If it is set, this test binary is the far side of a two-process
// test: its socket is descriptor 3, and cards are exchanged over the standard streams.
const shmFarEnv = "IBVERBX_TEST_SHM_FAR_SIDE"

// What a far side does.
const (
	shmIdle  = "idle"  // idle: its memory is written and read
	shmEcho  = "echo"  // polls, and responds to each immediate with an immediate
	shmSleep = "sleep" // the same, but sleeps in between
	shmFlood = "flood" // writes to the near side's memory without end
	shmPlain = "plain" // idle, with memory that is not file-backed
	shmNear  = "near"  // the same, on a UDPLink with SharedMemory
	shmTalk  = "talk"  // echo, on a UDPLink with SharedMemory
	shmChild = "child" // flood, and a child of the process has its socket too
)

// shmDepth is the depth of the queues of a side.
const shmDepth = 1024

// shmCard is the message that each side sends the other.
type shmCard struct {
	Endpoint verbs.Endpoint
	Addr     uint64
	RKey     uint32
}

// shmSide is a NIC on a ShmLink, with one QP and one region.
type shmSide struct {
	tb    testing.TB
	nic   *softnic.NIC
	ctx   verbs.Context
	pd    verbs.PD
	cq    verbs.CQ
	waker *verbs.Waker
	qp    verbs.QP
	mem   *verbs.Memory
	mr    verbs.MR
	peer  shmCard
	// kernel reports whether the kernel can copy to the far side's memory.
	kernel bool
	wcs    [64]verbs.WC
}

func newShmSide(tb testing.TB, link softnic.Link, size int) *shmSide {
	tb.Helper()
	return newShmSideWith(tb, link, size, &verbs.MemoryConfig{Shared: true})
}

// newShmSideWith returns a side with memory of the given kind.
func newShmSideWith(tb testing.TB, link softnic.Link, size int, cfg *verbs.MemoryConfig) *shmSide {
	tb.Helper()
	s := &shmSide{tb: tb, waker: verbs.NewWaker()}
	s.nic, s.ctx, s.pd = plug(tb, link)
	s.mem, s.mr = memoryWith(tb, s.pd, size, cfg)
	var err error
	s.cq, err = s.ctx.CreateCQ(verbs.CQConfig{Depth: 4 * shmDepth, Waker: s.waker})
	must(tb, err)
	path := verbs.PathConfig{AckTimeout: verbs.ExplicitZero} // a request completes only by a response or the peer's exit
	if _, udp := link.(*softnic.UDPLink); udp {
		path.AckTimeout = 14 // 67 ms
	}
	s.qp, err = s.pd.CreateQP(verbs.QPConfig{
		Type: verbs.RC, MaxSendWR: shmDepth, MaxRecvWR: shmDepth, MaxSendSGE: 4, SendCQ: s.cq, RecvCQ: s.cq, Path: path,
	})
	must(tb, err)
	return s
}

func (s *shmSide) card() shmCard {
	e, err := s.qp.Endpoint()
	must(s.tb, err)
	return shmCard{Endpoint: e, Addr: s.mem.Addr(), RKey: s.mr.RKey()}
}

func (s *shmSide) connect(peer shmCard) {
	s.tb.Helper()
	s.peer = peer
	must(s.tb, s.qp.Connect(peer.Endpoint))
}

// request returns a signaled request for the first n bytes.
func (s *shmSide) request(op verbs.Opcode, n int) verbs.SendWR {
	wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: s.peer.Addr, RKey: s.peer.RKey}
	wr.SetSGE(verbs.SGE{Addr: s.mr.Addr(), Length: uint32(n), LKey: s.mr.LKey()})
	return wr
}

// notice returns a notified write of 8 bytes, at a different offset from the peer's own.
func (s *shmSide) notice() verbs.SendWR {
	wr := s.request(verbs.OpRDMAWriteWithImm, 8)
	wr.RemoteAddr += 4096
	return wr
}

// poll returns the available completions.
func (s *shmSide) poll() []verbs.WC {
	n, err := s.cq.Poll(s.wcs[:])
	if err != nil { // must is slower than a poll, because of Helper
		s.tb.Fatal(err)
	}
	return s.wcs[:n]
}

// next returns the available completions, or sleeps until one arrives.
func (s *shmSide) next(ctx context.Context, sleep bool) []verbs.WC {
	if sleep {
		return s.doze(ctx)
	}
	return s.poll()
}

// receive posts receives.
func (s *shmSide) receive(wrs []verbs.RecvWR) {
	if n, err := s.qp.PostRecv(wrs); n != len(wrs) {
		s.tb.Fatalf("PostRecv = %d, %v, want %d", n, err, len(wrs))
	}
}

// send posts requests.
func (s *shmSide) send(wrs []verbs.SendWR) {
	if n, err := s.qp.PostSend(wrs); n != len(wrs) {
		s.tb.Fatalf("PostSend = %d, %v, want %d", n, err, len(wrs))
	}
}

// doze waits for completions without polling.
func (s *shmSide) doze(ctx context.Context) []verbs.WC {
	for {
		if wcs := s.poll(); len(wcs) > 0 {
			return wcs
		}
		must(s.tb, s.cq.Arm(false))
		if wcs := s.poll(); len(wcs) > 0 {
			return wcs
		}
		if s.waker.Wait(ctx) != nil {
			return nil
		}
	}
}

// await polls until n requests have completed successfully.
func (s *shmSide) await(n int) {
	for turn := 1; n > 0; turn++ {
		for _, wc := range s.poll() {
			if wc.Status != verbs.StatusSuccess {
				s.tb.Fatal(wc.Err())
			}
			n--
		}
		if turn%64 == 0 { // seldom, for the sake of benchmarks
			runtime.Gosched() // to the goroutine that serves the peer
		}
	}
}

// fails polls until a request has completed, which must have the given status.
func (s *shmSide) fails(want verbs.Status) {
	s.tb.Helper()
	wcs := s.poll()
	for ; len(wcs) == 0; wcs = s.poll() {
		runtime.Gosched()
	}
	if wcs[0].Status != want {
		s.tb.Errorf("the request ends with %v, want %v", wcs[0].Status, want)
	}
}

// TestShmFarSide is the other process of the tests that need one.
func TestShmFarSide(t *testing.T) {
	mode := os.Getenv(shmFarEnv)
	if mode == "" {
		t.Skip("only for tests that start this binary again")
	}
	conn, err := net.FileConn(os.NewFile(3, "socket"))
	must(t, err)
	var link softnic.Link = nearLink(t, true)
	if mode != shmNear && mode != shmTalk {
		link, err = softnic.NewShmLink(conn.(*net.UnixConn))
		must(t, err)
	}
	cfg := &verbs.MemoryConfig{Shared: mode != shmPlain && mode != shmNear}
	s := newShmSideWith(t, link, shmFarMemory, cfg)
	out := json.NewEncoder(os.Stdout)
	must(t, out.Encode(s.card()))
	var card shmCard
	must(t, json.NewDecoder(os.Stdin).Decode(&card))
	s.connect(card)
	recvs := make([]verbs.RecvWR, shmDepth/2)
	for i := range recvs {
		recvs[i].SetSGE(verbs.SGE{Addr: s.mem.Addr() + 1<<20, Length: 1 << 20, LKey: s.mr.LKey()})
	}
	if mode == shmEcho || mode == shmSleep || mode == shmTalk {
		s.receive(recvs)
	}
	must(t, out.Encode(s.card())) // ready
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the near side exits
		cancel()
	}()
	switch mode {
	case shmIdle, shmPlain, shmNear:
		<-ctx.Done()
	case shmFlood, shmChild:
		s.flood(ctx)
	default:
		s.echo(ctx, recvs, mode == shmSleep)
	}
}

// flood writes other bytes each time, until a request fails.
func (s *shmSide) flood(ctx context.Context) {
	wrs := []verbs.SendWR{s.request(verbs.OpRDMAWrite, shmFarMemory)}
	for k := byte(1); ctx.Err() == nil; k++ {
		for i := 0; i < shmFarMemory; i += 4096 {
			s.mem.Bytes()[i] = k
		}
		s.send(wrs)
		wcs := s.poll()
		for len(wcs) == 0 && ctx.Err() == nil {
			wcs = s.poll()
		}
		if len(wcs) > 0 && wcs[0].Status != verbs.StatusSuccess {
			<-ctx.Done()
		}
	}
}

// echo responds to each immediate with an immediate.
func (s *shmSide) echo(ctx context.Context, recvs []verbs.RecvWR, sleep bool) {
	answer := []verbs.SendWR{s.notice()}
	for k := 0; ctx.Err() == nil; {
		wcs := s.next(ctx, sleep)
		for i := range wcs {
			if wcs[i].Status != verbs.StatusSuccess {
				return // the near side has exited
			}
			switch wcs[i].Opcode {
			case verbs.WCRecv:
				s.receive(recvs[:1])
			case verbs.WCRecvRDMAWithImm:
				answer[0].Imm, answer[0].Flags = wcs[i].Imm, 0
				if k++; k%shmSignaled == 0 {
					answer[0].Flags = verbs.SendSignaled
				}
				_, _ = s.qp.PostSend(answer) // the completion reports errors
				s.receive(recvs[:1])
			default:
			}
		}
	}
}

// nearLink returns a UDPLink whose NICs may discover neighbors on the host.
func nearLink(tb testing.TB, look bool) *softnic.UDPLink {
	tb.Helper()
	l, err := softnic.NewUDPLink(&softnic.UDPConfig{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.9")}, SharedMemory: look})
	must(tb, err)
	return l
}

// shmFarMemory is the size of the far side's region.
const shmFarMemory = 4 << 20

// shmFar is the other process.
type shmFar struct {
	*exec.Cmd
	in io.WriteCloser
}

// startFar starts another process and returns this side's end of the link to it.
func startFar(tb testing.TB, mode string) (*shmSide, *shmFar) {
	tb.Helper()
	a, b := socketPair(tb)
	file, err := b.File()
	must(tb, err)
	must(tb, b.Close())
	cmd := exec.Command(os.Args[0], "-test.run=^TestShmFarSide$")
	cmd.Env, cmd.ExtraFiles, cmd.Stderr = append(os.Environ(), shmFarEnv+"="+mode), []*os.File{file}, os.Stderr
	in, err := cmd.StdinPipe()
	must(tb, err)
	out, err := cmd.StdoutPipe()
	must(tb, err)
	must(tb, cmd.Start())
	if mode != shmChild {
		must(tb, file.Close())
	}
	far := &shmFar{cmd, in}
	tb.Cleanup(far.end)
	var s *shmSide
	if mode == shmNear || mode == shmTalk {
		must(tb, a.Close())
		s = newShmSide(tb, nearLink(tb, true), shmFarMemory)
	} else {
		link, err := softnic.NewShmLink(a)
		must(tb, err)
		s = newShmSide(tb, link, shmFarMemory)
		s.kernel = softnic.ReachesProcess(link)
	}
	var card shmCard
	cards := json.NewDecoder(out)
	must(tb, cards.Decode(&card))
	s.connect(card) // before the far side can send, so that retransmissions are not needed
	must(tb, json.NewEncoder(in).Encode(s.card()))
	must(tb, cards.Decode(&card)) // the far side is ready
	return s, far
}

// end stops the process and waits for its exit.
func (f *shmFar) end() {
	_ = f.in.Close()
	_ = f.Wait() // a killed process returns an error
}
