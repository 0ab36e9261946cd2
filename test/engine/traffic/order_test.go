package traffic_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// ordered posts notified requests of three fragments each over three lanes, which complete under the test's
// control. Every physical request is signaled, so the test knows exactly which requests must be reported.
type ordered struct {
	*enginetest.ScriptedQP
	requests int
	ended    []int // completed physical requests of each request
	records  []int // completed records and notifications of each lane
	reported int
}

const orderedLanes, orderedFragment = 3, 100

func newOrdered(t *testing.T, scheme ibverbx.Scheme, requests int) *ordered {
	t.Helper()
	o := &ordered{requests: requests, ended: make([]int, requests)}
	o.ScriptedQP = enginetest.NewScriptedQP(t, ibverbx.Config{
		Lanes: orderedLanes, Scheme: scheme, FragmentSize: orderedFragment, SignalInterval: 1,
		SendDepth: requests, LaneDepth: 4 * requests,
	})
	o.records = make([]int, len(o.NIC.QPs()))
	var wrs []ibverbx.SendWR
	for i := range requests {
		wr := o.Request(uint64(i), verbs.OpRDMAWriteWithImm, orderedLanes*orderedFragment)
		wr.RemoteOffset = uint64(i * 1000)
		wrs = append(wrs, wr)
	}
	o.PostSend(wrs...)
	return o
}

// parts returns the number of physical requests per request.
func (o *ordered) parts(scheme ibverbx.Scheme) int {
	switch scheme {
	case ibverbx.DQPLB:
		return orderedLanes // every fragment is its own notification
	case ibverbx.Spray:
		return orderedLanes + 1 // and a notification
	default:
		return 2 * orderedLanes // and a record on every lane
	}
}

// complete completes the oldest physical request of a lane. A fragment's address identifies its request;
// records and notifications are in request order.
func (o *ordered) complete(lane int) {
	q := o.NIC.QPs()[lane]
	if len(q.Posted()) == 0 {
		return
	}
	if wr := &q.Posted()[0]; enginetest.IsNotification(wr) {
		o.ended[o.records[lane]]++
		o.records[lane]++
	} else {
		o.ended[(wr.RemoteAddr-o.Region.Remote().Addr)/1000]++
	}
	q.Complete(1)
}

// poll fails unless exactly the requests are reported that have completed along with all earlier ones.
func (o *ordered) poll(t *testing.T, parts int) {
	t.Helper()
	var wcs [64]ibverbx.WC
	n, err := o.CQ.Poll(wcs[:])
	enginetest.Must(t, err)
	for _, wc := range wcs[:n] {
		if err := wc.Err(); err != nil || wc.WRID != uint64(o.reported) {
			t.Fatalf("completion = request %d, %v; want request %d", wc.WRID, err, o.reported)
		}
		o.reported++
	}
	want := 0
	for want < o.requests && o.ended[want] == parts {
		want++
	}
	if o.reported != want {
		t.Fatalf("%d requests are reported, want %d: of each %v of %d parts have ended", o.reported, want, o.ended, parts)
	}
}

// TestOutOfOrderCompletions: however the lanes' completions interleave, each request is reported once, in
// posting order, as soon as it and all earlier requests are done.
func TestOutOfOrderCompletions(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		for seed := range uint64(40) {
			t.Run(fmt.Sprintf("%s/seed=%d", scheme, seed), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 5))
				o := newOrdered(t, scheme, 16)
				lanes := len(o.NIC.QPs())
				order := rng.Perm(lanes)
				for turns := 0; o.reported < o.requests; turns++ {
					if turns > 10_000 {
						t.Fatalf("%d of %d requests are reported", o.reported, o.requests)
					}
					// Drain one lane after the other, or pick any of them.
					lane := rng.IntN(lanes)
					if seed%2 == 0 {
						lane = order[turns/200%lanes]
					}
					o.complete(lane)
					o.poll(t, o.parts(scheme))
				}
				if n, err := o.CQ.Poll(make([]ibverbx.WC, 4)); n != 0 || err != nil {
					t.Errorf("Poll at the end = %d, %v; want nothing", n, err)
				}
			})
		}
	}
}

// TestOutOfOrderArrival: one rail is a thousand times slower than the other, so later messages' fragments and
// notifications arrive long before earlier ones. The receiver is still notified in order, and only of
// complete messages. With three lanes, one rail has a single lane.
func TestOutOfOrderArrival(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		for _, lanes := range []int{3, 4} {
			for slow := range 2 {
				t.Run(fmt.Sprintf("%s/lanes=%d/slow=%d", scheme, lanes, slow), func(t *testing.T) {
					cfgs := make([]softnic.FaultConfig, 2)
					cfgs[slow].Impairment.Delay = time.Millisecond
					cfgs[1-slow].Impairment.Delay = time.Microsecond
					arriveOutOfOrder(t, newWires(t, cfgs...), ibverbx.Config{Lanes: lanes, Scheme: scheme, FragmentSize: 500})
				})
			}
		}
	}
}

func arriveOutOfOrder(t *testing.T, w *wires, cfg ibverbx.Config) {
	t.Helper()
	const messages, size = 40, 3000
	a, b := enginetest.NewPair(t, w.links, cfg)
	local, remote := a.Region(messages*size), b.Region(messages*size)
	var wrs []ibverbx.SendWR
	recvs := make([]ibverbx.RecvWR, messages)
	for i := range messages {
		enginetest.Stamp(local.Bytes()[i*size:][:size], 0, i)
		recvs[i].WRID = uint64(i)
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(i) * 7, Remote: remote.Remote(), RemoteOffset: uint64(i * size)}
		wr.SetSGE(local.SGE(uint64(i*size), size))
		wrs = append(wrs, wr)
	}
	b.PostRecv(recvs...)
	a.PostSend(wrs...)
	p := stallGuard{limit: steps}
	for delivered, completed := 0, 0; delivered < messages || completed < messages; {
		n := pollOnce(t, a, completed)
		completed += n
		wcs := b.Poll()
		if delivered == 0 && len(wcs) > 0 && bytes.Equal(remote.Bytes()[(messages-1)*size:], make([]byte, size)) {
			t.Error("nothing of the last message is there when the first is told: the rails were not out of step")
		}
		for _, wc := range wcs {
			checkNotification(t, cfg.Scheme, wc, delivered, delivered, size)
			if !bytes.Equal(remote.Bytes()[delivered*size:][:size], local.Bytes()[delivered*size:][:size]) {
				t.Fatalf("message %d was delivered before its bytes", delivered)
			}
			delivered++
		}
		if n+len(wcs) == 0 {
			w.step()
		}
		if err := p.step(n+len(wcs) > 0); err != nil {
			t.Fatalf("%v: %d of %d delivered, %d completed", err, delivered, messages, completed)
		}
	}
}
