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

// sent counts the packets that are sent to an address, by their numbers.
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

// A peer that has not said how much it can hold, as Soft-RoCE and hardware, is sent 128 packets
// ahead of its answers and no more.
func TestUDPStrangerWindow(t *testing.T) {
	seen := &sent{psns: map[uint32]bool{}}
	pair := openUDP(t, &softnic.UDPConfig{Capture: seen}, softnic.Config{MTU: verbs.MTU256}, "127.0.0.1", "127.0.0.2")
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
	if got := seen.count(); got != 128 || wcs[0].Status != verbs.StatusRetryExcErr {
		t.Fatalf("%d packets were sent and the WRITE ended with %v, want 128 and %v", got, wcs[0].Status, verbs.StatusRetryExcErr)
	}
}
