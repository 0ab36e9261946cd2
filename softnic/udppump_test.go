//go:build linux

package softnic

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"ibverbx/internal/clock"
	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// TestUDPPumpRunsWhatItRead: of two NICs on a link one is being read by somebody else when a
// timer is due. What was read for the other must be acted on all the same; nobody comes back
// for it.
func TestUDPPumpRunsWhatItRead(t *testing.T) {
	link, err := NewUDPLink(nil)
	check(t, err)
	var nics [2]*NIC
	for i := range nics {
		nics[i], err = New(link, Config{Addr: netip.AddrFrom4([4]byte{127, 0, 0, byte(31 + i)})})
		check(t, err)
		t.Cleanup(func() { check(t, nics[i].Close()) })
	}
	ctx, err := nics[0].Open()
	check(t, err)
	pd, err := ctx.AllocPD()
	check(t, err)
	cq, err := ctx.CreateCQ(verbs.CQConfig{Depth: 16})
	check(t, err)
	v, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4})
	check(t, err)
	check(t, v.Connect(verbs.Endpoint{QPN: 0x99, GID: nics[1].gids[0].GID, LID: 9, MTU: verbs.MTU256, MaxRdAtomic: 1, MaxDestRdAtomic: 1}))
	q := v.(*qp)
	for range 2 { // one READ may be outstanding: the second waits for the first
		_, err = v.PostSend([]verbs.SendWR{{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled}})
		check(t, err)
	}
	answer := make([]byte, roce.DatagramLen(roce.OpReadResponseOnly, 0))
	for _, u := range []*udpPort{nics[0].udp, nics[1].udp} {
		u.reading.Lock() // nobody else reads
	}
	conn := nics[1].udp.conn
	flow, err := roce.NewFlow(netip.AddrPortFrom(conn.Addr().Addr(), conn.SourcePort(0)), nics[0].udp.conn.Addr())
	check(t, err)
	link.mu.Lock()
	h := roce.Header{Opcode: roce.OpReadResponseOnly, PKey: roce.PKeyDefault, DestQPN: q.num, PSN: q.una, Syndrome: roce.SyndromeAck}
	h.Encode(answer, 0)
	flow.Seal(answer, 0)
	w := conn.NewWriter()
	d, _ := w.Next(nics[1].udp.dest(udpTarget{udpAddr: udpAddr{nics[0].gids[0].GID, nics[0].udp.conn.Addr().Port()}}, nil), 0, len(answer))
	copy(d, answer)
	w.Flush()
	for range 100 { // maps have no order: the busy NIC may come first
		nics[0].udp.reading.Unlock()
		link.at = q.timerAt + int64(time.Millisecond)
		link.clock = func() int64 { return link.at }
		link.settleTimed()
		for !nics[0].udp.reading.TryLock() { // the port's own reader was faster, and waits for the core
			link.mu.Unlock()
			runtime.Gosched()
			link.mu.Lock()
		}
		if q.sqHead == 1 {
			break
		}
	}
	if q.sqHead != 1 || q.sqNext != 2 {
		t.Errorf("%d READs answered, %d sent, want 1 and 2", q.sqHead, q.sqNext)
	}
	link.clock = clock.Monotonic()
	link.mu.Unlock()
	for _, n := range nics {
		n.udp.reading.Unlock()
	}
}
