package failover_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/testslice"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// read posts READs of n bytes each at its own offset, from the second host to the first.
func (d *duo) read(first, count int, n uint32, local, remote *ibverbx.Region) {
	d.t.Helper()
	for i := first; i < first+count; i++ {
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: remote.Remote(), RemoteOffset: uint64(i) * uint64(n)}
		wr.SetSGE(local.SGE(uint64(i)*uint64(n), n))
		d.hosts[0].PostSend(wr)
	}
}

// TestWrappedNICFailsUnderReads: on wrapped rails a NIC failure during READs, at any time and at either end,
// costs only its lanes. A slice has half of the times of each case.
func TestWrappedNICFailsUnderReads(t *testing.T) {
	wrap, ud := &reliable.Config{Paths: 2}, &reliable.Config{Carrier: verbs.UD, Paths: 2}
	for name, wraps := range map[string][]*reliable.Config{"wrapped": {wrap, wrap}, "mixed": {nil, wrap}, "datagrams": {ud, ud}, "both carriers": {wrap, ud}} {
		for host := range 2 {
			t.Run(fmt.Sprintf("%s/host=%d", name, host), func(t *testing.T) {
				for i, steps := range []int{0, 1, 2, 4, 7, 11} {
					if !testslice.Of(t).AtMost(2).Has(i+host, 6) {
						continue
					}
					d, _ := newDuoOver(t, wraps, ibverbx.Config{Lanes: 4, FragmentSize: 4096}, ibverbx.CQConfig{})
					const requests, size = 16, 65536
					local, remote := d.hosts[0].Region(requests*size), d.hosts[1].Region(requests*size)
					enginetest.Fill(remote.Bytes(), 1)
					d.read(0, requests/2, size, local, remote)
					for range steps {
						d.step()
					}
					d.hosts[host].NICs[1].Fail()
					d.read(requests/2, requests/2, size, local, remote) // before a poll shows the failure
					ended := func() bool {
						return len(d.got[0]) == requests || d.hosts[0].QP.Err() != nil || d.hosts[1].QP.Err() != nil
					}
					d.until("all complete", ended)
					for i, h := range d.hosts {
						if err := h.QP.Err(); err != nil {
							t.Fatalf("the NIC fails after %d steps: Err of host %d = %v, want nil", steps, i, err)
						}
					}
					for i, wc := range d.got[0] {
						if wc.WRID != uint64(i) || wc.Err() != nil {
							t.Fatalf("completion %d is of %d: %v", i, wc.WRID, wc.Err())
						}
					}
					if at := enginetest.FirstDifference(local.Bytes(), remote.Bytes()); at >= 0 {
						t.Fatalf("the bytes differ from %d on", at)
					}
					d.hosts[host].NICs[1].Recover()
					d.until("all lanes are back", d.allUp)
				}
			})
		}
	}
}

// TestControlMessageCannotBeSent: a lane that cannot recover because the control channel refuses its messages
// reports the cause.
func TestControlMessageCannotBeSent(t *testing.T) {
	d, taps := newTappedDuo(t, 1, ibverbx.Config{Lanes: 2}, ibverbx.CQConfig{})
	taps[0].err = errors.New("too long for this channel")
	d.until("the Down of a lane is lost", func() bool {
		taps[0].pass = func([]byte) bool { return false }
		d.kill(0, 1)
		return d.hosts[0].QP.Stats().ControlErrors > 0
	})
	if s := d.hosts[0].QP.Stats().Lanes[1]; !errors.Is(s.Cause, taps[0].err) {
		t.Errorf("lane 1 is %s because %v, want %v", s.State, s.Cause, taps[0].err)
	}
	taps[0].pass = func(b []byte) bool { return len(b) < 64 } // offers are longer
	taps[1].pass = taps[0].pass
	d.until("an offer is lost", func() bool { return d.hosts[0].QP.Stats().Lanes[1].State == "offered" })
	d.until("the offer is given up", func() bool { return d.hosts[0].QP.Stats().Lanes[1].State == "idle" })
	if s := d.hosts[0].QP.Stats().Lanes[1]; !errors.Is(s.Cause, taps[0].err) || strings.Contains(s.Cause.Error(), "does not answer") {
		t.Errorf("lane 1 is %s because %v, want %v, and not that the peer is silent", s.State, s.Cause, taps[0].err)
	}
	taps[0].pass, taps[1].pass = nil, nil
	d.until("the lane is back", d.allUp)
	if s := d.hosts[0].QP.Stats().Lanes[1]; s.Cause != nil {
		t.Errorf("lane 1 is up, and its cause is %v, want none", s.Cause)
	}
}

// TestWrappedLaneReturns: a dead lane on wrapped rails recovers, at either end, during messages and READs,
// whatever its number of paths.
func TestWrappedLaneReturns(t *testing.T) {
	for name, wrap := range map[string]*reliable.Config{
		"64 paths":   {Paths: 64},
		"256 paths":  {Paths: 256},
		"no credits": {Paths: 256, NoCredits: true},
		"UD":         {Carrier: verbs.UD},
	} {
		for host := range 2 {
			t.Run(fmt.Sprintf("%s/host=%d", name, host), func(t *testing.T) {
				d, _ := newDuoOver(t, []*reliable.Config{wrap, nil}, ibverbx.Config{Lanes: 2, FragmentSize: 4096}, ibverbx.CQConfig{})
				const messages, size = 8, 65536
				local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
				enginetest.Fill(local.Bytes(), 1)
				d.post(0, messages, size, local, remote)
				d.step()
				d.kill(host, 0)
				d.until("all messages complete", func() bool { return len(d.got[0]) == messages && len(d.got[1]) == messages })
				d.check(messages, local, remote)
				d.until("the lane is back", d.allUp)
				d.got = [2][]ibverbx.WC{}
				clear(local.Bytes())
				d.read(0, messages, size, local, remote)
				d.step()
				d.kill(host, 0)
				d.until("all READs complete", func() bool { return len(d.got[0]) == messages })
				if at := enginetest.FirstDifference(local.Bytes(), remote.Bytes()); at >= 0 {
					t.Fatalf("the bytes differ from %d on", at)
				}
				d.until("the lane is back again", d.allUp)
			})
		}
	}
}
