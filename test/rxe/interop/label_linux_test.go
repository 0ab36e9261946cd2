package interop_test

import (
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// TestFlowLabelOnWire: the kernel derives a QP's source port from the flow label as roce.SourcePort does.
// Without a label it chooses a port itself.
func TestFlowLabelOnWire(t *testing.T) {
	for _, label := range []uint32{0, 1, 0x04001, 0x12345, 0xfffff} {
		for _, typ := range []verbs.QPType{verbs.RC, verbs.UC} {
			ports := labelled(t, typ, label)
			for port := range ports {
				if want := roce.SourcePort(label); label != 0 && port != want || port < 0xc000 {
					t.Errorf("%v packets with flow label %#05x come from port %#x, want %#x", typ, label, port, want)
				}
			}
			t.Logf("%v, flow label %#05x: source ports %#x", typ, label, ports)
		}
	}
}

// labelled sends from rxe0 to rxe1 over QPs with a flow label and returns the source ports, with the
// number of packets of each.
func labelled(t *testing.T, typ verbs.QPType, label uint32) map[uint16]int {
	t.Helper()
	ports := map[uint16]int{}
	packets := watch(t, typ, 1, func(_ *tap, a, b *end) {
		a.send(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}, 5000, 5000)
		a.wait(1, verbs.StatusSuccess)
	}, func(attr *verbs.QPAttr) { attr.AH.FlowLabel = label })
	for _, p := range packets {
		ports[p.src.Port()]++
	}
	return ports
}
