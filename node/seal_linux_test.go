package node

import (
	"net/netip"
	"testing"

	"ibverbx/internal/testslice"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// TestTransportSealed: over each transport, a Node has sealed sessions with several peers, whose
// QPs share control QPs and, over ud, data QPs. A peer that leaves or returns does not affect the
// others.
func TestTransportSealed(t *testing.T) {
	for _, transport := range testslice.Pick(t, []peer.Transport{peer.TransportRC, peer.TransportUC, peer.TransportUD}) {
		t.Run(string(transport), func(t *testing.T) {
			n := newNetwork(0)
			start := func(last byte) *host {
				return n.start(t, sealed, func(c *Config) {
					c.Open = nil
					c.Fabric = peer.Fabric{
						Provider: peer.ProviderSoftNIC, Local: netip.AddrFrom4([4]byte{127, 0, 2, last}), Link: peer.LinkUDP,
						Transport: transport, RequireSealed: true,
					}
				})
			}
			all := []*host{start(1), start(2), start(3)}
			var theres [3]*Peer
			talk := func(from, to int) {
				t.Helper()
				there, _ := all[from].meet(all[to])
				if a := there.Stats().Agreed; !a.Sealed || all[from].node.Snapshot().Transport != string(transport) {
					t.Errorf("host %d to %d: sealed %v, transport %q, want sealed and %q", from, to, a.Sealed, all[from].node.Snapshot().Transport, transport)
				}
				all[from].do(there, all[from].write(there, 0, 64<<10, 7))
				all[from].do(there, all[from].job(there, verbs.OpRDMARead, 0, 64<<10))
				if from == 0 {
					theres[to] = there
				}
			}
			talk(0, 1)
			talk(0, 2)
			talk(1, 2)
			if err := all[1].node.Close(); err != nil {
				t.Errorf("Close: got %v, want no error", err)
			}
			all[0].do(theres[2], all[0].write(theres[2], 0, 64<<10, 8))
			all[1] = start(2)
			talk(0, 1)
			all[0].do(theres[2], all[0].write(theres[2], 0, 64<<10, 9))
			for range 3 { // each session has a new Seal
				lose(theres[2])
				all[0].do(theres[2], all[0].write(theres[2], 0, 64<<10, 10))
				all[0].do(theres[1], all[0].write(theres[1], 0, 64<<10, 10))
			}
		})
	}
}
