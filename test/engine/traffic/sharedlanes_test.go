package traffic_test

import (
	"bytes"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// sharingPair returns a connected pair whose lanes share the given number of receives per rail.
func sharingPair(t *testing.T, links []softnic.Link, receives int, cfg ibverbx.Config) (a, b *enginetest.Host) {
	t.Helper()
	a, qa := sharedHost(t, links, receives, cfg)
	b, qb := sharedHost(t, links, receives, cfg)
	enginetest.Connect(t, qa[0], qb[0])
	return a, b
}

// TestSharedReceivesMixedOpcodes is TestMixedOpcodesOverFaults with few receives that all
// lanes share.
func TestSharedReceivesMixedOpcodes(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		bad := softnic.Impairment{Loss: 0.01, Duplicate: 0.02, Reorder: 0.1, Delay: 5 * time.Microsecond, Jitter: 20 * time.Microsecond}
		w := newWires(t, softnic.FaultConfig{Seed: 5, Impairment: bad}, softnic.FaultConfig{Seed: 6, Impairment: bad})
		a, b := sharingPair(t, w.links, 16, mixedConfig(scheme, 5))
		newMixed(t, a, b, scheme, 300).run(w.step, stallGuard{limit: steps})
	})
}

// TestSharedReceivesThousandLanes: 1,024 lanes with fewer receives than lanes.
func TestSharedReceivesThousandLanes(t *testing.T) {
	const lanes, size = 1024, 5<<20 + 77
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		w := newStill(2)
		a, b := sharingPair(t, w.links, 256, ibverbx.Config{Lanes: lanes, Scheme: scheme, FragmentSize: 4096, LaneDepth: 16, RecvDepth: 16, SendDepth: 16})
		local, remote := a.Region(size), b.Region(size)
		enginetest.Stamp(local.Bytes(), 3, 4)
		b.PostRecv(ibverbx.RecvWR{WRID: 0})
		wr := ibverbx.SendWR{WRID: 0, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, size))
		a.PostSend(wr)
		p := stallGuard{limit: steps}
		for delivered, done := 0, 0; delivered == 0 || done == 0; w.step() {
			done += pollOnce(t, a, 0)
			for _, wc := range b.Poll() {
				checkNotification(t, scheme, wc, 0, 0, size)
				delivered++
			}
			if err := p.step(false); err != nil {
				t.Fatalf("%v: delivered %d, completed %d; %v, %v", err, delivered, done, a.QP.Err(), b.QP.Err())
			}
		}
		if !bytes.Equal(remote.Bytes(), local.Bytes()) {
			t.Fatalf("byte %d is not as it was sent", enginetest.FirstDifference(remote.Bytes(), local.Bytes()))
		}
		checkLanes(t, a, lanes, size)
	})
}
