package reliable_test

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// sourcePorts is a Capture that collects the source ports of the packets to each QP.
type sourcePorts struct {
	mu sync.Mutex
	by map[uint32]map[uint16]bool // by QP number
}

func (s *sourcePorts) Packet(_ int64, src, _ netip.AddrPort, _ uint16, _, _ uint8, parts ...[]byte) {
	var h roce.Header
	if _, why := h.Decode(bytes.Join(parts, nil)); why != roce.OK {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by[h.DestQPN] == nil {
		s.by[h.DestQPN] = map[uint16]bool{}
	}
	s.by[h.DestQPN][src.Port()] = true
}

// collect adds the source ports of the packets to the paths of a QP. Each path must have one.
func (s *sourcePorts) collect(t *testing.T, to verbs.QP, ports map[uint16]bool) {
	t.Helper()
	paths := to.(reliable.StatsReader).Paths() // without mu: a NIC calls Packet with its locks held
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range paths {
		if len(s.by[p.QPN]) > 1 {
			t.Fatalf("packets to the path with QP %#x come from the ports %v, want one", p.QPN, s.by[p.QPN])
		}
		for port := range s.by[p.QPN] {
			ports[port] = true
		}
	}
}

// TestSixteenSourcePorts: each of sixteen paths over UDP has its own source port.
func TestSixteenSourcePorts(t *testing.T) {
	const size = 1 << 20
	seen := &sourcePorts{by: map[uint32]map[uint16]bool{}}
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.71"), netip.MustParseAddr("127.0.0.72")}
	link, err := softnic.NewUDPLink(&softnic.UDPConfig{Addrs: addrs, Capture: seen, Sockets: 16})
	must(t, err)
	a, b := newPair(t, link, reliable.Config{}, size)
	ports := map[uint16]bool{}
	for start := time.Now(); len(ports) < 16; {
		transfer(t, a, b, verbs.OpRDMAWrite, size)
		seen.collect(t, b.qp, ports)
		if time.Since(start) > patience {
			t.Fatalf("16 paths have sent from %d ports after %v, want 16", len(ports), patience)
		}
	}
}

// TestRebuiltPathHasAnotherLabel fails a path's QP. The recovered path has another flow label and so takes
// another route.
func TestRebuiltPathHasAnotherLabel(t *testing.T) {
	reliable.OverUC(t, "QPs of an epoch")
	const size = 1 << 16
	a, b := newPair(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 4, ChunkBytes: 4096}, size)
	path := func() reliable.PathInfo { return a.qp.(reliable.StatsReader).Paths()[2] }
	before := path()
	must(t, a.nic.FailQP(before.QPN))
	for start := time.Now(); path().Epoch == before.Epoch || path().FlowLabel == before.FlowLabel; {
		transfer(t, a, b, verbs.OpRDMAWriteWithImm, size)
		if time.Since(start) > patience {
			t.Fatalf("the path is %+v and was %+v when its QP failed, want another epoch and label", path(), before)
		}
	}
}
