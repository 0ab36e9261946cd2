package transfer

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/service"
	"ibverbx/softnic"
)

func TestPutGet(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		const size = 5<<20 + 123
		p := newPair(t, n, size)
		fill(p.local.Bytes(), 1)
		want := append([]byte(nil), p.local.Bytes()...)
		wantOK(t, "Put", p.peer.Put(soon(t), p.remote.At(0), p.local.Slice(0, size)).Wait(soon(t)))
		// The writer's completion is invisible to the reader, so notify it.
		wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("written")))
		wantNote(t, p.there, "written")
		wantSame(t, "the peer's segment", p.target.Bytes(), want)
		clear(p.local.Bytes())
		wantOK(t, "Get", p.peer.Get(soon(t), p.local.Slice(7, size-7), p.remote.At(7)).Wait(soon(t)))
		wantSame(t, "the segment", p.local.Bytes()[7:], want[7:])
	})
}

func TestBatchNotifies(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		const blocks, size = 200, 8 << 10
		p := newPair(t, n, blocks*size)
		fill(p.local.Bytes(), 2)
		b := p.peer.Batch()
		for i := range int64(blocks) {
			b.Put(p.remote.At((blocks-1-i)*size), p.local.Slice(i*size, size))
		}
		tr := b.Notify([]byte("all")).Submit(soon(t))
		got := wantNote(t, p.there, "all")
		for i := range blocks {
			wantSame(t, "a block", p.target.Bytes()[(blocks-1-i)*size:][:size], p.local.Bytes()[i*size:][:size])
		}
		wantOK(t, "Wait", tr.Wait(soon(t)))
		if got.Seq != 0 || got.Peer.Node().Identity().Name != "a" {
			t.Errorf("Recv: got notification %d of %v, want 0 of a", got.Seq, got.Peer)
		}
	})
}

func TestOffsetsAndAccess(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	readOnly := open2(t, p.peer, "target", Read)
	other := p.here.alloc("", 1<<20, 0)
	const huge = 1<<63 - 1
	for _, c := range []struct {
		name  string
		batch *Batch
		want  error
	}{
		{"behind the end", p.peer.Batch().Put(p.remote.At(1), p.local.Slice(0, 4096)), ErrRange},
		{"before the beginning", p.peer.Batch().Put(p.remote.At(-1), p.local.Slice(0, 1)), ErrRange},
		{"sum overflows", p.peer.Batch().Put(p.remote.At(huge), p.local.Slice(0, 4096)), ErrRange},
		{"view behind the end", p.peer.Batch().Get(p.local.Slice(4096, 1), p.remote.At(0)), ErrRange},
		{"view overflows", p.peer.Batch().Get(p.local.Slice(huge, huge), p.remote.At(0)), ErrRange},
		{"negative length", p.peer.Batch().Get(p.local.Slice(0, -1), p.remote.At(0)), ErrRange},
		{"longer than the segment", p.peer.Batch().Put(p.remote.At(0), other.Slice(0, 4097)), ErrRange},
		{"write to what was opened for reading", p.peer.Batch().Put(readOnly.At(0), p.local.Slice(0, 1)), ErrDenied},
		{"long notification", p.peer.Batch().Notify(make([]byte, MaxNotification+1)), ErrTooLong},
	} {
		err := c.batch.Submit(soon(t)).Wait(soon(t))
		if !errors.Is(err, c.want) {
			t.Errorf("%s: got error %v, want %v", c.name, err, c.want)
		}
	}
	err := p.peer.Batch().Put(p.remote.At(0), p.local.Slice(0, 1)).Put(p.remote.At(4090), p.local.Slice(0, 10)).Do(soon(t))
	var e *Error
	if !errors.As(err, &e) || e.Op != "put" || e.Name != "target" || e.Index != 1 || e.Offset != 4090 || e.Length != 10 || e.Peer == "" {
		t.Errorf("got %+v, want an Error of put that names target, block 1 and 10 bytes at 4090", e)
	}
	wantOK(t, "an empty batch", p.peer.Batch().Do(soon(t)))
	wantOK(t, "a block without bytes", p.peer.Batch().Put(p.remote.At(4096), p.local.Slice(4096, 0)).Do(soon(t)))
}

func TestNamesHidden(t *testing.T) {
	n := memoryNetwork(1)
	a, b := n.start(t, hostConfig{name: "a"}), n.start(t, hostConfig{name: "b", engine: Config{
		Authorize: func(_ context.Context, _ *nodePeer, name string, _ Access) (Access, error) {
			switch name {
			case "readable":
				return Read, nil
			case "broken":
				return Read | Write, errors.New("broken")
			}
			return 0, nil
		},
	}})
	for _, name := range []string{"readable", "secret", "broken"} {
		b.alloc(name, 4096, Read|Write)
	}
	p := a.to(b)
	texts := map[string]bool{}
	for _, name := range []string{"secret", "absent", "broken"} {
		_, err := p.Open(soon(t), name, Read)
		wantErr(t, "Open of "+name, err, ErrNotFound)
		var e *Error
		errors.As(err, &e)
		texts[e.Err.Error()] = true
	}
	if len(texts) != 1 {
		t.Errorf("got answers %v, want the same for a denied name as for an unknown one", texts)
	}
	_, err := p.Open(soon(t), "readable", Write)
	wantErr(t, "Open for writing", err, ErrDenied)
	open2(t, p, "readable", Read)
}

func TestProgress(t *testing.T) {
	n := faultNetwork(t, 1, softnic.Impairment{})
	const size = 12 << 20
	p := newPair(t, n, size)
	release := n.hold(p.there, p.here, 0)
	defer release()
	tr := p.peer.Get(soon(t), p.local.Slice(0, size), p.remote.At(0))
	last, count := Status{}, 0
	for s := range tr.Progress(soon(t), time.Millisecond) {
		if s.Bytes < last.Bytes || s.Total != size {
			t.Errorf("got %d of %d bytes after %d of %d", s.Bytes, s.Total, last.Bytes, int64(size))
		}
		if count++; count == 3 {
			release()
		}
		last = s
	}
	if len(last.Rails) != 1 || last.Rails[0].Bytes < size || last.Rails[0].Name == "" {
		t.Errorf("the rails are %+v, want one that has read %d bytes", last.Rails, size)
	}
	if last.Phase != Done || last.Bytes != size || count < 4 {
		t.Errorf("the last of %d statuses is %v with %d bytes, want done with %d", count, last.Phase, last.Bytes, size)
	}
	wantOK(t, "Err", tr.Err())
}

// TestStatusString: a Status prints exactly the relevant fields.
func TestStatusString(t *testing.T) {
	for _, c := range []struct {
		status Status
		want   string
	}{
		{Status{Phase: Notifying}, "notifying"},
		{Status{Bytes: 999, Total: 1_000_000}, "moving 0%, 999 B of 1.00 MB"},
		{Status{Phase: Done, Bytes: 30_000_000_000, Total: 30_000_000_000}, "done 100%, 30.0 GB of 30.0 GB"},
		{Status{
			Bytes: 17_100_000_000, Total: 30_000_000_000, Rate: 3.9e9, Left: 3300 * time.Millisecond,
			Rails: []RailStatus{{Name: "mlx5_0", Rate: 1.9e9}, {Name: "mlx5_1", Rate: 2e9}},
		}, "moving 57%, 17.1 GB of 30.0 GB, 3.90 GB/s (mlx5_0 1.90 GB/s, mlx5_1 2.00 GB/s), 3s left"},
		{Status{Bytes: 1, Total: 2, Rate: 999.9}, "moving 50%, 1 B of 2 B, 1000 B/s"},
		{Status{Bytes: 1_234_567_890_123_456, Total: 1_234_567_890_123_456}, "moving 100%, 1234.6 TB of 1234.6 TB"},
	} {
		if got := c.status.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// unlockedPeer checks that Redial is called without the Peer's lock, because it acquires the Node's.
type unlockedPeer struct {
	service.Peer
	lock    *sync.Mutex
	redials int
	locked  bool
}

func (u *unlockedPeer) Redial() {
	u.redials++
	if u.lock.TryLock() {
		u.lock.Unlock()
	} else {
		u.locked = true
	}
	u.Peer.Redial()
}

// TestSubmitRedialsUnlocked: Submit redials a lost peer, and calls the Node without the Peer's lock, which completions need.
func TestSubmitRedialsUnlocked(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	wantOK(t, "Close", p.there.node.Close())
	sessionLost(t, p.peer)
	u := &unlockedPeer{Peer: p.peer.service, lock: &p.peer.link.Mu}
	b := p.peer.Batch().Put(p.remote.At(0), p.local.Slice(0, 8))
	p.peer.service = u
	put := b.Submit(soon(t))
	p.peer.service = u.Peer
	if u.redials != 1 || u.locked {
		t.Errorf("Submit: got %d calls of Redial, with the lock: %v, want one without", u.redials, u.locked)
	}
	put.Cancel()
	wantErr(t, "Wait", put.Wait(soon(t)), ErrCanceled)
}
