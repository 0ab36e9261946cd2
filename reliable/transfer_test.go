package reliable_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// links are the networks that transfers run over.
func links(tb testing.TB) map[string]func() softnic.Link {
	tb.Helper()
	fault := func(i softnic.Impairment) func() softnic.Link {
		return func() softnic.Link {
			l, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1, Impairment: i})
			must(tb, err)
			return l
		}
	}
	// The NICs use a non-standard port, which only the inner QP's endpoint contains.
	overUDP := func(i softnic.Impairment) func() softnic.Link {
		return func() softnic.Link {
			addrs := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}
			l, err := softnic.NewUDPLink(&softnic.UDPConfig{Addrs: addrs, Port: 14791, Seed: 1, Impairment: i})
			must(tb, err)
			return l
		}
	}
	return map[string]func() softnic.Link{
		"memory":       func() softnic.Link { return softnic.NewMemoryLink(nil) },
		"udp":          overUDP(softnic.Impairment{}),
		"udp, loss=1%": overUDP(softnic.Impairment{Loss: 0.01}),
		"clean":        fault(softnic.Impairment{}),
		"loss=1%":      fault(softnic.Impairment{Loss: 0.01}),
		"loss=5%":      fault(softnic.Impairment{Loss: 0.05}),
	}
}

// TestTransfer moves every kind of message in every size over every network.
func TestTransfer(t *testing.T) {
	const size = 1 << 20
	for name, link := range links(t) {
		t.Run(name, func(t *testing.T) {
			a, b := newPair(t, link(), reliable.Config{}, size)
			for _, n := range []int{0, 1, 100, 4096, 32 << 10, 32<<10 + 1, 200_000, size} {
				for op := verbs.OpRDMAWrite; op <= verbs.OpRDMARead; op++ {
					t.Run(fmt.Sprintf("%v/%d", op, n), func(t *testing.T) { transfer(t, a, b, op, n) })
				}
			}
		})
	}
}

func transfer(t *testing.T, a, b *side, op verbs.Opcode, n int) {
	a.fill(byte(op) + byte(n))
	b.fill(200)
	want, to, far := bytes.Clone(a.mem.Bytes()[:n]), b, b.mr
	if op == verbs.OpRDMARead {
		from := b.shelf(t, n, 200)
		want, to, far = bytes.Clone(from.mem.Bytes()[:n]), a, from.mr
	}
	takes := op == verbs.OpRDMAWriteWithImm || op == verbs.OpSend || op == verbs.OpSendWithImm
	if takes {
		b.recv(t, 7, 0, n)
	}
	wr := verbs.SendWR{WRID: 9, Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: far.Addr(), RKey: far.RKey(), Imm: 0xfedcba98}
	if n > 1 {
		wr.SetSGE(a.sge(0, n/3), a.sge(n/3, n-n/3))
	} else {
		wr.SetSGE(a.sge(0, n))
	}
	a.post(t, wr)
	if wc := a.wait(t, 1)[0]; wc.Err() != nil || wc.WRID != 9 || wc.Opcode != op.WC() || wc.QPN != a.qp.Num() {
		t.Fatalf("completion %+v (%v), want success of 9", wc, wc.Err())
	}
	if takes {
		wc := b.wait(t, 1)[0]
		withImm := wc.Flags&verbs.WCWithImm != 0
		if wc.Err() != nil || wc.WRID != 7 || int(wc.ByteLen) != n || withImm != (op != verbs.OpSend) || (withImm && wc.Imm != 0xfedcba98) {
			t.Fatalf("receive %+v (%v), want 7 with %d bytes and the immediate", wc, wc.Err(), n)
		}
	}
	if got := to.mem.Bytes()[:n]; !bytes.Equal(got, want) {
		t.Fatalf("%d bytes differ", n)
	}
}
