// Command request sends WRITE_WITH_IMMs between two connected VirtualQPs and writes the coverage
// counters of the last ones. Command pathcount builds it with coverage and runs it.
//
//	request LINK REQUESTS DIRECTORY
package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime/coverage"
	"strconv"
	"time"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

const (
	rails   = 2
	size    = 4096 // bytes per request
	warmUp  = 2000 // requests before the counters start
	timeout = 10 * time.Second
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "request:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: request LINK REQUESTS DIRECTORY")
	}
	requests, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	a, b, err := newPair(args[0])
	if err != nil {
		return err
	}
	for range warmUp {
		if err := write(a, b); err != nil {
			return err
		}
	}
	time.Sleep(100 * time.Millisecond) // lets timers of the warm-up fire
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	for range requests {
		if err := write(a, b); err != nil {
			return err
		}
	}
	// The process exits without closing anything, so that teardown does not count.
	return errors.Join(coverage.WriteCountersDir(args[2]), coverage.WriteMetaDir(args[2]))
}

// end is one side.
type end struct {
	cq     *ibverbx.VirtualCQ
	qp     *ibverbx.VirtualQP
	region *ibverbx.Region
}

// newPair returns two connected ends, each with a NIC on every rail. They stay open until the process exits.
func newPair(link string) (a, b *end, err error) {
	linksA, linksB, err := newLinks(link)
	if err != nil {
		return nil, nil, err
	}
	if a, err = newEnd(linksA); err != nil {
		return nil, nil, err
	}
	if b, err = newEnd(linksB); err != nil {
		return nil, nil, err
	}
	cardA, err := a.qp.Card()
	if err != nil {
		return nil, nil, err
	}
	cardB, err := b.qp.Card()
	if err != nil {
		return nil, nil, err
	}
	return a, b, errors.Join(a.qp.Connect(cardB), b.qp.Connect(cardA))
}

// newLinks returns the links of both sides by rail. Over UDP each side has its own link, as in two
// processes.
func newLinks(name string) (a, b []softnic.Link, err error) {
	switch name {
	case "memory":
		for range rails {
			a = append(a, softnic.NewMemoryLink(nil))
		}
		return a, a, nil
	case "udp":
		for rail := range rails {
			addr := netip.AddrFrom4([4]byte{127, 0, 0, byte(rail + 1)})
			for _, links := range []*[]softnic.Link{&a, &b} {
				link, err := softnic.NewUDPLink(&softnic.UDPConfig{Addrs: []netip.Addr{addr}})
				if err != nil {
					return nil, nil, err
				}
				*links = append(*links, link)
			}
		}
		return a, b, nil
	}
	return nil, nil, fmt.Errorf("there is no link %q: want memory or udp", name)
}

func newEnd(links []softnic.Link) (*end, error) {
	var configs []ibverbx.RailConfig
	for _, link := range links {
		nic, err := softnic.New(link, softnic.Config{})
		if err != nil {
			return nil, err
		}
		ctx, err := nic.Open()
		if err != nil {
			return nil, err
		}
		configs = append(configs, ibverbx.RailConfig{Context: ctx})
	}
	r, err := ibverbx.NewRails(configs...)
	if err != nil {
		return nil, err
	}
	e := &end{}
	if e.cq, err = r.NewCQ(ibverbx.CQConfig{}); err != nil {
		return nil, err
	}
	// Otherwise the measured speed of the rails, which varies between runs, would select the
	// policy.
	if e.qp, err = e.cq.NewQP(ibverbx.Config{Policy: ibverbx.RoundRobin}); err != nil {
		return nil, err
	}
	mem, err := verbs.AllocMemory(size, nil)
	if err != nil {
		return nil, err
	}
	e.region, err = r.Register(mem, verbs.AccessAll)
	return e, err
}

// write executes one request: b posts a receive, a posts a WRITE_WITH_IMM of its whole region, and
// both poll for their completion.
func write(a, b *end) error {
	if _, err := b.qp.PostRecv([]ibverbx.RecvWR{{}}); err != nil {
		return err
	}
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: b.region.Remote()}
	wr.SetSGE(a.region.SGE(0, size))
	if _, err := a.qp.PostSend([]ibverbx.SendWR{wr}); err != nil {
		return err
	}
	limit := time.Now().Add(timeout)
	for done := [2]bool{}; done != [2]bool{true, true}; {
		for i, e := range [2]*end{a, b} {
			var wcs [1]ibverbx.WC
			n, err := e.cq.Poll(wcs[:])
			if err != nil {
				return err
			}
			if done[i] = done[i] || n == 1; n == 1 && wcs[0].Err() != nil {
				return wcs[0].Err()
			}
		}
		if time.Now().After(limit) {
			return fmt.Errorf("a request has not completed within %v: the two ends: %v", timeout, done)
		}
	}
	return nil
}
