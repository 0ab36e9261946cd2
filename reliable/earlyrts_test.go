package reliable_test

import (
	"errors"
	"fmt"
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestServesInRTR connects two QPs by Modify. While one of them is in RTR, it accepts and serves legal
// requests and refuses illegal ones. In RTS it sends with the latest attributes from Modify. With several
// flows, both leader and follower are tested in RTR.
func TestServesInRTR(t *testing.T) {
	for _, flows := range []int{1, 4} {
		for _, first := range []int{0, 1} {
			t.Run(fmt.Sprintf("flows=%d/first=%d", flows, first), func(t *testing.T) {
				link, cfg := softnic.NewMemoryLink(nil), reliable.Config{Paths: 2, Flows: flows}
				sides := [2]*side{newSide(t, link, cfg, 10_000), newSide(t, link, cfg, 10_000)}
				serveInRTR(t, sides[first], sides[1-first])
			})
		}
	}
}

// serveInRTR: b serves a's requests while in RTR.
func serveInRTR(t *testing.T, a, b *side) {
	t.Helper()
	ea, err := a.qp.Endpoint()
	must(t, err)
	eb, err := b.qp.Endpoint()
	must(t, err)
	attr := verbs.ConnectAttr(eb, ea, 1, 1)
	attr.Timeout, attr.RetryCount, attr.RNRRetry, attr.MaxRdAtomic = 17, 3, 6, 2
	must(t, verbs.ConnectWith(halfway{b.qp, func() {
		a.byModify(t, eb)
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpSend, verbs.OpRDMARead, verbs.OpRDMAWriteWithImm} {
			transfer(t, a, b, op, 10_000)
		}
		if n, err := b.qp.PostSend([]verbs.SendWR{{Opcode: verbs.OpSend}}); n != 0 || !errors.Is(err, verbs.ErrState) {
			t.Errorf("PostSend in RTR = %d, %v; want 0, %v", n, err, verbs.ErrState)
		}
		bad := attr
		bad.State, bad.RNRRetry = verbs.StateRTS, 8
		mask := verbs.AttrState | verbs.AttrSQPSN | verbs.AttrTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry | verbs.AttrMaxRdAtomic
		if err := b.qp.Modify(bad, mask); !errors.Is(err, verbs.ErrInvalid) || b.qp.State() != verbs.StateRTR {
			t.Errorf("Modify with RNRRetry 8 = %v, and the QP is in %v; want %v and RTR", err, b.qp.State(), verbs.ErrInvalid)
		}
	}}, attr))
	got, err := b.qp.Query()
	must(t, err)
	if got.State != verbs.StateRTS || got.Timeout != 17 || got.RetryCount != 3 || got.RNRRetry != 6 || got.MaxRdAtomic != 2 || got.SQPSN != attr.SQPSN {
		t.Errorf("Query = %+v, want what Modify has set: %+v", got, attr)
	}
	for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMARead} {
		transfer(t, b, a, op, 10_000)
		transfer(t, a, b, op, 10_000)
	}
	// The QP can be reused: state kept next to the handshake QP is reset with it.
	for _, q := range []verbs.QP{a.qp, b.qp} {
		must(t, q.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.AttrState))
	}
	connect(t, a, b)
	transfer(t, a, b, verbs.OpSend, 10_000)
	transfer(t, b, a, verbs.OpSend, 10_000)
}

// TestServesConnectInRTR: a QP in RTR, taken there by Modify, serves the requests of a peer that is connected by Connect.
func TestServesConnectInRTR(t *testing.T) {
	for _, flows := range []int{1, 4} {
		for _, first := range []int{0, 1} {
			t.Run(fmt.Sprintf("flows=%d/first=%d", flows, first), func(t *testing.T) {
				link, cfg := softnic.NewMemoryLink(nil), reliable.Config{Paths: 2, Flows: flows}
				sides := [2]*side{newSide(t, link, cfg, 10_000), newSide(t, link, cfg, 10_000)}
				a, b := sides[first], sides[1-first]
				ea, err := a.qp.Endpoint()
				must(t, err)
				eb, err := b.qp.Endpoint()
				must(t, err)
				attr := verbs.ConnectAttr(eb, ea, 1, 1)
				must(t, verbs.ConnectWith(halfway{b.qp, func() {
					must(t, a.qp.Connect(eb))
					transfer(t, a, b, verbs.OpRDMAWrite, 10_000)
				}}, attr))
				transfer(t, b, a, verbs.OpSend, 10_000)
			})
		}
	}
}
