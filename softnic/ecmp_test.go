package softnic_test

import (
	"errors"
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// flow is a QP that writes to another NIC.
type flow struct {
	qp       verbs.QP
	cq       verbs.CQ
	src, dst verbs.MR
	path     int
}

// fabric is two NICs with several paths from the first to the second, and enough flows for at least two
// on every path.
type fabric struct {
	w     *world
	r     *rig
	flows []flow
}

const flowBytes = 64 << 10

func newFabric(t *testing.T, paths ...softnic.Path) *fabric {
	t.Helper()
	f := &fabric{w: newWorld(t, softnic.FaultConfig{Seed: 3, Window: 1024, Impairment: softnic.Impairment{Delay: time.Microsecond}})}
	f.r = newRig(t, f.w.link)
	must(t, f.w.link.SetPaths(f.r.a, f.r.b, paths...))
	count := make([]int, len(paths))
	for short := len(paths); short > 0; {
		_, src := memory(t, f.r.pa, flowBytes)
		_, dst := memory(t, f.r.pb, flowBytes)
		x := flow{cq: newCQ(t, f.r.ca, 16), src: src, dst: dst}
		cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 4}
		var err error
		x.qp, err = f.r.pa.CreateQP(cfg)
		must(t, err)
		cfg.SendCQ = newCQ(t, f.r.cb, 16)
		cfg.RecvCQ = cfg.SendCQ
		peer, err := f.r.pb.CreateQP(cfg)
		must(t, err)
		connect(t, x.qp, peer)
		x.path = f.w.link.PathOf(f.r.a, f.r.b, peer.Num(), 0)
		if count[x.path]++; count[x.path] == 2 {
			short--
		}
		f.flows = append(f.flows, x)
		if len(f.flows) > 200 {
			t.Fatalf("%d flows took the paths %v times: a path gets none", len(f.flows), count)
		}
	}
	return f
}

// run runs the flows concurrently, and returns the elapsed time and the status of each.
func (f *fabric) run(t *testing.T, flows ...flow) (took time.Duration, ends []verbs.Status) {
	t.Helper()
	start := f.w.now
	for _, x := range flows {
		if n, err := x.qp.PostSend([]verbs.SendWR{writeWR(x.src, x.dst, flowBytes)}); n != 1 {
			t.Fatalf("PostSend = %d, %v; want 1", n, err)
		}
	}
	f.w.settle(t)
	for _, x := range flows {
		wcs := poll(t, x.cq)
		if len(wcs) != 1 {
			t.Fatalf("%d completions, want 1", len(wcs))
		}
		ends = append(ends, wcs[0].Status)
	}
	return time.Duration(f.w.now - start), ends
}

// on returns the first n flows of a path.
func (f *fabric) on(path, n int) (flows []flow) {
	for _, x := range f.flows {
		if x.path == path && len(flows) < n {
			flows = append(flows, x)
		}
	}
	return flows
}

// TestPathsPinFlows: two flows pinned to one path share its rate; two on different paths do not.
func TestPathsPinFlows(t *testing.T) {
	f := newFabric(t, softnic.Path{Rate: 1e9, Queue: 1 << 20}, softnic.Path{Rate: 1e9, Queue: 1 << 20})
	alone, _ := f.run(t, f.on(0, 1)...)
	apart, _ := f.run(t, f.on(0, 1)[0], f.on(1, 1)[0])
	together, _ := f.run(t, f.on(0, 2)...)
	if apart > alone*11/10 || together < alone*18/10 {
		t.Errorf("one flow took %v, two on two paths %v, two on one path %v; want the same, and twice as long", alone, apart, together)
	}
}

// TestPathCut: cutting a path fails only the flows pinned to it; a slow path slows only its own flows.
func TestPathCut(t *testing.T) {
	f := newFabric(t, softnic.Path{}, softnic.Path{Delay: 5 * time.Microsecond}, softnic.Path{})
	quick, _ := f.run(t, f.on(0, 1)...)
	if slow, _ := f.run(t, f.on(1, 1)...); slow < quick+5*time.Microsecond {
		t.Errorf("a path with 5us more took %v, one without %v", slow, quick)
	}
	if paths := f.w.link.Paths(f.r.a, f.r.b); len(paths) != 3 || paths[1].Delay != 5*time.Microsecond {
		t.Errorf("Paths = %+v, want the three that were set", paths)
	}
	must(t, f.w.link.SetPath(f.r.a, f.r.b, 1, softnic.Path{Cut: true}))
	_, ends := f.run(t, f.flows...)
	for i, x := range f.flows {
		want := verbs.StatusSuccess
		if x.path == 1 {
			want = verbs.StatusRetryExcErr
		}
		if ends[i] != want {
			t.Errorf("a flow on path %d ended with %s, want %s", x.path, ends[i], want)
		}
	}
}

// TestPathLoss: a lossy path slows only its own flows.
func TestPathLoss(t *testing.T) {
	f := newFabric(t, softnic.Path{}, softnic.Path{Loss: 1})
	_, ends := f.run(t, f.on(0, 1)[0], f.on(1, 1)[0])
	if ends[0] != verbs.StatusSuccess || ends[1] != verbs.StatusRetryExcErr {
		t.Errorf("two flows ended with %v, want success and, where all is lost, %v", ends, verbs.StatusRetryExcErr)
	}
	if n := f.w.link.Stats(f.r.a, f.r.b).Lost; n == 0 {
		t.Error("no packet of a path that loses all is counted as lost")
	}
}

// TestPathQueue: packets that do not fit in a path's queue are lost, retransmitted and counted.
func TestPathQueue(t *testing.T) {
	f := newFabric(t, softnic.Path{Rate: 1e9, Queue: 16 << 10})
	if _, ends := f.run(t, f.on(0, 2)...); ends[0] != verbs.StatusSuccess || ends[1] != verbs.StatusSuccess {
		t.Errorf("two flows ended with %v, want success", ends)
	}
	if n := f.w.link.Stats(f.r.a, f.r.b).Overflow; n == 0 {
		t.Error("a short queue lost nothing of two flows that sent four times as much at once")
	}
}

// TestFlowLabelDecidesPath: labels with the same source port share a path regardless of the QP, and a packet
// takes its label's path.
func TestFlowLabelDecidesPath(t *testing.T) {
	f := newFabric(t, make([]softnic.Path, 8)...)
	const label, same = 0x04001, 0x08002 // both stand for port 0xc000
	path := f.w.link.PathOf(f.r.a, f.r.b, 1, label)
	for qpn := range uint32(64) {
		if got := f.w.link.PathOf(f.r.a, f.r.b, qpn, same); got != path {
			t.Fatalf("the flow with label %#x to QP %d takes path %d, want %d as label %#x", same, qpn, got, path, label)
		}
	}
	used := map[int]bool{}
	for label := range uint32(64) {
		used[f.w.link.PathOf(f.r.a, f.r.b, 1, 1<<14|label)] = true
	}
	if len(used) != 8 {
		t.Errorf("64 labels take %d of 8 paths, want all", len(used))
	}
	x := f.flows[0]
	cfg := verbs.QPConfig{Type: verbs.RC, SendCQ: x.cq, RecvCQ: x.cq, MaxSendWR: 4}
	qp, err := f.r.pa.CreateQP(cfg)
	must(t, err)
	cfg.SendCQ = newCQ(t, f.r.cb, 16)
	cfg.RecvCQ = cfg.SendCQ
	peer, err := f.r.pb.CreateQP(cfg)
	must(t, err)
	mine, err := qp.Endpoint()
	must(t, err)
	theirs, err := peer.Endpoint()
	must(t, err)
	attr := verbs.ConnectAttr(mine, theirs, 1, 1)
	attr.AH.FlowLabel, attr.RetryCount, attr.Timeout = label, 1, 8
	must(t, verbs.ConnectWith(qp, attr))
	must(t, peer.Connect(mine))
	for i := range 8 {
		must(t, f.w.link.SetPath(f.r.a, f.r.b, i, softnic.Path{Cut: i != path}))
	}
	if _, ends := f.run(t, flow{qp: qp, cq: x.cq, src: x.src, dst: x.dst}); ends[0] != verbs.StatusSuccess {
		t.Errorf("a flow with label %#x ended with %s with all paths but %d cut, want success", label, ends[0], path)
	}
}

// TestPathsRefuse: invalid arguments are rejected.
func TestPathsRefuse(t *testing.T) {
	w := newWorld(t, softnic.FaultConfig{})
	r := newRig(t, w.link)
	if got := w.link.PathOf(r.a, r.b, 1, 0); got != -1 {
		t.Errorf("PathOf without paths = %d, want -1", got)
	}
	must(t, w.link.SetPaths(r.a, r.b, softnic.Path{}))
	for _, err := range []error{
		w.link.SetPaths(nil, r.b), w.link.SetPaths(r.a, nil), w.link.SetPaths(r.a, r.b, softnic.Path{Rate: -1}),
		w.link.SetPaths(r.a, r.b, softnic.Path{Queue: -1}), w.link.SetPath(r.a, r.b, 0, softnic.Path{Delay: -1}),
		w.link.SetPath(r.a, r.b, 0, softnic.Path{Loss: 1.5}),
		w.link.SetPath(r.a, r.b, 1, softnic.Path{}), w.link.SetPath(r.b, r.a, 0, softnic.Path{}), w.link.SetPath(r.a, r.b, -1, softnic.Path{}),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%v, want %v", err, verbs.ErrInvalid)
		}
	}
}
