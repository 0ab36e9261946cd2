package transfer

import (
	"fmt"
	"testing"
)

// TestFailedDevice: the device of a rail fails at either end. New segments, new peers and their first transfers use the other rail. When
// the device works again, the same segments use both rails, and the next device may fail.
func TestFailedDevice(t *testing.T) {
	for rail := range 2 {
		for side := range 2 {
			for _, wrapped := range []bool{false, true} {
				t.Run(fmt.Sprintf("rail=%d/side=%d/wrapped=%v", rail, side, wrapped), func(t *testing.T) {
					n := memoryNetwork(2)
					n.wrapped = wrapped
					p := newPair(t, n, 1<<20)
					failing := []*host{p.here, p.there}[side]
					failing.nics[rail].Fail()
					local, target := p.here.alloc("new local", 1<<20, 0), p.there.alloc("new target", 1<<20, Read|Write)
					remote := open2(t, p.peer, "new target", Read|Write)
					put := func(seed uint64) {
						t.Helper()
						fill(local.Bytes(), seed)
						wantOK(t, "Do", p.peer.Batch().Put(remote.At(0), local.Slice(0, 1<<20)).Notify([]byte("put")).Do(soon(t)))
						wantNote(t, p.there, "put")
						wantSame(t, "Put", target.Bytes(), local.Bytes())
					}
					put(1)
					third := n.start(t, hostConfig{name: "c"})
					other := third.alloc("third", 1<<16, Read|Write)
					q := p.here.to(third)
					if side == 1 {
						q = p.there.to(third)
					}
					source := failing.alloc("source", 1<<16, 0)
					fill(source.Bytes(), 2)
					wantOK(t, "Put", q.Put(soon(t), open2(t, q, "third", Write).At(0), source.Slice(0, 1<<16)).Wait(soon(t)))
					wantOK(t, "Notify", q.Notify(soon(t), []byte("put")))
					wantNote(t, third, "put")
					wantSame(t, "Put to the new peer", other.Bytes(), source.Bytes())
					failing.nics[rail].Recover()
					for _, peer := range []*Peer{p.peer, q} {
						eventually(t, "both rails have lanes", func() bool {
							s := peer.Node().Stats().QP.Rails
							return len(s) == 2 && s[0].Up > 0 && s[1].Up > 0
						})
					}
					put(3)
					again := open2(t, p.peer, "new target", Read|Write)
					for _, peer := range []*Peer{p.peer, q} {
						sessions := peer.Node().Stats().Sessions
						lose(peer)
						eventually(t, "another session", func() bool { return peer.Node().Stats().Sessions > sessions })
						wantOK(t, "Notify in another session", peer.Notify(soon(t), []byte("again")))
					}
					wantNote(t, p.there, "again")
					wantNote(t, third, "again")
					remote = again
					put(4)
				})
			}
		}
	}
}
