package engine_test

import (
	"bytes"
	"os/exec"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// run runs a command on the machine.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// loseRail sends notified WRITEs over two rails, loses the second midway, and restores it. All messages
// arrive once and in order on the remaining rail; then all lanes recover.
func loseRail(t *testing.T, lose, restore func(t *testing.T)) {
	a, b := pair(t, 2, ibverbx.Config{Lanes: 4, FragmentSize: 8192, Deadline: patience - 10*time.Second})
	const messages, size = 12, 100_000
	local, remote := a.Region(messages*size), b.Region(messages*size)
	enginetest.Fill(local.Bytes(), 9)
	post := func(first, count int) {
		for i := first; i < first+count; i++ {
			b.PostRecv(ibverbx.RecvWR{WRID: uint64(i)})
			wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote(), RemoteOffset: uint64(i * size)}
			wr.SetSGE(local.SGE(uint64(i*size), size))
			a.PostSend(wr)
		}
	}
	post(0, 4)
	lose(t)
	defer restore(t) // even if the test fails early: the next test needs the rail
	post(4, 8)
	wcs := wait(t, "all complete on one rail", []int{messages, messages}, a, b)
	for i := range messages {
		if wcs[0][i].WRID != uint64(i) || wcs[1][i].WRID != uint64(i) {
			t.Fatalf("completion %d is of %d and %d", i, wcs[0][i].WRID, wcs[1][i].WRID)
		}
	}
	if !bytes.Equal(local.Bytes(), remote.Bytes()) {
		t.Error("the bytes differ")
	}
	if a.QP.Stats().Lanes[1].Deaths == 0 {
		t.Error("lane 1 on the lost rail was never out of service")
	}
	restore(t)
	poll(t, "all lanes are back", func() bool {
		for _, h := range []*enginetest.Host{a, b} {
			for _, l := range h.QP.Stats().Lanes {
				if l.State != "up" {
					return false
				}
			}
		}
		return true
	}, a, b)
}

// TestRailLosesEverything: a rail loses all packets for a while.
func TestRailLosesEverything(t *testing.T) {
	lost := false
	loseRail(t, func(t *testing.T) {
		lost = true
		run(t, "tc", "qdisc", "add", "dev", "net2", "root", "netem", "loss", "100%")
		run(t, "tc", "qdisc", "add", "dev", "net3", "root", "netem", "loss", "100%")
	}, func(t *testing.T) {
		if lost {
			lost = false
			run(t, "tc", "qdisc", "del", "dev", "net2", "root")
			run(t, "tc", "qdisc", "del", "dev", "net3", "root")
		}
	})
}

// TestRailDown: a rail's network device goes down and up again.
func TestRailDown(t *testing.T) {
	loseRail(t, func(t *testing.T) { run(t, "ip", "link", "set", "net2", "down") },
		func(t *testing.T) { run(t, "ip", "link", "set", "net2", "up") })
}
