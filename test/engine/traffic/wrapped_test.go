package traffic_test

import (
	"bytes"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// TestManyWrappedLanes: on one rail wrapped by package reliable with its default Config, 128 lanes of one VirtualQP carry a message.
func TestManyWrappedLanes(t *testing.T) {
	for _, carrier := range []verbs.QPType{verbs.UC, verbs.UD} {
		t.Run(carrier.String(), func(t *testing.T) { manyWrappedLanes(t, carrier) })
	}
}

func manyWrappedLanes(t *testing.T, carrier verbs.QPType) {
	const lanes, size = 128, 1 << 20
	links := enginetest.MemoryLinks(1)
	var hosts [2]*enginetest.Host
	for i := range hosts {
		hosts[i] = enginetest.NewRailsOver(t, links, func(_ int, inner verbs.Context) verbs.Context {
			ctx, err := reliable.Wrap(inner, reliable.Config{Carrier: carrier})
			enginetest.Must(t, err)
			t.Cleanup(func() { enginetest.Must(t, ctx.Close()) })
			return ctx
		})
		hosts[i].NewCQ(ibverbx.CQConfig{})
		hosts[i].NewQP(ibverbx.Config{Lanes: lanes, Scheme: ibverbx.Spray, FragmentSize: size / lanes})
	}
	a, b := hosts[0], hosts[1]
	enginetest.Connect(t, a.QP, b.QP)
	local, remote := a.Region(size), b.Region(size)
	enginetest.Fill(local.Bytes(), 1)
	b.PostRecv(ibverbx.RecvWR{})
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote()}
	wr.SetSGE(local.SGE(0, size))
	a.PostSend(wr)
	enginetest.Eventually(t, "the message has arrived", func() bool {
		pollOnce(t, a, 0)
		return pollOnce(t, b, 0) == 1
	})
	if !bytes.Equal(local.Bytes(), remote.Bytes()) {
		t.Errorf("byte %d differs", enginetest.FirstDifference(local.Bytes(), remote.Bytes()))
	}
	checkLanes(t, a, lanes, size)
}
