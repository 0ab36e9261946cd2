package softnic

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/testslice"
	"ibverbx/verbs"
)

// chaosMode selects the environment of a chaos run.
type chaosMode struct {
	name  string
	fault bool // a link that loses, duplicates and reorders packets
	self  bool // UC and UD QPs also send to themselves
	loose bool // a memory link whose gates open as often as possible
	depth int  // of the CQs; a small one overruns
}

// TestChaos runs every user operation in random order on two NICs with QPs of all types: it posts valid and
// invalid requests, polls, advances time, changes QP states, closes QPs, takes ports down and deregisters
// memory. After every step the NICs must satisfy chaos.verify. At the end every signaled request must have
// completed once, in order.
//
// A seed determines the run. IBVERBX_TEST_CHAOS=N runs N seeds instead of a few.
func TestChaos(t *testing.T) {
	const full = 60
	first, seeds := uint64(testslice.Of(t).First(full)), uint64(testslice.Of(t).Count(full))
	if s := os.Getenv("IBVERBX_TEST_CHAOS"); s != "" {
		n, err := strconv.ParseUint(s, 10, 32)
		check(t, err)
		first, seeds = 0, n
	}
	for _, mode := range []chaosMode{
		{name: "memory", depth: 512},
		{name: "memory,self", self: true, depth: 512},
		{name: "memory,loose", loose: true, depth: 512},
		{name: "memory,overrun", depth: 32},
		{name: "memory,loose,overrun", loose: true, depth: 32},
		{name: "fault", fault: true, depth: 512},
		{name: "fault,self", fault: true, self: true, depth: 512},
		{name: "overrun", fault: true, self: true, depth: 32},
	} {
		t.Run(mode.name, func(t *testing.T) {
			for seed := first; seed < first+seeds; seed++ {
				t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { newChaos(t, mode, seed).run(600) })
			}
		})
	}
}

// chaos is one run.
type chaos struct {
	t        *testing.T
	r        *rand.Rand
	mode     chaosMode
	link     Link
	core     *core
	now      int64
	rigs     []*nicRig
	srqs     []*srq // one per rig
	actors   []*actor
	recvs    map[uint64]bool // receives posted and not completed
	lastRecv uint64
	log      []string
	// whole keeps the complete log.
	whole bool
	// watch is called after every step, unless nil.
	watch func()
}

// actor is a QP and its expected completions.
type actor struct {
	q        *qp
	at       int // its rig
	typ      verbs.QPType
	peer     *actor
	ah       verbs.AH
	nextID   uint64
	order    []uint64        // sends posted and not known to be complete, in order
	pending  map[uint64]bool // the signaled ones
	lastRecv uint64          // the last receive that completed
}

// recvID marks the WRIDs of receives.
const recvID = 1 << 63

func newChaos(t *testing.T, mode chaosMode, seed uint64) *chaos {
	t.Helper()
	c := &chaos{t: t, mode: mode, r: rand.New(rand.NewPCG(seed, 1)), recvs: map[uint64]bool{}}
	now := func() int64 { return c.now }
	if mode.fault {
		imp := Impairment{
			Loss: c.r.Float64() * 0.05, Duplicate: c.r.Float64() * 0.2, Reorder: c.r.Float64() * 0.3,
			Delay: time.Duration(c.r.IntN(5000)),
		}
		if c.r.IntN(2) == 0 {
			imp.Rate = 1e9
		}
		link, err := NewFaultLink(&FaultConfig{Seed: seed, Impairment: imp, Window: 1 + c.r.IntN(20), Queue: 1 + c.r.IntN(20), Now: now})
		check(t, err)
		c.link = link
	} else {
		c.link = NewMemoryLink(&MemoryConfig{Now: now})
	}
	if mode.loose {
		SetLoose(c.link.(*MemoryLink), 0)
	}
	for i := range 2 {
		s := newNICRig(t, c.link, mode.depth, Config{Seed: seed + uint64(i) + 1})
		q, err := s.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16, MaxSGE: 1})
		check(t, err)
		c.core = s.nic.core
		c.rigs, c.srqs = append(c.rigs, s), append(c.srqs, q.(*srq))
	}
	c.populate()
	return c
}

// populate creates the QPs: pairs, some connected to themselves, and UD.
func (c *chaos) populate() {
	add := func(at int, typ verbs.QPType) *actor {
		a := &actor{at: at, typ: typ}
		c.actors = append(c.actors, a)
		c.create(a)
		return a
	}
	pairs := []verbs.QPType{verbs.RC, verbs.RC, verbs.UC}
	if c.mode.loose {
		pairs = pairs[:2] // traffic of others shuts the gates
	}
	for _, typ := range pairs {
		a, b := add(0, typ), add(1, typ)
		a.peer, b.peer = b, a
		c.connect(a)
	}
	if c.mode.loose {
		return
	}
	own := []verbs.QPType{verbs.RC}
	if c.mode.self {
		own = append(own, verbs.UC)
	}
	for _, typ := range own {
		a := add(0, typ)
		a.peer = a
		c.connect(a)
	}
	for at := range c.rigs {
		to := 1 - at
		if c.mode.self {
			to = c.r.IntN(2)
		}
		a := add(at, verbs.UD)
		var err error
		a.ah, err = c.rigs[at].pd.CreateAH(verbs.AHAttr{DGID: c.rigs[to].nic.gids[1].GID, SGIDIndex: 1})
		check(c.t, err)
		c.connect(a)
	}
}

// create creates a new QP for a.
func (c *chaos) create(a *actor) {
	s := c.rigs[a.at]
	cfg := verbs.QPConfig{Type: a.typ, SendCQ: s.cq, RecvCQ: s.cq, MaxSendWR: 12, MaxSendSGE: 2, MaxInline: 64}
	if c.r.IntN(2) == 0 {
		cfg.SRQ = c.srqs[a.at]
	} else {
		cfg.MaxRecvWR = 12
	}
	q, err := s.pd.CreateQP(cfg)
	check(c.t, err)
	a.q = q.(*qp)
}

// connect moves the QP of a, and its peer if any, to RTS from any state.
func (c *chaos) connect(a *actor) {
	both := []*actor{a}
	if a.peer != nil && a.peer != a {
		both = append(both, a.peer)
	}
	for _, x := range both {
		if x.q.State() != verbs.StateReset {
			check(c.t, x.q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
		}
		x.order, x.pending, x.lastRecv = nil, map[uint64]bool{}, 0
	}
	for _, x := range both {
		if x.typ == verbs.UD {
			check(c.t, x.q.Connect(verbs.Endpoint{}))
			continue
		}
		attr := verbs.ConnectAttr(x.q.endpoint(), x.peer.q.endpoint(), 1, 1)
		attr.PathMTU, attr.Timeout, attr.MinRNRTimer = verbs.MTU256, 5, 1
		attr.RetryCount = uint8(c.r.IntN(8))
		attr.RNRRetry = []uint8{0, 1, 7}[c.r.IntN(3)]
		attr.MaxRdAtomic, attr.MaxDestRdAtomic = 2, 2
		check(c.t, verbs.ConnectWith(x.q, attr))
	}
}

func (c *chaos) note(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
	if len(c.log) > 60 && !c.whole {
		c.log = append(c.log[:0], c.log[30:]...)
	}
}

func (c *chaos) failf(format string, args ...any) {
	c.t.Helper()
	c.t.Fatalf("%s\nafter:\n%s", fmt.Sprintf(format, args...), strings.Join(c.log, "\n"))
}

// run takes a number of steps, then lets the NICs settle.
func (c *chaos) run(steps int) {
	for i := range steps {
		c.step(c.actors[c.r.IntN(len(c.actors))])
		if c.watch != nil {
			c.watch()
		}
		if !c.mode.loose || i%8 == 7 { // verify shuts the gates
			c.verify()
		}
	}
	for _, s := range c.rigs {
		s.nic.SetPort(true)
	}
	for _, a := range c.actors {
		if a.q.State() == verbs.StateSQD {
			check(c.t, a.q.Modify(verbs.QPAttr{State: verbs.StateRTS}, verbs.AttrState))
		}
	}
	for i := 0; ; i++ {
		next, pending := c.link.Step()
		if !pending {
			break
		}
		if i == 200_000 {
			c.failf("the link does not come to rest")
		}
		c.now = max(c.now, next)
		if i%50 == 0 {
			for _, a := range c.actors {
				c.postRecv(a, 1, false)
				c.poll(a.at, 512)
			}
		}
	}
	c.verify()
	c.verifyEnd()
}

// verifyEnd checks that, at rest, every signaled send has completed.
func (c *chaos) verifyEnd() {
	for at, s := range c.rigs {
		c.poll(at, 512)
		if s.cq.(*cq).overrun && c.mode.depth >= 512 {
			c.failf("the CQ of rig %d overran", at)
		}
	}
	for _, a := range c.actors {
		if len(a.pending) > 0 && !a.q.sendCQ.overrun {
			c.failf("QP %#x, %v in %v: %d signaled sends never completed", a.q.num, a.typ, a.q.state, len(a.pending))
		}
	}
}
