package ibverbx_test

import (
	"bytes"
	"cmp"
	"fmt"
	"runtime"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/rig"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// The tests in the files beyond_*.go are about what the original's own tests leave out:
// thousands of messages in flight, both directions at once, several VirtualQPs on one
// VirtualCQ, opcodes mixed in one stream, numbers that wrap, completions out of order,
// atomics, a thousand lanes, and receives that run out.

// wires is a set of links on one virtual clock: a packet arrives when the test says so.
type wires struct {
	now   int64
	links []softnic.Link
}

// newWires returns fault links, one for each configuration.
func newWires(tb testing.TB, cfgs ...softnic.FaultConfig) *wires {
	tb.Helper()
	w := &wires{}
	for _, cfg := range cfgs {
		cfg.Now = func() int64 { return w.now }
		link, err := softnic.NewFaultLink(&cfg)
		rig.Must(tb, err)
		w.links = append(w.links, link)
	}
	return w
}

// newStill returns memory links on a virtual clock: only timers wait for it.
func newStill(n int) *wires {
	w := &wires{}
	for range n {
		w.links = append(w.links, softnic.NewMemoryLink(&softnic.MemoryConfig{Now: func() int64 { return w.now }}))
	}
	return w
}

// step moves the clock to what is due next, and does it.
func (w *wires) step() {
	due, any := int64(0), false
	for _, link := range w.links {
		if next, pending := link.Step(); pending && (!any || next < due) {
			due, any = next, true
		}
	}
	if !any {
		return
	}
	w.now = max(w.now, due)
	for _, link := range w.links {
		link.Step()
	}
}

// yield is for links in real time, where step is for those in virtual time.
func yield() { runtime.Gosched() }

// patience counts turns in which nothing happened, and ends the test when they are more
// than anything that works can need: limit or, if that is zero, enough for the timers of
// links in real time and for a goroutine that waits for a processor.
type patience struct{ idle, limit int }

// steps is a limit for links in virtual time, where every turn does something.
const steps = 200_000

func (p *patience) turn(progress bool) error {
	if p.idle++; progress {
		p.idle = 0
	}
	if p.idle > cmp.Or(p.limit, 5_000_000) {
		return fmt.Errorf("nothing happened in %d turns", p.idle)
	}
	return nil
}

// TestThousandsInFlight: thousands of messages are posted and on the wire before the first
// byte arrives; each is told once, in order, with its bytes there.
func TestThousandsInFlight(t *testing.T) {
	const messages, slot = 6000, 256
	for _, scheme := range rig.Schemes {
		t.Run(scheme.String(), func(t *testing.T) {
			wire := softnic.FaultConfig{Window: 1 << 16, Queue: 1 << 16, Impairment: softnic.Impairment{Delay: 10 * time.Microsecond}}
			w := newWires(t, wire, wire)
			a, b := rig.NewPair(t, w.links, ibverbx.Config{
				Lanes: 16, Scheme: scheme, FragmentSize: 100,
				SendDepth: 8192, RecvDepth: 8192, LaneDepth: 1024, NotifyDepth: 1024,
			})
			local, remote := a.Region(messages*slot), b.Region(messages*slot)
			wrs, recvs := make([]ibverbx.SendWR, messages), make([]ibverbx.RecvWR, messages)
			for i := range wrs {
				rig.Stamp(local.Bytes()[i*slot:][:slot], 0, i)
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

// checkFlight wants the messages to be under way, and none of them there.
func checkFlight(t *testing.T, w *wires, a, b *rig.Host, remote *ibverbx.Region, messages int) {
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

// landFlight lets the messages arrive and looks at each when it is told.
func landFlight(t *testing.T, w *wires, a, b *rig.Host, local, remote *ibverbx.Region, scheme ibverbx.Scheme, messages, slot int) {
	t.Helper()
	p := patience{limit: steps}
	for told, completed := 0, 0; told < messages || completed < messages; {
		n := pollOnce(t, a, completed)
		completed += n
		wcs := b.Poll()
		for _, wc := range wcs {
			length := int(flightLength(told))
			checkNotification(t, scheme, wc, told, told, length)
			if !bytes.Equal(remote.Bytes()[told*slot:][:length], local.Bytes()[told*slot:][:length]) {
				t.Fatalf("told of message %d, but its bytes are not there", told)
			}
			told++
		}
		if n+len(wcs) == 0 {
			w.step()
		}
		if err := p.turn(n+len(wcs) > 0); err != nil {
			t.Fatalf("%v: %d of %d messages told, %d completed; %v, %v", err, told, messages, completed, a.QP.Err(), b.QP.Err())
		}
	}
}
