package ibverbx_test

import (
	"testing"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// host is one side of a test over softnic: rails, a CQ and a VirtualQP.
type host struct {
	tb    testing.TB
	nics  []*softnic.NIC
	rails *ibverbx.Rails
	cq    *ibverbx.VirtualCQ
	qp    *ibverbx.VirtualQP
}

// hostPair returns two hosts, each with a NIC on every link, whose VirtualQPs are
// connected.
func hostPair(tb testing.TB, links []softnic.Link, cfg ibverbx.Config) (a, b *host) {
	tb.Helper()
	a, b = newHost(tb, links, cfg), newHost(tb, links, cfg)
	cardA, err := a.qp.Card()
	must(tb, err)
	cardB, err := b.qp.Card()
	must(tb, err)
	must(tb, a.qp.Connect(overTheWire(tb, cardB)))
	must(tb, b.qp.Connect(overTheWire(tb, cardA)))
	return a, b
}

func overTheWire(tb testing.TB, c *ibverbx.Card) *ibverbx.Card {
	tb.Helper()
	text, err := c.Encode()
	must(tb, err)
	got, err := ibverbx.DecodeCard(text)
	must(tb, err)
	return got
}

func newHost(tb testing.TB, links []softnic.Link, cfg ibverbx.Config) *host {
	tb.Helper()
	h := newRails(tb, links)
	var err error
	h.cq, err = h.rails.NewCQ(ibverbx.CQConfig{Waker: verbs.NewWaker()})
	must(tb, err)
	tb.Cleanup(func() { must(tb, h.cq.Close()) })
	h.qp, err = h.cq.NewQP(cfg)
	must(tb, err)
	tb.Cleanup(func() { must(tb, h.qp.Close()) })
	return h
}

// newRails returns a host with a NIC on every link and nothing else.
func newRails(tb testing.TB, links []softnic.Link) *host {
	tb.Helper()
	h := &host{tb: tb}
	var cfgs []ibverbx.RailConfig
	for _, link := range links {
		nic, err := softnic.New(link, softnic.Config{})
		must(tb, err)
		tb.Cleanup(func() { must(tb, nic.Close()) })
		ctx, err := nic.Open()
		must(tb, err)
		h.nics = append(h.nics, nic)
		cfgs = append(cfgs, ibverbx.RailConfig{Context: ctx})
	}
	var err error
	h.rails, err = ibverbx.NewRails(cfgs...)
	must(tb, err)
	tb.Cleanup(func() { must(tb, h.rails.Close()) })
	return h
}

// region returns n registered bytes.
func (h *host) region(n int) *ibverbx.Region {
	h.tb.Helper()
	mem, err := verbs.AllocMemory(n, nil)
	must(h.tb, err)
	h.tb.Cleanup(func() { must(h.tb, mem.Free()) })
	r, err := h.rails.Register(mem, verbs.AccessAll)
	must(h.tb, err)
	h.tb.Cleanup(func() { must(h.tb, r.Close()) })
	return r
}

// wait polls until n completions are there.
func (h *host) wait(n int) []ibverbx.WC {
	h.tb.Helper()
	got := make([]ibverbx.WC, n)
	have := 0
	for turns := 0; have < n; turns++ {
		k, err := h.cq.Poll(got[have:])
		must(h.tb, err)
		if have += k; turns > 10_000_000 {
			h.tb.Fatalf("%d of %d completions", have, n)
		}
	}
	return got
}

func memoryLinks(n int) []softnic.Link {
	links := make([]softnic.Link, n)
	for i := range links {
		links[i] = softnic.NewMemoryLink(nil)
	}
	return links
}
