package ibverbx_test

import (
	"bytes"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// sharingPair is hostPair with VirtualCQs whose lanes share receives.
func sharingPair(t *testing.T, links []softnic.Link, receives int, cfg ibverbx.Config) (a, b *host) {
	t.Helper()
	a, b = sharingHost(t, links, receives), sharingHost(t, links, receives)
	a.qp, b.qp = newPeers(t, a.cq, b.cq, cfg)
	return a, b
}

// sharingHost is a host whose VirtualCQ has no VirtualQP yet.
func sharingHost(t *testing.T, links []softnic.Link, receives int) *host {
	t.Helper()
	h := newHost(t, links, ibverbx.Config{Lanes: 1})
	cq, err := h.rails.NewCQ(ibverbx.CQConfig{SharedReceives: receives})
	must(t, err)
	t.Cleanup(func() { must(t, cq.Close()) })
	return &host{tb: t, nics: h.nics, rails: h.rails, cq: cq}
}

// TestSharedReceivesMixedOpcodes is TestMixedOpcodesOverFaults with few receives that all
// lanes share.
func TestSharedReceivesMixedOpcodes(t *testing.T) {
	forEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		bad := softnic.Impairment{Loss: 0.01, Duplicate: 0.02, Reorder: 0.1, Delay: 5 * time.Microsecond, Jitter: 20 * time.Microsecond}
		w := newWires(t, softnic.FaultConfig{Seed: 5, Impairment: bad}, softnic.FaultConfig{Seed: 6, Impairment: bad})
		a, b := sharingPair(t, w.links, 16, mixedConfig(scheme, 5))
		newMixed(t, a, b, scheme, 300).run(w.step, patience{limit: steps})
	})
}

// TestSharedReceivesThousandLanes: 1,024 lanes with fewer receives than lanes.
func TestSharedReceivesThousandLanes(t *testing.T) {
	const lanes, size = 1024, 5<<20 + 77
	forEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		w := newStill(2)
		a, b := sharingPair(t, w.links, 256, ibverbx.Config{Lanes: lanes, Scheme: scheme, FragmentSize: 4096, LaneDepth: 16, RecvDepth: 16, SendDepth: 16})
		local, remote := a.region(size), b.region(size)
		stamp(local.Bytes(), 3, 4)
		if n, err := b.qp.PostRecv([]ibverbx.RecvWR{{WRID: 0}}); n != 1 || err != nil {
			t.Fatalf("PostRecv = %d, %v; want 1", n, err)
		}
		wr := ibverbx.SendWR{WRID: 0, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, size))
		if n, err := a.qp.PostSend([]ibverbx.SendWR{wr}); n != 1 || err != nil {
			t.Fatalf("PostSend = %d, %v; want 1", n, err)
		}
		p := patience{limit: steps}
		for told, done := 0, 0; told == 0 || done == 0; w.step() {
			done += pollOnce(t, a, 0)
			for _, wc := range poll(t, b) {
				checkNotification(t, scheme, wc, 0, 0, size)
				told++
			}
			if err := p.turn(false); err != nil {
				t.Fatalf("%v: told %d, completed %d; %v, %v", err, told, done, a.qp.Err(), b.qp.Err())
			}
		}
		if !bytes.Equal(remote.Bytes(), local.Bytes()) {
			t.Fatalf("byte %d is not as it was sent", firstDifference(remote.Bytes(), local.Bytes()))
		}
		checkLanes(t, a, lanes, size)
	})
}
