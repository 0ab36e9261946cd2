//go:build linux

package softnic_test

import (
	"context"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// near configures neighbors whose goroutines poll for packets for spin before they sleep.
func near(spin time.Duration) softnic.UDPConfig {
	return softnic.UDPConfig{Addrs: []netip.Addr{netip.MustParseAddr("127.0.0.9")}, SharedMemory: true, Spin: spin}
}

// countCapture counts packets.
type countCapture struct{ n atomic.Int32 }

func (c *countCapture) Packet(int64, netip.AddrPort, netip.AddrPort, uint16, uint8, uint8, ...[]byte) {
	c.n.Add(1)
}

// TestNeighborLines: SENDs to an awake neighbor are lines, which are not acknowledged. With captures,
// injected faults, an observer, or ICRCFull on either side, all of them are packets.
func TestNeighborLines(t *testing.T) {
	noRaces(t)
	const n = 50
	for name, c := range map[string]struct {
		mine, yours func(cfg *softnic.UDPConfig)
		then        func(x, y *shmSide, link *softnic.UDPLink)
		lines       bool
	}{
		"plain":           {lines: true},
		"capture":         {mine: func(cfg *softnic.UDPConfig) { cfg.Capture = &countCapture{} }},
		"peer's capture":  {yours: func(cfg *softnic.UDPConfig) { cfg.CapturePlain = &countCapture{} }},
		"impairment":      {mine: func(cfg *softnic.UDPConfig) { cfg.Impairment.Delay = 1 }},
		"full ICRC":       {mine: func(cfg *softnic.UDPConfig) { cfg.ICRC = softnic.ICRCFull }},
		"peer's ICRC":     {yours: func(cfg *softnic.UDPConfig) { cfg.ICRC = softnic.ICRCFull }},
		"observer":        {then: func(x, _ *shmSide, _ *softnic.UDPLink) { x.nic.Observe(func(softnic.MemoryAccess) {}) }},
		"peer's observer": {then: func(_, y *shmSide, _ *softnic.UDPLink) { y.nic.Observe(func(softnic.MemoryAccess) {}) }},
		"later impairment": {then: func(x, _ *shmSide, link *softnic.UDPLink) {
			must(x.tb, link.Impair(x.nic, netip.MustParseAddr("127.0.0.9"), softnic.Impairment{Delay: 1}))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, other := near(time.Hour), near(time.Hour)
			if c.mine != nil {
				c.mine(&cfg)
			}
			if c.yours != nil {
				c.yours(&other)
			}
			a, err := softnic.NewUDPLink(&cfg)
			must(t, err)
			b, err := softnic.NewUDPLink(&other)
			must(t, err)
			x, y := newShmSide(t, a, lineSize), newShmSide(t, b, lineSize)
			x.connect(y.card())
			y.connect(x.card())
			x.awaitPublished()
			if c.then != nil {
				c.then(x, y, a)
			}
			y.postSlots(0, n)
			was := x.nic.Stats()
			for k := range n {
				wr := verbs.SendWR{Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: uint32(k)}
				wr.SetSGE(x.sge(message(k), 8))
				x.send([]verbs.SendWR{wr})
				x.await(1)
			}
			for k, wc := range y.collect(n) {
				if wc.Status != verbs.StatusSuccess || wc.Imm != uint32(k) {
					t.Fatalf("message %d is %+v", k, wc)
				}
			}
			now := x.nic.Stats()
			if lines := now.PacketsReceived == was.PacketsReceived; lines != c.lines {
				t.Errorf("%d messages with %d answers, want lines: %v", n, now.PacketsReceived-was.PacketsReceived, c.lines)
			}
			for _, cfg := range []softnic.UDPConfig{cfg, other} {
				if count, ok := cfg.Capture.(*countCapture); ok && count.n.Load() < n {
					t.Errorf("%d of %d packets were captured", count.n.Load(), n)
				}
			}
		})
	}
}

// TestNeighborAsleep: no message is lost when the receiver falls asleep at any time.
func TestNeighborAsleep(t *testing.T) {
	noRaces(t)
	cfg := near(time.Nanosecond)
	x, y := nearPairWith(t, lineSize, cfg, cfg)
	x.awaitPublished()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const rounds, room = 3000, 8
	y.postSlots(0, room)
	arrived := make(chan int, room)
	go func() {
		defer close(arrived)
		for k := 0; k < rounds; {
			n := len(y.doze(ctx))
			if n == 0 {
				return
			}
			y.postSlots(k+room, k+room+n)
			k += n
			arrived <- k
		}
	}()
	for k := range rounds {
		wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		wr.SetSGE(x.sge(message(k), 8))
		x.send([]verbs.SendWR{wr})
		if got, ok := <-arrived; !ok || got != k+1 {
			t.Fatalf("%d messages have arrived, want %d", got, k+1)
		}
		x.await(1)
	}
}

// TestNeighborPartsWithLines: no message is lost, duplicated or reordered while neighbors lose and find
// each other.
func TestNeighborPartsWithLines(t *testing.T) {
	noRaces(t)
	x, y := nearPairWith(t, lineSize, near(time.Hour), near(time.Hour))
	x.awaitPublished()
	const n, room = 20_000, 200
	posted, done, taken := 0, 0, 0
	y.postSlots(0, room)
	wr := verbs.SendWR{Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled}
	wr.SetSGE(x.sge(0, 8))
	for deadline := time.Now().Add(time.Minute); taken < n; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d requests are complete and %d messages there", done, posted, taken)
		}
		for range 7 {
			if posted < n && posted-done < room {
				wr.Imm = uint32(posted)
				x.send([]verbs.SendWR{wr})
				if posted++; posted%1000 == 0 {
					softnic.PartNeighbors([]*softnic.NIC{x.nic, y.nic}[posted/1000%2])
				}
			}
		}
		for _, wc := range x.poll() {
			if wc.Status != verbs.StatusSuccess {
				t.Fatalf("request %d: %+v", done, wc)
			}
			done++
		}
		for _, wc := range y.poll() {
			if wc.Status != verbs.StatusSuccess || wc.Imm != uint32(taken) {
				t.Fatalf("message %d is %+v", taken, wc)
			}
			taken++
			y.postSlots(taken, taken+1)
		}
	}
}

// TestNeighborEnds: requests to a neighbor killed or stopped while it receives lines fail like packets.
func TestNeighborEnds(t *testing.T) {
	for name, sig := range map[string]os.Signal{"killed": os.Kill, "stopped": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			s, far := startFar(t, shmTalk)
			wr := s.request(verbs.OpSend, 8)
			sent, signaled := 0, false
			for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() {
				if time.Now().After(deadline) {
					t.Fatalf("no request has failed, and %d have completed", sent)
				}
				_, _ = s.qp.PostSend([]verbs.SendWR{wr}) // the queue may be full
				if sent >= 1000 && !signaled {
					signaled = true
					must(t, far.Process.Signal(sig))
				}
				failed := verbs.StatusSuccess
				for _, wc := range s.poll() {
					if sent++; wc.Status != verbs.StatusSuccess && failed == verbs.StatusSuccess {
						failed = wc.Status
					}
				}
				if failed != verbs.StatusSuccess {
					if failed != verbs.StatusRetryExcErr || !signaled {
						t.Errorf("after %d messages a request ends with %v, want %v", sent, failed, verbs.StatusRetryExcErr)
					}
					break
				}
			}
			must(t, far.Process.Kill()) // it may have exited
			must(t, s.mr.Close())
		})
	}
}
