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

// TestThousandsInFlight: thousands of messages are in flight before the first byte arrives. Each is notified
// once, in order, after its data has arrived.
func TestThousandsInFlight(t *testing.T) {
	const messages, slot = 6000, 256
	for _, scheme := range enginetest.Schemes {
		t.Run(scheme.String(), func(t *testing.T) {
			wire := softnic.FaultConfig{Window: 1 << 16, Queue: 1 << 16, Impairment: softnic.Impairment{Delay: 10 * time.Microsecond}}
			w := newWires(t, wire, wire)
			a, b := enginetest.NewPair(t, w.links, ibverbx.Config{
				Lanes: 16, Scheme: scheme, FragmentSize: 100,
				SendDepth: 8192, RecvDepth: 8192, LaneDepth: 1024, NotifyDepth: 1024,
			})
			local, remote := a.Region(messages*slot), b.Region(messages*slot)
			wrs, recvs := make([]ibverbx.SendWR, messages), make([]ibverbx.RecvWR, messages)
			for i := range wrs {
				enginetest.Stamp(local.Bytes()[i*slot:][:slot], 0, i)
				recvs[i].WRID = uint64(i)
				wrs[i] = ibverbx.SendWR{
					WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(i) * 7,
					Remote: remote.Remote(), RemoteOffset: uint64(i * slot),
				}
				wrs[i].SetSGE(local.SGE(uint64(i*slot), flightLength(i)))
			}
			b.PostRecv(recvs...)
			a.PostSend(wrs...)
			checkFlight(t, w, a, b, remote, messages)
			landFlight(t, w, a, b, local, remote, scheme, messages, slot)
		})
	}
}

// flightLength is the length of message i: one to three fragments.
func flightLength(i int) uint32 { return uint32(1 + i*37%256) }

// checkFlight fails unless all messages are in flight.
func checkFlight(t *testing.T, w *wires, a, b *enginetest.Host, remote *ibverbx.Region, messages int) {
	t.Helper()
	if got := a.QP.Stats().HighWater; got != messages {
		t.Errorf("%d requests were outstanding at once, want %d", got, messages)
	}
	var sent, delivered uint64
	for i, link := range w.links {
		s := link.(*softnic.FaultLink).Stats(a.NICs[i], b.NICs[i])
		sent += s.Sent
		delivered += s.Delivered
	}
	if sent < 4096 || delivered != 0 {
		t.Errorf("%d packets on the wire, %d of them delivered; want thousands, and none", sent, delivered)
	}
	if !bytes.Equal(remote.Bytes(), make([]byte, remote.Len())) {
		t.Error("bytes arrived before the clock moved")
	}
}

// landFlight delivers the messages and checks each when it is notified.
func landFlight(t *testing.T, w *wires, a, b *enginetest.Host, local, remote *ibverbx.Region, scheme ibverbx.Scheme, messages, slot int) {
	t.Helper()
	p := stallGuard{limit: steps}
	for delivered, completed := 0, 0; delivered < messages || completed < messages; {
		n := pollOnce(t, a, completed)
		completed += n
		wcs := b.Poll()
		for _, wc := range wcs {
			length := int(flightLength(delivered))
			checkNotification(t, scheme, wc, delivered, delivered, length)
			if !bytes.Equal(remote.Bytes()[delivered*slot:][:length], local.Bytes()[delivered*slot:][:length]) {
				t.Fatalf("message %d was delivered before its bytes", delivered)
			}
			delivered++
		}
		if n+len(wcs) == 0 {
			w.step()
		}
		if err := p.step(n+len(wcs) > 0); err != nil {
			t.Fatalf("%v: %d of %d messages delivered, %d completed; %v, %v", err, delivered, messages, completed, a.QP.Err(), b.QP.Err())
		}
	}
}
