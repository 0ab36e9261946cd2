package failover_test

import (
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/rig"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// read posts READs of n bytes each at its own offset, from the second host to the first.
func (d *duo) read(first, count int, n uint32, local, remote *ibverbx.Region) {
	d.t.Helper()
	for i := first; i < first+count; i++ {
		wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: remote.Remote(), RemoteOffset: uint64(i) * uint64(n)}
		wr.SetSGE(local.SGE(uint64(i)*uint64(n), n))
		d.hosts[0].PostSend(wr)
	}
}

// TestWrappedNICFailsUnderReads: on wrapped rails a NIC that fails under READs, at any time and at
// either end, costs its lanes and nothing else.
func TestWrappedNICFailsUnderReads(t *testing.T) {
	wrap := &reliable.Config{Paths: 2}
	for name, wraps := range map[string][]*reliable.Config{"wrapped": {wrap, wrap}, "mixed": {nil, wrap}} {
		for host := range 2 {
			t.Run(fmt.Sprintf("%s/host=%d", name, host), func(t *testing.T) {
				for _, steps := range []int{0, 1, 2, 4, 7, 11} {
					d, _ := newDuoOver(t, wraps, ibverbx.Config{Lanes: 4, FragmentSize: 4096}, ibverbx.CQConfig{})
					const requests, size = 16, 65536
					local, remote := d.hosts[0].Region(requests*size), d.hosts[1].Region(requests*size)
					rig.Fill(remote.Bytes(), 1)
					d.read(0, requests/2, size, local, remote)
					for range steps {
						d.step()
					}
					d.hosts[host].NICs[1].Fail()
					d.read(requests/2, requests/2, size, local, remote) // before a poll shows the failure
					ended := func() bool {
						return len(d.got[0]) == requests || d.hosts[0].QP.Err() != nil || d.hosts[1].QP.Err() != nil
					}
					d.until("all complete", ended)
					for i, h := range d.hosts {
						if err := h.QP.Err(); err != nil {
							t.Fatalf("the NIC fails after %d steps: Err of host %d = %v, want nil", steps, i, err)
						}
					}
					for i, wc := range d.got[0] {
						if wc.WRID != uint64(i) || wc.Err() != nil {
							t.Fatalf("completion %d is of %d: %v", i, wc.WRID, wc.Err())
						}
					}
					if at := rig.FirstDifference(local.Bytes(), remote.Bytes()); at >= 0 {
						t.Fatalf("the bytes differ from %d on", at)
					}
					d.hosts[host].NICs[1].Recover()
					d.until("all lanes are back", d.up)
				}
			})
		}
	}
}
