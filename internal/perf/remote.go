package perf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"ibverbx"
)

// askAfter is how long a client may take to send what it wants to measure.
const askAfter = 30 * time.Second

// NewClient asks the server at the other side of p for a test. A Config that cannot be measured is
// a *ConfigError.
func NewClient(ctx context.Context, p Partner, cfg Config) (*Test, error) {
	cfg, err := cfg.Complete()
	if err != nil {
		return nil, err
	}
	if !cfg.virtual() {
		return nil, refuse("connection", cfg.Connection, "tests between processes use VirtualQPs, which are made of RC QPs", "drop it")
	}
	sizes, err := cfg.rows(min(cfg.limit(maxFragment, 0), remoteBytes))
	if err != nil {
		return nil, err
	}
	for _, s := range cfg.Sizes {
		if err := remoteFits(&cfg, s); err != nil {
			return nil, err
		}
	}
	sizes = slices.DeleteFunc(sizes, func(s int) bool { return remoteFits(&cfg, s) != nil })
	t := &Test{cfg: cfg, own: cfg, partner: p, sizes: sizes, maxWR: maxRequests}
	mine, err := t.open(cfg.Wish())
	if err != nil {
		return nil, err
	}
	if err := say(ctx, p, specOf(&cfg, sizes)); err != nil {
		return nil, err
	}
	if err := say(ctx, p, mine); err != nil {
		return nil, err
	}
	theirs, err := t.hear(ctx)
	if err != nil {
		return nil, err
	}
	t.describe([2]hostInfo{mine, theirs})
	t.head.Role = "client"
	return t, nil
}

// NewServer takes the test that a client asks for. own is what this side wants of its VirtualQP,
// where the client leaves a choice; its zero value wants nothing. If the test is refused the client
// is sent the reason. A client that asks for nothing is dropped after a while, because others wait
// to be served.
func NewServer(ctx context.Context, p Partner, own Config) (*Test, error) {
	return newServer(ctx, p, own, askAfter)
}

// newServer is NewServer with a limit for each message of the client. Opening NICs may take longer: see Partner.Open.
func newServer(ctx context.Context, p Partner, own Config, limit time.Duration) (*Test, error) {
	p = &patient{p, limit}
	b, err := p.Recv(ctx)
	if err != nil {
		return nil, err
	}
	var s spec
	if err := decodeNote(b, &s); err != nil {
		return nil, err
	}
	t := &Test{own: own, side: 1, partner: p, sizes: s.Sizes, maxWR: maxRequests}
	mine, err := t.accept(&s)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the client's test: %w", err), say(ctx, p, hostInfo{Devices: []string{}, Text: brief(err.Error())}))
	}
	theirs, err := t.hear(ctx)
	if err != nil {
		return nil, err
	}
	if err := say(ctx, p, mine); err != nil {
		return nil, err
	}
	t.describe([2]hostInfo{theirs, mine})
	if _, err := t.own.lends(&t.cfg, s.Sizes); err != nil { // memory of a device takes more
		return nil, err
	}
	t.partner, t.head.Role = p.(*patient).Partner, "server"
	return t, nil
}

// patient is a Partner that may take so long for a message.
type patient struct {
	Partner
	limit time.Duration
}

// Recv implements Partner.
func (p *patient) Recv(ctx context.Context) ([]byte, error) {
	late := fmt.Errorf("the client has not said within %v what to measure", p.limit)
	ctx, cancel := context.WithTimeoutCause(ctx, p.limit, late)
	defer cancel()
	b, err := p.Partner.Recv(ctx)
	if err != nil && errors.Is(context.Cause(ctx), late) {
		err = fmt.Errorf("%w: %w", late, err)
	}
	return b, err
}

// accept takes a client's test, or refuses it, and opens NICs for it.
func (t *Test) accept(s *spec) (mine hostInfo, err error) {
	if t.cfg, err = s.config(); err != nil {
		return mine, err
	}
	t.cfg.Memory = t.own.Memory
	if err := firstBroken(t.cfg.memoryRules()); err != nil {
		return mine, err
	}
	wish := t.cfg.Wish()
	if wish.Memory, err = t.own.lends(&t.cfg, s.Sizes); err != nil {
		return mine, err
	}
	if t.own.Rails > 0 {
		wish.Rails = t.own.Rails
	}
	return t.open(wish)
}

// hear takes what the partner says of its NICs.
func (t *Test) hear(ctx context.Context) (h hostInfo, err error) {
	b, err := t.partner.Recv(ctx)
	if err != nil {
		return h, err
	}
	if err := decodeNote(b, &h); err != nil {
		return h, err
	}
	if err := h.check(); err != nil {
		return h, err
	}
	if h.Text != "" {
		return h, fmt.Errorf("the partner refuses: %q", h.Text)
	}
	return h, nil
}

// open opens NICs and begins the head of the report.
func (t *Test) open(w Wish) (h hostInfo, err error) {
	if t.rails[t.side], err = t.partner.Open(w); err != nil {
		return h, err
	}
	h.Memory = t.own.Memory[t.side].Device
	_, err = t.query(t.side, &h)
	return h, err
}

// openRemote connects this half of a row to the one in the other process. The memory is laid out
// as the partner does.
func (t *Test) openRemote(ctx context.Context, r *row) error {
	shape := t.shape(&r.plan)
	if from := &t.own.Memory[t.side]; from.Alloc != nil {
		mem, err := from.take(max(shape.Bytes, 1), &r.closers)
		if err != nil {
			return err
		}
		shape.Memory = mem
	}
	link, err := t.partner.Connect(ctx, shape)
	if err != nil && t.side == 0 && ctx.Err() != nil {
		return errCancelled
	}
	if err != nil {
		return err
	}
	if t.side == 0 {
		ctx = context.WithoutCancel(ctx) // a row that is connected tells the server that it ends
	}
	r.closers.Add(link.Close)
	mine, theirs := r.halves[t.side], r.halves[1-t.side]
	if need := uint64(r.plan.endBytes(1 - t.side)); link.Remote.Length < need {
		return fmt.Errorf("the partner lends %d bytes, and this row needs %d", link.Remote.Length, need)
	}
	if r.cfg.Kill.On && r.cfg.Kill.Rail >= len(link.Rails) {
		return refuse("kill-rail", r.cfg.Kill.Rail, fmt.Sprintf("the two sides agreed on %d rails", len(link.Rails)), "use a smaller rail")
	}
	if r.cfg.Kill.On && link.SetPort == nil {
		return r.cfg.Kill.refuse()
	}
	r.cfg.Kill.SetPort = link.SetPort
	mine.end = &virtualEnd{row: r, cq: link.CQ, qp: link.QP, nics: len(link.Rails)}
	mine.rails = link.Rails
	mine.memory = memory{region: link.Local, nics: deviceNames(t.rails[t.side])}
	theirs.memory = memory{remote: link.Remote, nics: "the partner"}
	if err := mine.attach(link.Local.Bytes(), shape.Memory, r.plan.size); err != nil {
		return err
	}
	r.talk = &talk{
		ctx: ctx, partner: t.partner, link: link, notes: make(chan heard, 64), ended: make(chan struct{}),
		timer: time.NewTimer(time.Hour), every: cmp.Or(t.every, progressEvery), news: r.now(),
	}
	r.closers.Add(r.talk.open())
	return nil
}

// agree takes over what the two sides have agreed on.
func (rep *Report) agree(l *Link) {
	rep.Link, rep.LinkReason = l.Name, l.Reason
	rep.Lanes, rep.QPs, rep.Scheme, rep.MTU, rep.Table.Fragment = l.Lanes, l.Lanes, l.Scheme.String(), l.MTU, l.Fragment
	rep.Sealed = l.Sealed
}

// shape is what this half of a row should be.
func (t *Test) shape(p *plan) Shape {
	s := Shape{
		QP: p.virtualConfig(&t.cfg), MTU: t.own.MTU, Schemes: allSchemes(t.own.Scheme),
		Direct: t.cfg.direct() || t.own.QPs == 1, Bytes: p.endBytes(t.side),
	}
	s.QP.Scheme, s.QP.Policy = 0, t.own.Policy
	if t.side == 1 {
		s.QP.Lanes, s.QP.FragmentSize = t.own.QPs, uint32(t.own.Fragment)
	}
	return s
}

// allSchemes returns all schemes, the given one first.
func allSchemes(first ibverbx.Scheme) []ibverbx.Scheme {
	rest := slices.DeleteFunc([]ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB, ibverbx.Spray}, func(s ibverbx.Scheme) bool { return s == first })
	return append([]ibverbx.Scheme{first}, rest...)
}
