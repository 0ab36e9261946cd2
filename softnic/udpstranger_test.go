//go:build linux

package softnic_test

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"
	"time"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// sent counts the packets sent to an address, by PSN.
type sent struct {
	mu   sync.Mutex
	psns map[uint32]bool
}

func (s *sent) Packet(_ int64, _, dst netip.AddrPort, _ uint16, _, _ uint8, parts ...[]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if dst.Addr() == nobody {
		s.psns[binary.BigEndian.Uint32(parts[0][8:])&0xffffff] = true
	}
}

func (s *sent) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.psns)
}

var nobody = netip.MustParseAddr("127.0.0.77")

// A peer with an unknown buffer size, such as Soft-RoCE or hardware, is sent at most 128 unacknowledged
// packets.
func TestUDPStrangerWindow(t *testing.T) {
	if got := sentAhead(t, softnic.UDPConfig{}); got != 128 {
		t.Fatalf("%d packets were sent, want 128", got)
	}
}

// With AssumeSoftNICs, a peer without a description gets a softnic's window.
func TestUDPAssumedSoftNICWindow(t *testing.T) {
	if got := sentAhead(t, softnic.UDPConfig{AssumeSoftNICs: true, Buffer: 4 << 20, Window: 300}); got <= 128 || got > 300 {
		t.Fatalf("%d packets were sent, want more than a stranger's 128 and at most 300", got)
	}
}

// sentAhead returns the number of packets that a long WRITE sends to a peer that does not exist.
func sentAhead(t *testing.T, cfg softnic.UDPConfig) int {
	t.Helper()
	seen := &sent{psns: map[uint32]bool{}}
	cfg.Capture = seen
	pair := openUDP(t, &cfg, softnic.Config{MTU: verbs.MTU256}, "127.0.0.1", "127.0.0.2")
	pd, err := pair.A.AllocPD()
	must(t, err)
	cq, err := pair.A.CreateCQ(verbs.CQConfig{Depth: 16})
	must(t, err)
	qp, err := pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4})
	must(t, err)
	const size = 1 << 18
	mem, err := verbs.AllocMemory(size, nil)
	must(t, err)
	t.Cleanup(func() { must(t, mem.Free()) })
	t.Cleanup(func() { must(t, pair.A.Close()) })
	mr, err := pd.RegisterMemory(mem, verbs.AccessAll)
	must(t, err)
	must(t, qp.Connect(verbs.Endpoint{QPN: 17, MTU: verbs.MTU256, GID: verbs.GIDFromAddr(nobody)}))
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: 1 << 20, RKey: 1}
	wr.SetSGE(verbs.SGE{Addr: mr.Addr(), Length: size, LKey: mr.LKey()})
	_, err = qp.PostSend([]verbs.SendWR{wr})
	must(t, err)
	wcs := make([]verbs.WC, 1)
	for n := 0; n == 0; time.Sleep(time.Millisecond) { // until the retries are used up
		n, err = cq.Poll(wcs)
		must(t, err)
	}
	if wcs[0].Status != verbs.StatusRetryExcErr {
		t.Fatalf("the WRITE ended with %v, want %v", wcs[0].Status, verbs.StatusRetryExcErr)
	}
	return seen.count()
}
