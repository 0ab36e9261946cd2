//go:build linux

package softnic_test

import (
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestQPStats: errors are counted at their QP and its NIC, and not at other QPs.
func TestQPStats(t *testing.T) {
	u := newUDPRig(t, softnic.UDPConfig{})
	_, src := memory(t, u.pa, 64)
	_, dst := memory(t, u.pb, 64)
	cq := newCQ(t, u.ca, 16)
	quietA, quietB := u.pair(verbs.RC, cq, newCQ(t, u.cb, 16), 16)
	qa, qb := u.pair(verbs.RC, cq, newCQ(t, u.cb, 16), 16)
	wr := writeWR(src, dst, 64)
	wr.Opcode = verbs.OpRDMAWriteWithImm // the peer's receive queue is empty
	if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
		t.Fatalf("PostSend: %v", err)
	}
	for s, _ := u.b.QPStats(qb.Num()); s.RNRNAKsSent == 0; s, _ = u.b.QPStats(qb.Num()) {
		if _, err := cq.Poll(make([]verbs.WC, 1)); err != nil {
			t.Fatalf("Poll: %v", err)
		}
	}
	if _, err := qb.PostRecv(make([]verbs.RecvWR, 1)); err != nil {
		t.Fatalf("PostRecv: %v", err)
	}
	succeeded(t, await(t, cq, 1))
	must(t, u.links[0].Impair(u.a, u.addrs[1], softnic.Impairment{Loss: 0.3}))
	for s, _ := u.a.QPStats(qa.Num()); s.Retransmits == 0; s, _ = u.a.QPStats(qa.Num()) {
		first, second := writeWR(src, dst, 32), writeWR(src, dst, 32)
		second.RemoteAddr += 32
		if _, err := qa.PostSend([]verbs.SendWR{first, second}); err != nil {
			t.Fatalf("PostSend: %v", err)
		}
		succeeded(t, await(t, cq, 2))
	}
	must(t, u.links[0].Impair(u.a, u.addrs[1], softnic.Impairment{}))
	wr.RKey++
	if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
		t.Fatalf("PostSend: %v", err)
	}
	await(t, cq, 1)
	sender, _ := u.a.QPStats(qa.Num())
	receiver, _ := u.b.QPStats(qb.Num())
	a, b := u.a.Stats(), u.b.Stats()
	if receiver.NAKsSent == 0 || receiver.NAKsSent != b.NAKsSent || receiver.RNRNAKsSent != b.RNRNAKsSent {
		t.Errorf("the receiver has %+v, want the %d NAKs and %d RNR NAKs of its NIC", receiver, b.NAKsSent, b.RNRNAKsSent)
	}
	if sender.Retransmits == 0 || sender.Retransmits != a.Retransmits || sender.Timeouts != a.Timeouts {
		t.Errorf("the sender has %+v, want the %d retransmits and %d timeouts of its NIC", sender, a.Retransmits, a.Timeouts)
	}
	for nic, qp := range map[*softnic.NIC]verbs.QP{u.a: quietA, u.b: quietB} {
		if s, ok := nic.QPStats(qp.Num()); s != (softnic.QPStats{}) || !ok {
			t.Errorf("a QP that did nothing has %+v, %v, want zeros", s, ok)
		}
	}
	if _, ok := u.a.QPStats(0xfffff0); ok {
		t.Error("QPStats of a QP that is not open is ok, want not")
	}
}
