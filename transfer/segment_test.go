package transfer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

func TestSegmentNames(t *testing.T) {
	h := memoryNetwork(1).start(t, hostConfig{})
	s := h.alloc("a", 4096, Read)
	for _, c := range []struct {
		name string
		size int64
		cfg  SegmentConfig
		want error
	}{
		{"a", 1, SegmentConfig{}, verbs.ErrInvalid},
		{strings.Repeat("x", MaxNameLen+1), 1, SegmentConfig{}, ErrTooLong},
		{"\xff", 1, SegmentConfig{}, verbs.ErrInvalid},
		{"zero", 0, SegmentConfig{}, ErrRange},
		{"negative", -1, SegmentConfig{}, ErrRange},
		{"access", 1, SegmentConfig{DefaultAccess: 4}, ErrDenied},
		{"", 1, SegmentConfig{}, verbs.ErrInvalid},
		{"", 1, SegmentConfig{DefaultAccess: Read}, verbs.ErrInvalid},
	} {
		_, err := h.Alloc(c.name, c.size, c.cfg)
		wantErr(t, c.name, err, c.want)
	}
	wantOK(t, "Close", s.Close(soon(t)))
	wantOK(t, "Close again", s.Close(soon(t)))
	s = h.alloc("a", 4096, Read)
	_, err := h.Alloc("", 4096, SegmentConfig{Local: true})
	wantOK(t, "Alloc of a Local segment without a name", err)
	_, err = h.Adopt("", s.mem, SegmentConfig{})
	wantErr(t, "Adopt without a name", err, verbs.ErrInvalid)
	_, err = h.to(memoryNetwork(1).start(t, hostConfig{})).Open(soon(t), "", Read)
	wantErr(t, "Open without a name", err, verbs.ErrInvalid)
}

func TestMapFile(t *testing.T) {
	n := memoryNetwork(1)
	a, b := n.start(t, hostConfig{}), n.start(t, hostConfig{})
	path := filepath.Join(t.TempDir(), "file")
	want := make([]byte, 100_000)
	fill(want, 9)
	wantOK(t, "WriteFile", os.WriteFile(path, want, 0o600))
	file, err := b.MapFile("file", path, SegmentConfig{DefaultAccess: Read})
	wantOK(t, "MapFile", err)
	_, err = b.MapFile("writable", path, SegmentConfig{DefaultAccess: Write})
	wantErr(t, "MapFile for writing", err, ErrDenied)
	_, err = b.MapFile("absent", path+"x", SegmentConfig{})
	wantErr(t, "MapFile of no file", err, os.ErrNotExist)
	p := a.to(b)
	remote, local := open2(t, p, "file", Read), a.alloc("", file.Len(), 0)
	_, err = p.Open(soon(t), "file", Write)
	wantErr(t, "Open for writing", err, ErrDenied)
	wantOK(t, "Get", p.Get(soon(t), local.Slice(0, file.Len()), remote.At(0)).Wait(soon(t)))
	wantSame(t, "the file", local.Bytes(), want)

	target := a.alloc("target", file.Len(), Read|Write)
	back := b.to(a)
	there := open2(t, back, "target", Read|Write)
	wantErr(t, "Get into a file", back.Get(soon(t), file.Slice(0, 1), there.At(0)).Wait(soon(t)), ErrDenied)
	wantOK(t, "Put", back.Batch().Put(there.At(0), file.Slice(0, file.Len())).Notify(nil).Do(soon(t)))
	wantNote(t, a, "")
	wantSame(t, "the file", target.Bytes(), want)
}

// TestCloseSegmentWhileRead closes a segment that the peer reads and writes all the time. The session must survive.
func TestCloseSegmentWhileRead(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		p := newPair(t, n, 4<<20)
		p.there.alloc("other", 1<<20, Read)
		kept := open2(t, p.peer, "other", Read)
		session := p.peer.session()
		results := make(chan error, 4)
		for i := range int64(4) {
			go func() {
				var err error
				for err == nil {
					err = p.peer.Get(soon(t), p.local.Slice(i<<20, 1<<20), p.remote.At(i<<20)).Wait(soon(t))
				}
				results <- err
			}()
		}
		wantOK(t, "Get", p.peer.Get(soon(t), p.local.Slice(0, 0), kept.At(0)).Wait(soon(t)))
		begin := time.Now()
		wantOK(t, "Close", p.target.Close(soon(t)))
		if d := time.Since(begin); d >= revokeTimeout {
			t.Errorf("Close took %v, which is longer than a peer that answers needs", d)
		}
		for range 4 {
			wantErr(t, "Get of a segment that was closed", <-results, ErrRevoked)
		}
		_, err := p.peer.Open(soon(t), "target", Read)
		wantErr(t, "Open of a segment that was closed", err, ErrNotFound)
		wantOK(t, "Get of another segment", p.peer.Get(soon(t), p.local.Slice(0, 1<<20), kept.At(0)).Wait(soon(t)))
		if p.peer.session() != session {
			t.Error("the session was lost")
		}
	})
}

// TestCloseLocalSegment closes the memory that transfers of this side use.
func TestCloseLocalSegment(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 8<<20)
	var transfers []*Transfer
	for range 8 {
		transfers = append(transfers, p.peer.Get(soon(t), p.local.Slice(0, 8<<20), p.remote.At(0)))
	}
	wantOK(t, "Close", p.local.Close(soon(t)))
	for _, tr := range transfers {
		select {
		case <-tr.Done():
		default:
			t.Fatal("a transfer is under way although its segment is closed")
		}
		if tr.Err() != nil {
			wantErr(t, "Wait", tr.Err(), ErrClosed)
		}
	}
	wantErr(t, "Get", p.peer.Get(soon(t), p.local.Slice(0, 1), p.remote.At(0)).Wait(soon(t)), ErrClosed)
}

// TestCloseWithRudePeer closes a segment whose holder does not respond. The holder's session is closed.
func TestCloseWithRudePeer(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	p.peer.link.Mu.Lock()
	p.remote.uses++ // as if a transfer never completed
	p.peer.link.Mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	wantOK(t, "Close", p.target.Close(ctx))
	eventually(t, "there is another session", func() bool { return p.peer.Node().Stats().Sessions > 1 })
	p.peer.link.Mu.Lock()
	p.remote.uses--
	p.peer.link.Mu.Unlock()
}

// TestOneBadPieceDoesNotEndOthers: a key that the peer's NIC rejects closes the session, but other transfers
// succeed.
func TestOneBadPieceDoesNotEndOthers(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		const size = 16 << 20
		p := newPair(t, n, size)
		p.publish(t, 12)
		forged := *p.remote
		forged.region = ibverbx.RemoteRegion{Addr: p.remote.region.Addr, Length: p.remote.region.Length}
		for _, key := range p.remote.region.RKeys {
			forged.region.RKeys = append(forged.region.RKeys, ^key)
		}
		var good []*Transfer
		for i := range int64(4) {
			good = append(good, p.peer.Get(soon(t), p.local.Slice(i*size/4, size/4), p.remote.At(i*size/4)))
		}
		scratch := p.here.alloc("", 4096, 0)
		err := p.peer.Get(soon(t), scratch.Slice(0, 4096), forged.At(0)).Wait(soon(t))
		var wc *verbs.WCError
		if !asError(err, &wc) || wc.Status != verbs.StatusRemAccessErr {
			t.Errorf("Get with a bad key: got error %v, want %v", err, verbs.StatusRemAccessErr)
		}
		var e *Error
		if !asError(err, &e) || e.Rail < 0 || !strings.Contains(e.Err.Error(), fmt.Sprintf("on rail %d (", e.Rail)) {
			t.Errorf("Get with a bad key: got rail %d in error %v, want the one of the lane", e.Rail, err)
		}
		for _, tr := range good {
			wantOK(t, "Wait of another transfer", tr.Wait(soon(t)))
		}
		wantSame(t, "the segment", p.local.Bytes(), p.target.Bytes())
	})
}

// smallOp is an 8-byte operation that records the progress of another transfer when it completes.
type smallOp struct {
	service.Op
	huge  *Transfer
	bytes uint64
	next  func()
}

func (o *smallOp) End(*service.Op, error) {
	o.bytes = o.huge.op.Progress()
	o.next()
}

// TestSmallBehindHuge: 8 bytes submitted behind 4 GiB are moved before two windows of the latter.
func TestSmallBehindHuge(t *testing.T) {
	const size, window = 64 << 20, 8 << 20
	p := newPair(t, memoryNetwork(1), size)
	b := p.peer.Batch()
	for i := range int64(4 << 10) {
		b.Put(p.remote.At(i<<20%(size-1<<20)), p.local.Slice(i<<20%(size-1<<20), 1<<20))
	}
	region, err := p.local.local(p.peer)
	wantOK(t, "Region", err)
	huge := b.Submit(soon(t))
	small := func(next func()) *smallOp {
		o := &smallOp{huge: huge, next: next}
		o.Blocks = []service.Block{{Local: region, Remote: &p.remote.region, LocalOffset: size - 8, RemoteOffset: size - 8, Length: 8, Opcode: verbs.OpRDMAWrite}}
		o.Sink = o
		return o
	}
	done := make(chan struct{})
	second := small(func() { close(done) })
	first := small(func() { p.peer.service.Submit(&second.Op) })
	p.peer.service.Submit(&first.Op)
	<-done
	if d := second.bytes - first.bytes; d > 2*window || second.bytes == 4<<30 {
		t.Errorf("8 bytes moved when %d of others had, of %d in all, want at most two windows of %d", d, int64(4<<30), window)
	}
	huge.Cancel()
	if err := huge.Wait(soon(t)); err != nil { // a test descheduled for a second is too late
		wantErr(t, "Wait", err, ErrCanceled)
	}
}

// TestRevokedWhileOpened: a segment is revoked before the goroutine that opens it has seen the response. It
// is then not used.
func TestRevokedWhileOpened(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096).peer
	const number = 1 << 20
	s := p.wall(true) // the peer does not get the request
	defer p.unwall(s)
	asked, answer := make(chan uint32, 1), make(chan any, 1)
	go func() {
		m, _ := p.link.Proc.Ask(soon(t), p.requests, func(id uint32) []byte {
			asked <- id
			return nil
		})
		answer <- m
	}()
	id := <-asked
	region := ibverbx.RemoteRegion{Length: 1, RKeys: []uint32{1}}
	wantOK(t, "grant", p.message(s, &grant{id: id, number: number, access: Read, region: region}))
	wantOK(t, "revoke", p.message(s, &revoke{grant: number}))
	r, ok := (<-answer).(*Remote)
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	if !ok || !r.revoked {
		t.Error("a segment that was revoked can be used")
	}
}

// TestErrorsStayOnOneLine: names are quoted in errors.
func TestErrorsStayOnOneLine(t *testing.T) {
	const evil = "x\nINFO all is well\x1b[2J"
	n := memoryNetwork(1)
	a, b := n.start(t, hostConfig{name: evil}), n.start(t, hostConfig{name: evil + "2"})
	_, alloc := a.Alloc(evil, -1, SegmentConfig{})
	_, open := a.to(b).Open(soon(t), evil, Read)
	_, connect := a.Peer(soon(t), evil)
	for what, err := range map[string]error{"Alloc": alloc, "Open": open, "Peer": connect} {
		if err == nil || strings.ContainsAny(err.Error(), "\n\x1b") || !strings.Contains(err.Error(), `x\nINFO all is well\x1b[2J`) {
			t.Errorf("%s: got %q, want one line with the name escaped", what, err)
		}
	}
}
