package ibverbx_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestThousandLanes: 1,024 lanes over two rails carry a message in fragments of 4 KiB, and
// every lane carries its part; then a READ fetches it back. On wires of a finite rate a
// receiver that is told while a lane's part is still under way finds that it is not there.
func TestThousandLanes(t *testing.T) {
	for _, scheme := range schemes {
		t.Run(scheme.String()+"/memory", func(t *testing.T) { thousandLanes(t, newStill(2), scheme) })
		t.Run(scheme.String()+"/wires", func(t *testing.T) {
			wire := softnic.FaultConfig{Window: 1 << 16, Queue: 1 << 16, Impairment: softnic.Impairment{Rate: 1e9, Delay: time.Microsecond}}
			thousandLanes(t, newWires(t, wire, wire), scheme)
		})
	}
}

func thousandLanes(t *testing.T, w *wires, scheme ibverbx.Scheme) {
	t.Helper()
	const lanes, fragment, size = 1024, 4096, 6<<20 + 123
	a, b := hostPair(t, w.links, ibverbx.Config{
		Lanes: lanes, Scheme: scheme, FragmentSize: fragment, LaneDepth: 16, NotifyDepth: 8, RecvDepth: 16, SendDepth: 16,
	})
	local, remote := a.region(size), b.region(size)
	for round := range 3 {
		stamp(local.Bytes(), round, round)
		clear(remote.Bytes())
		if n, err := b.qp.PostRecv([]ibverbx.RecvWR{{WRID: uint64(round)}}); n != 1 || err != nil {
			t.Fatalf("PostRecv = %d, %v; want 1", n, err)
		}
		wr := ibverbx.SendWR{WRID: uint64(round), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(round) * 7, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, size))
		if n, err := a.qp.PostSend([]ibverbx.SendWR{wr}); n != 1 || err != nil {
			t.Fatalf("PostSend = %d, %v; want 1", n, err)
		}
		p := patience{limit: steps}
		for told, done := 0, 0; told == 0 || done == 0; w.step() {
			done += pollOnce(t, a, round)
			for _, wc := range poll(t, b) {
				checkNotification(t, scheme, wc, round, round, size)
				if !bytes.Equal(remote.Bytes(), local.Bytes()) {
					t.Fatalf("told of round %d, but byte %d is not there", round, firstDifference(remote.Bytes(), local.Bytes()))
				}
				told++
			}
			if err := p.turn(false); err != nil {
				t.Fatalf("%v: told %d, completed %d; %v, %v", err, told, done, a.qp.Err(), b.qp.Err())
			}
		}
	}
	checkLanes(t, a, lanes, 3*size)
	readBack(t, w, a, local, remote)
}

// checkLanes wants all data lanes to have carried something, and all together so much.
func checkLanes(t *testing.T, h *host, lanes int, want uint64) {
	t.Helper()
	var used int
	var sum uint64
	for _, s := range h.qp.Stats().Lanes {
		if s.Role == "data" {
			if sum += s.Bytes; s.Bytes > 0 {
				used++
			}
		}
	}
	if used != lanes || sum != want {
		t.Errorf("%d lanes carried %d bytes, want %d and %d", used, sum, lanes, want)
	}
}

// readBack fetches the remote region into the local one.
func readBack(t *testing.T, w *wires, h *host, local, remote *ibverbx.Region) {
	t.Helper()
	clear(local.Bytes())
	wr := ibverbx.SendWR{WRID: 99, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: remote.Remote()}
	wr.SetSGE(local.SGE(0, uint32(local.Len())))
	if n, err := h.qp.PostSend([]ibverbx.SendWR{wr}); n != 1 || err != nil {
		t.Fatalf("PostSend = %d, %v; want 1", n, err)
	}
	p := patience{limit: steps}
	for done := 0; done == 0; w.step() {
		done = pollOnce(t, h, 99)
		must(t, p.turn(false))
	}
	if !bytes.Equal(local.Bytes(), remote.Bytes()) {
		t.Fatalf("byte %d of the READ is wrong", firstDifference(local.Bytes(), remote.Bytes()))
	}
}

// TestManySmallMessagesOnManyLanes: messages of one fragment each are told in order although
// there are more lanes than messages that fit one.
func TestManySmallMessagesOnManyLanes(t *testing.T) {
	const lanes, messages = 256, 2000
	for _, scheme := range schemes {
		for _, rails := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/rails=%d", scheme, rails), func(t *testing.T) {
				a, b := hostPair(t, memoryLinks(rails), ibverbx.Config{Lanes: lanes, Scheme: scheme, LaneDepth: 16, NotifyDepth: 8, RecvDepth: messages})
				local, remote := a.region(64*messages), b.region(64*messages)
				stamp(local.Bytes(), 1, 1)
				recvs := make([]ibverbx.RecvWR, messages)
				for i := range recvs {
					recvs[i].WRID = uint64(i)
				}
				if n, err := b.qp.PostRecv(recvs); n != messages || err != nil {
					t.Fatalf("PostRecv = %d, %v; want %d", n, err, messages)
				}
				var p patience
				for posted, told, done := 0, 0, 0; told < messages || done < messages; {
					if posted < messages {
						wr := ibverbx.SendWR{WRID: uint64(posted), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(posted) * 7, Remote: remote.Remote(), RemoteOffset: uint64(64 * posted)}
						wr.SetSGE(local.SGE(uint64(64*posted), 64))
						n, err := a.qp.PostSend([]ibverbx.SendWR{wr})
						if posted += n; n == 0 && err != verbs.ErrQueueFull { //nolint:errorlint // it must come bare
							t.Fatalf("PostSend = %d, %v; want 1 or %v", n, err, verbs.ErrQueueFull)
						}
					}
					done += pollOnce(t, a, done)
					for _, wc := range poll(t, b) {
						checkNotification(t, scheme, wc, told, told, 64)
						if at := 64 * told; !bytes.Equal(remote.Bytes()[at:at+64], local.Bytes()[at:at+64]) {
							t.Fatalf("told of message %d, but its bytes are not there", told)
						}
						told++
					}
					if err := p.turn(false); err != nil {
						t.Fatalf("%v: %d told, %d completed of %d", err, told, done, messages)
					}
				}
			})
		}
	}
}
