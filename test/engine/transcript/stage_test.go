package transcript_test

import (
	"errors"
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// stageNIC is a NIC whose lanes hold requests until a transcript decides their outcome.
type stageNIC interface {
	context() verbs.Context
	// lane returns the QP with a number, from now on held.
	lane(qpn uint32) stageLane
	// leave is called when all of the engine's objects are closed.
	leave(tb testing.TB)
}

// stageLane is a held QP. See nullnic.QP for its methods.
type stageLane interface {
	Posted() []verbs.SendWR
	Chains() []int
	Request(i int) *verbs.SendWR // Taken[i]
	Inline(i int) []byte
	Waiting() []verbs.RecvWR
	Complete(n int)
	Fail(status verbs.Status)
	FailRecv(status verbs.Status)
	RefuseAt(k int, err error)
	Deliver(wc verbs.WC, payload []byte) bool
}

// nullStage is a NIC that moves no data.
type nullStage struct{ nic *nullnic.NIC }

func openNullStage(_ testing.TB, rail int) stageNIC {
	return nullStage{nic: nullnic.New(fmt.Sprintf("null%d", rail), 0x11)} // the same QP numbers on each
}

func (n nullStage) context() verbs.Context { return n.nic }
func (n nullStage) leave(testing.TB)       {}

func (n nullStage) lane(qpn uint32) stageLane {
	for _, q := range n.nic.QPs() {
		if q.Num() == qpn && !q.Closed() {
			q.Hold()
			return nullLane{q}
		}
	}
	return nil
}

type nullLane struct{ *nullnic.QP }

func (l nullLane) Request(i int) *verbs.SendWR { return &l.Taken[i] }

// stage is the world of a transcript: rails of held NICs, a VirtualCQ, and one or more VirtualQPs, each
// connected to a scripted peer.
type stage struct {
	tb    testing.TB
	place string // file and line being played

	open    func(tb testing.TB, rail int) stageNIC
	nics    []stageNIC
	rails   *ibverbx.Rails
	cq      *ibverbx.VirtualCQ
	memory  *verbs.Memory
	region  *ibverbx.Region
	actors  []*actor
	nextOff int // default offset of the next request
}

// actor is a VirtualQP of a stage.
type actor struct {
	name   string // empty for the first
	qp     *ibverbx.VirtualQP
	scheme ibverbx.Scheme
	base   uint64 // address of the region, local and remote
	lanes  []stageLane
	roles  []string
	rail   []int
	rung   []int // doorbells of each lane already reported
	failed bool
}

const stageMemory = 16 << 20

// build creates a new world with a first VirtualQP.
func (st *stage) build(a *args) []string {
	st.close()
	*st = stage{tb: st.tb, place: st.place, open: st.open}
	var cfgs []ibverbx.RailConfig
	for i := range a.number("rails", 1) {
		nic := st.open(st.tb, i)
		st.nics = append(st.nics, nic)
		cfgs = append(cfgs, ibverbx.RailConfig{Context: nic.context()})
	}
	var err error
	st.rails, err = ibverbx.NewRails(cfgs...)
	enginetest.Must(st.tb, err)
	st.cq, err = st.rails.NewCQ(ibverbx.CQConfig{Depth: 1 << 12})
	enginetest.Must(st.tb, err)
	st.memory, err = verbs.AllocMemory(stageMemory, nil)
	enginetest.Must(st.tb, err)
	for i := range st.memory.Bytes()[:1<<16] {
		st.memory.Bytes()[i] = byte(i) // makes inline bytes distinguishable
	}
	st.region, err = st.rails.Register(st.memory, verbs.AccessAll)
	enginetest.Must(st.tb, err)
	return st.join(a)
}

// join adds a VirtualQP.
func (st *stage) join(a *args) []string {
	cfg := ibverbx.Config{
		Lanes:          a.number("lanes", 4),
		SendDepth:      a.number("depth", 16),
		RecvDepth:      a.number("recv-depth", 16),
		LaneDepth:      a.number("lane-depth", 32),
		NotifyDepth:    a.number("notify-depth", 8),
		FragmentSize:   uint32(a.number("fragment", 0)),
		MaxInline:      a.number("inline", 64),
		SignalInterval: a.number("interval", 16),
	}
	if a.has("track") {
		cfg.Control = enginetest.Deaf{}
	}
	enginetest.Must(st.tb, cfg.Scheme.UnmarshalText([]byte(a.text("scheme", "tally"))))
	enginetest.Must(st.tb, cfg.Policy.UnmarshalText([]byte(a.text("policy", "round-robin"))))
	x := &actor{name: a.text("name", ""), scheme: cfg.Scheme, base: st.region.Remote().Addr}
	a.done()
	var err error
	x.qp, err = st.cq.NewQP(cfg)
	enginetest.Must(st.tb, err)
	card, err := x.qp.Card()
	enginetest.Must(st.tb, err)
	enginetest.Must(st.tb, x.qp.Connect(card))
	for _, l := range x.qp.Stats().Lanes {
		if held := st.nics[l.Rail].lane(l.QPN); held != nil {
			x.lanes = append(x.lanes, held)
		}
		x.roles, x.rail = append(x.roles, l.Role), append(x.rail, l.Rail)
	}
	if len(x.lanes) != len(x.roles) {
		st.tb.Fatalf("%s: %d of %d lanes were found on the NICs", st.place, len(x.lanes), len(x.roles))
	}
	x.rung = make([]int, len(x.lanes))
	st.actors = append(st.actors, x)
	return x.describeLanes(len(st.nics))
}

// close tears the world down.
func (st *stage) close() {
	var errs []error
	for _, x := range st.actors {
		errs = append(errs, x.qp.Close())
	}
	if st.region != nil {
		errs = append(errs, st.region.Close(), st.memory.Free(), st.cq.Close(), st.rails.Close())
	}
	enginetest.Must(st.tb, errors.Join(errs...))
	for _, nic := range st.nics {
		nic.leave(st.tb)
	}
	st.actors, st.region, st.nics = nil, nil, nil
}

// actor returns the VirtualQP that a line is about.
func (st *stage) actor(a *args) *actor {
	name := a.text("qp", "")
	for _, x := range st.actors {
		if x.name == name {
			return x
		}
	}
	a.fatalf("there is no VirtualQP %q: begin with a config line", name)
	return nil
}

// lane returns the lane that a line is about: a number, "message" or "notify".
func (x *actor) lane(a *args) stageLane {
	name := a.text("lane", "")
	for i, role := range x.roles {
		if name == role || name == fmt.Sprint(i) {
			return x.lanes[i]
		}
	}
	a.fatalf("there is no lane %q", name)
	return nil
}
