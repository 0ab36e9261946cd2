package transfer

import "testing"

// TestStats: both Engines count their transfers, and keep the counters of forgotten peers, even after Close.
func TestStats(t *testing.T) {
	const size = 1 << 20
	p := newPair(t, memoryNetwork(2), size)
	wantOK(t, "Put", p.peer.Batch().Put(p.remote.At(0), p.local.Slice(0, size)).Notify([]byte("put")).Do(soon(t)))
	wantNote(t, p.there, "put")
	wantOK(t, "Get", p.peer.Get(soon(t), p.local.Slice(0, 10), p.remote.At(0)).Wait(soon(t)))
	want := func(what string) {
		t.Helper()
		if got, want := p.here.Stats(), (Stats{Transfers: 2, Bytes: size + 10, Notified: 1}); got != want {
			t.Errorf("%s: Stats of the sender are %+v, want %+v", what, got, want)
		}
		if got, want := p.there.Stats(), (Stats{Notifications: 1}); got != want {
			t.Errorf("%s: Stats of the receiver are %+v, want %+v", what, got, want)
		}
	}
	want("connected")
	for _, e := range []*host{p.here, p.there} {
		for _, peer := range e.Peers() {
			wantOK(t, "Close", peer.Node().Close())
		}
	}
	eventually(t, "the peers are forgotten", func() bool { return len(p.here.Peers()) == 0 && len(p.there.Peers()) == 0 })
	want("forgotten")
	wantOK(t, "Close", p.here.Close(soon(t)))
	want("closed")
	if got := (&Engine{}).Stats(); got != (Stats{}) {
		t.Errorf("Stats of a zero Engine: got %+v, want none", got)
	}
}
