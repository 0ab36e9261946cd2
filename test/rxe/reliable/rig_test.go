package reliable_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/rdmacore"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// patience is the test timeout, which only a failing test reaches. The machine is emulated, on a possibly
// busy host.
const patience = 3 * time.Minute

// onePacket is a configuration whose chunks, including headers, fit in one packet each.
//
// rxe in Linux 6.1 fails a UC QP that has lost a packet other than the first of a message: the next message
// finds the last one unfinished and is dropped, and so is everything after it. With longer chunks every such
// loss fails a path. TestPathsEnd wants that; elsewhere it would only slow the tests down.
func onePacket() reliable.Config {
	return reliable.Config{Paths: 8, ChunkBytes: 4000, GiveUp: int64(patience), MinProbe: int64(20 * time.Millisecond)}
}

// run runs a command on the machine.
func run(tb testing.TB, name string, args ...string) {
	tb.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		tb.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// lose makes the netdevs lose one packet in a hundred until the end of the test.
func lose(tb testing.TB, netdevs ...string) {
	tb.Helper()
	needRXE(tb)
	for _, dev := range netdevs {
		run(tb, "tc", "qdisc", "add", "dev", dev, "root", "netem", "loss", "1%")
		tb.Cleanup(func() { run(tb, "tc", "qdisc", "del", "dev", dev, "root") })
	}
}

func needRXE(tb testing.TB) {
	tb.Helper()
	if os.Getenv("IBVERBX_TEST_RXE") != "1" {
		tb.Skip("needs the kernel's rxe devices: run test/rxe/all")
	}
}

// open returns a wrapped context on one of the machine's devices, closed at the end of the test.
func open(tb testing.TB, name string, cfg reliable.Config) verbs.Context {
	tb.Helper()
	needRXE(tb)
	lib, err := rdmacore.Load(rdmacore.Config{})
	enginetest.Must(tb, err)
	tb.Cleanup(func() { enginetest.Must(tb, lib.Close()) })
	devices, err := lib.Devices()
	enginetest.Must(tb, err)
	for _, d := range devices {
		if d.Name() != name {
			continue
		}
		inner, err := d.Open()
		enginetest.Must(tb, err)
		ctx, err := reliable.Wrap(inner, cfg)
		enginetest.Must(tb, err)
		tb.Cleanup(func() { enginetest.Must(tb, ctx.Close()) })
		return ctx
	}
	tb.Fatalf("there is no device %s among the %d of the machine", name, len(devices))
	return nil
}

// side is a wrapped context with a connected QP and memory.
type side struct {
	ctx verbs.Context
	cq  verbs.CQ
	qp  verbs.QP
	mem *verbs.Memory
	mr  verbs.MR
}

func newSide(tb testing.TB, device string, cfg reliable.Config, size int) *side {
	tb.Helper()
	s := &side{}
	var err error
	s.mem, err = verbs.AllocMemory(size, nil)
	enginetest.Must(tb, err)
	tb.Cleanup(func() { enginetest.Must(tb, s.mem.Free()) })
	s.ctx = open(tb, device, cfg)
	pd, err := s.ctx.AllocPD()
	enginetest.Must(tb, err)
	tb.Cleanup(func() { enginetest.Must(tb, pd.Close()) })
	s.mr, err = pd.RegisterMemory(s.mem, verbs.AccessAll)
	enginetest.Must(tb, err)
	tb.Cleanup(func() { enginetest.Must(tb, s.mr.Close()) })
	s.cq, err = s.ctx.CreateCQ(verbs.CQConfig{Depth: 1024})
	enginetest.Must(tb, err)
	tb.Cleanup(func() { enginetest.Must(tb, s.cq.Close()) })
	s.qp, err = pd.CreateQP(verbs.QPConfig{
		Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64,
	})
	enginetest.Must(tb, err)
	tb.Cleanup(func() { enginetest.Must(tb, s.qp.Close()) })
	return s
}

// newPair returns connected sides on rxe0 and rxe1.
func newPair(tb testing.TB, cfg reliable.Config, size int) (a, b *side) {
	tb.Helper()
	a, b = newSide(tb, "rxe0", cfg, size), newSide(tb, "rxe1", cfg, size)
	ea, err := a.qp.Endpoint()
	enginetest.Must(tb, err)
	eb, err := b.qp.Endpoint()
	enginetest.Must(tb, err)
	enginetest.Must(tb, a.qp.Connect(eb))
	enginetest.Must(tb, b.qp.Connect(ea))
	return a, b
}

func (s *side) sge(off, n int) verbs.SGE {
	return verbs.SGE{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}
}

func (s *side) fill(seed byte) {
	b := s.mem.Bytes()
	for i := range b {
		b[i] = byte(i>>8)*7 + byte(i)*13 + seed
	}
}

func (s *side) post(tb testing.TB, wr verbs.SendWR) {
	tb.Helper()
	if n, err := s.qp.PostSend([]verbs.SendWR{wr}); n != 1 {
		tb.Fatalf("PostSend = %d, %v, want 1", n, err)
	}
}

// wait polls for n successful completions. It lets rxe's kernel threads run in between.
func (s *side) wait(tb testing.TB, what string, n int) (got []verbs.WC) {
	tb.Helper()
	var wcs [16]verbs.WC
	for end := time.Now().Add(patience); len(got) < n; {
		k, err := s.cq.Poll(wcs[:min(len(wcs), n-len(got))])
		enginetest.Must(tb, err)
		for _, wc := range wcs[:k] {
			if wc.Err() != nil {
				tb.Fatalf("%s: completion %d is %v, want success", what, len(got), wc.Err())
			}
			got = append(got, wc)
		}
		if k == 0 {
			if time.Now().After(end) {
				tb.Fatalf("%s: %d completions of %d after %v", what, len(got), n, patience)
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	return got
}
