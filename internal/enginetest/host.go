package enginetest

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Host is one side of a test: rails, a VirtualCQ, and a VirtualQP.
type Host struct {
	tb testing.TB
	// NICs are the software NICs by rail; empty on other devices.
	NICs  []*softnic.NIC
	Rails *ibverbx.Rails
	CQ    *ibverbx.VirtualCQ
	// QP is the first VirtualQP that NewQP created.
	QP *ibverbx.VirtualQP
}

// NewPair returns two hosts, each with a NIC on every link, whose VirtualQPs are connected.
func NewPair(tb testing.TB, links []softnic.Link, cfg ibverbx.Config) (a, b *Host) {
	tb.Helper()
	a, b = NewHost(tb, links, cfg), NewHost(tb, links, cfg)
	Connect(tb, a.QP, b.QP)
	return a, b
}

// NewHost returns a host with a NIC on every link, a VirtualCQ with a waker, and an unconnected
// VirtualQP.
func NewHost(tb testing.TB, links []softnic.Link, cfg ibverbx.Config) *Host {
	tb.Helper()
	h := NewRails(tb, links)
	h.NewCQ(ibverbx.CQConfig{Waker: verbs.NewWaker()})
	h.NewQP(cfg)
	return h
}

// NewRails returns a host with a NIC on every link, without a VirtualCQ or VirtualQP.
func NewRails(tb testing.TB, links []softnic.Link) *Host {
	tb.Helper()
	return NewRailsOver(tb, links, func(_ int, inner verbs.Context) verbs.Context { return inner })
}

// NewRailsOver is NewRails with a layer between each NIC and the engine: wrap receives the rail and
// the context of its NIC and returns the context for the engine.
func NewRailsOver(tb testing.TB, links []softnic.Link, wrap func(rail int, inner verbs.Context) verbs.Context) *Host {
	tb.Helper()
	rail := -1
	layered := func(inner verbs.Context) (verbs.Context, error) { rail++; return wrap(rail, offloaded{inner}), nil }
	// A seed gives all NICs the same QP numbers, which the engine must handle.
	nics, rails, shut, err := OpenNICs(links, softnic.Config{Seed: rand.Uint64() | 1}, layered)
	tb.Cleanup(func() { Must(tb, shut()) })
	Must(tb, err)
	h := NewRailsOn(tb, rails...)
	h.NICs = nics
	return h
}

// offloaded wraps a software NIC's context so that it does not report running on the caller's core.
// The engine then fragments requests as on real NICs.
type offloaded struct{ verbs.Context }

func (c offloaded) QueryPort(port int) (verbs.PortAttr, error) {
	attr, err := c.Context.QueryPort(port)
	attr.OnCaller, attr.DeviceCopies = false, false
	return attr, err
}

// NewRailsOn returns a host on contexts of any provider, without a VirtualCQ or VirtualQP. The
// caller closes the contexts.
func NewRailsOn(tb testing.TB, rails ...ibverbx.RailConfig) *Host {
	tb.Helper()
	h := &Host{tb: tb}
	var err error
	h.Rails, err = ibverbx.NewRails(rails...)
	Must(tb, err)
	tb.Cleanup(func() { Must(tb, h.Rails.Close()) })
	return h
}

// NewOn returns a host on rails closed by the caller, without a VirtualCQ or VirtualQP.
func NewOn(tb testing.TB, rails *ibverbx.Rails) *Host { return &Host{tb: tb, Rails: rails} }

// NewCQ creates the host's VirtualCQ.
func (h *Host) NewCQ(cfg ibverbx.CQConfig) {
	h.tb.Helper()
	cq, err := h.Rails.NewCQ(cfg)
	Must(h.tb, err)
	h.tb.Cleanup(func() { Must(h.tb, cq.Close()) })
	h.CQ = cq
}

// NewQP returns a new VirtualQP on the host's VirtualCQ.
func (h *Host) NewQP(cfg ibverbx.Config) *ibverbx.VirtualQP {
	h.tb.Helper()
	q, err := h.CQ.NewQP(cfg)
	Must(h.tb, err)
	h.tb.Cleanup(func() { Must(h.tb, q.Close()) })
	if h.QP == nil {
		h.QP = q
	}
	return q
}

// Region returns n registered bytes with all access rights.
func (h *Host) Region(n int) *ibverbx.Region {
	h.tb.Helper()
	mem, err := verbs.AllocMemory(n, nil)
	Must(h.tb, err)
	h.tb.Cleanup(func() { Must(h.tb, mem.Free()) })
	r, err := h.Rails.Register(mem, verbs.AccessAll)
	Must(h.tb, err)
	h.tb.Cleanup(func() { Must(h.tb, r.Close()) })
	return r
}

// PostSend posts requests; all must be accepted.
func (h *Host) PostSend(wrs ...ibverbx.SendWR) {
	h.tb.Helper()
	if n, err := h.QP.PostSend(wrs); n != len(wrs) || err != nil {
		h.tb.Fatalf("PostSend = %d, %v; want %d", n, err, len(wrs))
	}
}

// PostRecv posts receives; all must be accepted.
func (h *Host) PostRecv(wrs ...ibverbx.RecvWR) {
	h.tb.Helper()
	if n, err := h.QP.PostRecv(wrs); n != len(wrs) || err != nil {
		h.tb.Fatalf("PostRecv = %d, %v; want %d", n, err, len(wrs))
	}
}

// Poll polls the VirtualCQ once, for at most 16 completions.
func (h *Host) Poll() []ibverbx.WC {
	var wcs [16]ibverbx.WC
	n, err := h.CQ.Poll(wcs[:])
	Must(h.tb, err)
	return wcs[:n]
}

// Wait polls until n completions have arrived.
func (h *Host) Wait(n int) []ibverbx.WC {
	h.tb.Helper()
	got := make([]ibverbx.WC, n)
	have := 0
	for turns := 0; have < n; turns++ {
		k, err := h.CQ.Poll(got[have:])
		Must(h.tb, err)
		if have += k; turns > 10_000_000 {
			h.tb.Fatalf("%d of %d completions", have, n)
		}
		if k == 0 {
			runtime.Gosched() // to goroutines of links and wrapped rails
		}
	}
	return got
}

// MemoryLinks returns n links that deliver packets within the process.
func MemoryLinks(n int) []softnic.Link {
	links := make([]softnic.Link, n)
	for i := range links {
		links[i] = softnic.NewMemoryLink(nil)
	}
	return links
}

// FaultLinks returns n links with the same impairment. Link i has the seed i+1.
func FaultLinks(tb testing.TB, n int, imp softnic.Impairment) []softnic.Link {
	tb.Helper()
	links := make([]softnic.Link, n)
	for i := range links {
		link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: uint64(i + 1), Impairment: imp})
		Must(tb, err)
		links[i] = link
	}
	return links
}

// Connect connects two VirtualQPs with each other's encoded cards.
func Connect(tb testing.TB, a, b *ibverbx.VirtualQP) {
	tb.Helper()
	cardA, err := a.Card()
	Must(tb, err)
	cardB, err := b.Card()
	Must(tb, err)
	Must(tb, a.Connect(OverTheWire(tb, cardB)))
	Must(tb, b.Connect(OverTheWire(tb, cardA)))
}

// OverTheWire encodes a card and decodes it again, as a peer would.
func OverTheWire(tb testing.TB, c *ibverbx.Card) *ibverbx.Card {
	tb.Helper()
	text, err := c.Encode()
	Must(tb, err)
	got, err := ibverbx.DecodeCard(text)
	Must(tb, err)
	return got
}
