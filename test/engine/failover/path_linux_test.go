package failover_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// marked is a Capture that counts packets with and without the marks of a path.
type marked struct {
	path     verbs.PathConfig
	yes, not atomic.Int64
}

func (m *marked) Packet(_ int64, _, _ netip.AddrPort, _ uint16, class, hops uint8, _ ...[]byte) {
	if class == m.path.TrafficClass && hops == m.path.HopLimit {
		m.yes.Add(1)
	} else {
		m.not.Add(1)
	}
}

// TestPathReachesEveryPacket: all packets have the traffic class and hop limit of RailConfig.Path. That
// includes data, message and notify lanes, rebuilt lanes, and with reliable the paths, the handshake QPs and the
// control QPs.
func TestPathReachesEveryPacket(t *testing.T) {
	for _, wrapped := range []bool{false, true} {
		t.Run(fmt.Sprintf("wrapped=%v", wrapped), func(t *testing.T) {
			path := verbs.PathConfig{TrafficClass: 104, HopLimit: 9, AckTimeout: 12, RetryCount: 3}
			seen := &marked{path: path}
			controls := [2]ibverbx.Control{}
			controls[0], controls[1] = ibverbx.ControlPair()
			var links [2]*softnic.UDPLink
			var err error
			for i := range links {
				links[i], err = softnic.NewUDPLink(&softnic.UDPConfig{Capture: seen})
				enginetest.Must(t, err)
			}
			var hosts [2]*enginetest.Host
			for side := range hosts {
				hosts[side] = markedHost(t, links, side, path, wrapped)
				hosts[side].NewCQ(ibverbx.CQConfig{Depth: 8192, Waker: verbs.NewWaker()})
				hosts[side].NewQP(ibverbx.Config{Lanes: 4, Scheme: ibverbx.Spray, Control: controls[side]})
			}
			enginetest.Connect(t, hosts[0].QP, hosts[1].QP)
			from, to := hosts[0].Region(1<<16), hosts[1].Region(1<<16)
			enginetest.Fill(from.Bytes(), 1)
			transfer(t, hosts, from, to)
			losePort(t, hosts)
			transfer(t, hosts, from, to)
			if seen.not.Load() != 0 || seen.yes.Load() == 0 {
				t.Errorf("%d packets have the marks of the path and %d do not, want all to have them", seen.yes.Load(), seen.not.Load())
			}
		})
	}
}

// markedHost returns a host with a NIC of each link.
func markedHost(t *testing.T, links [2]*softnic.UDPLink, side int, path verbs.PathConfig, wrapped bool) *enginetest.Host {
	t.Helper()
	var rails []ibverbx.RailConfig
	var nics []*softnic.NIC
	for i, link := range links {
		nic, err := softnic.New(link, softnic.Config{Addr: netip.AddrFrom4([4]byte{127, 0, byte(71 + i), byte(1 + side)})})
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, nic.Close()) })
		ctx, err := nic.Open()
		enginetest.Must(t, err)
		if wrapped {
			ctx, err = reliable.Wrap(ctx, reliable.Config{Paths: 4})
			enginetest.Must(t, err)
			t.Cleanup(func() { enginetest.Must(t, ctx.Close()) })
		}
		nics = append(nics, nic)
		rails = append(rails, ibverbx.RailConfig{Context: ctx, Path: path})
	}
	h := enginetest.NewRailsOn(t, rails...)
	h.NICs = nics
	return h
}

// transfer writes and reads some bytes and sends a message.
func transfer(t *testing.T, hosts [2]*enginetest.Host, from, to *ibverbx.Region) {
	t.Helper()
	clear(to.Bytes())
	write := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: to.Remote()}
	write.SetSGE(from.SGE(0, 1<<16))
	read := ibverbx.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled | verbs.SendFence, Remote: to.Remote()}
	read.SetSGE(from.SGE(0, 1<<16))
	message := ibverbx.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	message.SetSGE(from.SGE(0, 64))
	receive := ibverbx.RecvWR{}
	receive.SetSGE(to.SGE(0, 64))
	hosts[1].PostRecv(ibverbx.RecvWR{}, receive)
	hosts[0].PostSend(write, read, message)
	left := [2]int{3, 2}
	poll(t, hosts, "the transfer", func(side, n int) bool {
		left[side] -= n
		return left == [2]int{}
	})
	if !bytes.Equal(from.Bytes(), to.Bytes()) {
		t.Error("the bytes that arrived differ from those that were sent")
	}
}

// losePort takes rail 1 of host 0 down until both ends have lost lanes, and waits for all lanes to recover.
func losePort(t *testing.T, hosts [2]*enginetest.Host) {
	t.Helper()
	lanes := func(f func(ibverbx.LaneStats) bool) (n int) {
		for _, h := range hosts {
			for _, l := range h.QP.Stats().Lanes {
				if f(l) {
					n++
				}
			}
		}
		return n
	}
	hosts[0].NICs[1].SetPort(false)
	poll(t, hosts, "lanes are lost", func(int, int) bool {
		return lanes(func(l ibverbx.LaneStats) bool { return l.Deaths > 0 }) >= 4
	})
	hosts[0].NICs[1].SetPort(true)
	poll(t, hosts, "all lanes are back", func(int, int) bool {
		return lanes(func(l ibverbx.LaneStats) bool { return l.State != "up" }) == 0
	})
}

// poll polls both hosts until done, called with a host's number of completions, returns true.
func poll(t *testing.T, hosts [2]*enginetest.Host, what string, done func(side, n int) bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		for side, h := range hosts {
			got := h.Poll()
			for i := range got {
				enginetest.Must(t, got[i].Err())
			}
			if done(side, len(got)) {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s\n%+v\n%+v", what, hosts[0].QP.Stats(), hosts[1].QP.Stats())
		}
	}
}
