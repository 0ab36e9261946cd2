package reliable_test

import (
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestPathMTU: no packet between QPs is longer than the path MTU that Modify has set.
func TestPathMTU(t *testing.T) {
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1})
	must(t, err)
	a, b := newSide(t, link, reliable.Config{Paths: 2}, 64<<10), newSide(t, link, reliable.Config{Paths: 2}, 64<<10)
	ends := [2]verbs.Endpoint{}
	for i, s := range []*side{a, b} {
		ends[i], err = s.qp.Endpoint()
		must(t, err)
		ends[i].Extra = nil
	}
	for i, s := range []*side{a, b} {
		attr := verbs.ConnectAttr(ends[i], ends[1-i], 1, 1)
		attr.PathMTU = verbs.MTU1024
		must(t, verbs.ConnectWith(s.qp, attr))
	}
	before := a.nic.Stats().PacketsSent
	transfer(t, a, b, verbs.OpRDMAWriteWithImm, 64<<10)
	if sent := a.nic.Stats().PacketsSent - before; sent < 64 {
		t.Errorf("64 KiB left in %d packets, want at least 64", sent)
	}
}
