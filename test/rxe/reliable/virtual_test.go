package reliable_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// newHost returns a host with a wrapped rail on each of the devices.
func newHost(t *testing.T, names []string, wrap reliable.Config, cfg ibverbx.Config) *enginetest.Host {
	t.Helper()
	var rails []ibverbx.RailConfig
	for _, name := range names {
		rails = append(rails, ibverbx.RailConfig{Context: open(t, name, wrap)})
	}
	h := enginetest.NewRailsOn(t, rails...)
	h.NewCQ(ibverbx.CQConfig{Depth: 16384})
	h.NewQP(cfg)
	return h
}

// wait polls until each host has the wanted number of successful completions.
func wait(t *testing.T, what string, hosts [2]*enginetest.Host, want [2]int) (got [2][]ibverbx.WC) {
	t.Helper()
	var wcs [16]ibverbx.WC
	for end := time.Now().Add(patience); len(got[0]) < want[0] || len(got[1]) < want[1]; {
		idle := true
		for i, h := range hosts {
			n, err := h.CQ.Poll(wcs[:])
			enginetest.Must(t, err)
			for _, wc := range wcs[:n] {
				if wc.Err() != nil {
					t.Fatalf("%s: completion %d of host %d is %v (%v), want success", what, len(got[i]), i, wc.Err(), h.QP.Err())
				}
			}
			got[i] = append(got[i], wcs[:n]...)
			idle = idle && n == 0
		}
		if idle {
			if time.Now().After(end) {
				t.Fatalf("%s: %d and %d completions after %v, want %v", what, len(got[0]), len(got[1]), patience, want)
			}
			time.Sleep(50 * time.Microsecond)
		}
	}
	return got
}

// TestVirtualQP transfers data through a VirtualQP of four lanes on two wrapped rails, which lose 1
// % of the packets, with every scheme and every operation.
func TestVirtualQP(t *testing.T) {
	lose(t, "net0", "net1", "net2", "net3")
	for _, scheme := range enginetest.Schemes {
		t.Run(scheme.String(), func(t *testing.T) { virtual(t, scheme, onePacket()) })
	}
}

func virtual(t *testing.T, scheme ibverbx.Scheme, wrap reliable.Config) {
	const size = 400_000
	cfg := ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 50_000}
	wrap.Paths = 4
	hosts := [2]*enginetest.Host{
		newHost(t, []string{"rxe0", "rxe2"}, wrap, cfg),
		newHost(t, []string{"rxe1", "rxe3"}, wrap, cfg),
	}
	a, b := hosts[0], hosts[1]
	enginetest.Connect(t, a.QP, b.QP)
	from, to := a.Region(size), b.Region(size)
	local, remote := from.Bytes(), to.Bytes()
	rng := rand.New(rand.NewPCG(uint64(scheme), 7))
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMAWriteWithImm, verbs.OpSend, verbs.OpSendWithImm, verbs.OpRDMARead} {
		for i := range local {
			local[i], remote[i] = byte(rng.Uint32()), byte(i)
		}
		want := bytes.Clone(local)
		wcs := [2]int{1, 0}
		if op != verbs.OpRDMAWrite && op != verbs.OpRDMARead {
			wcs[1] = 1
			recv := ibverbx.RecvWR{WRID: 7} // an empty receive for a notification
			if op != verbs.OpRDMAWriteWithImm {
				recv.SetSGE(to.SGE(0, size))
			}
			b.PostRecv(recv)
		}
		wr := ibverbx.SendWR{WRID: 1, Opcode: op, Imm: 42, Flags: verbs.SendSignaled, Remote: to.Remote()}
		wr.SetSGE(from.SGE(0, size))
		if op == verbs.OpRDMARead {
			want = bytes.Clone(remote)
		}
		a.PostSend(wr)
		got := wait(t, op.String(), hosts, wcs)
		if op != verbs.OpRDMAWrite && op != verbs.OpRDMARead && got[1][0].WRID != 7 {
			t.Fatalf("%v: receive %+v, want that of 7", op, got[1][0])
		}
		if !bytes.Equal(local, want) || !bytes.Equal(remote, want) {
			t.Fatalf("%v: %d bytes have moved and differ", op, size)
		}
	}
	clear(remote[:8])
	for range 10 {
		add := ibverbx.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled, CompareAdd: 3, Remote: to.Remote()}
		add.SetSGE(from.SGE(0, 8))
		a.PostSend(add)
	}
	wait(t, "atomics", hosts, [2]int{10, 0})
	if sum := binary.NativeEndian.Uint64(remote); sum != 30 {
		t.Errorf("the counter is %d, want 30", sum)
	}
}
