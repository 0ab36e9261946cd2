package files

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/node"
)

// server is the side that serves the files of a depot, as handlers see it.
func (d *depot) server(t testing.TB) *process {
	t.Helper()
	p := d.there.client()
	p.link.Mu.Lock()
	defer p.link.Mu.Unlock()
	return p.link.Proc
}

// stall blocks all chunk requests, as an unresponsive disk does, until resume.
func (d *depot) stall(t testing.TB) (resume func()) {
	t.Helper()
	reading := d.server(t).state.reading
	for range cap(reading) {
		reading <- struct{}{}
	}
	return func() {
		for range cap(reading) {
			<-reading
		}
	}
}

// opening returns a download with one slot, and the open file f of the depot.
func (d *depot) opening(t testing.TB) (*download, source) {
	t.Helper()
	l := &download{peer: d.peer, counts: &counts{}}
	from, err := l.open(soon(t), "d/f")
	wantOK(t, "open", err)
	wantOK(t, "staged", l.staged(soon(t), 1))
	t.Cleanup(func() { wantOK(t, "close", l.stage.close()) })
	return l, from
}

// TestLateChunkRequest: a request served after its session was closed does not write. By then the peer has
// retried, and the same memory holds another chunk.
func TestLateChunkRequest(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", 2*chunk.Size, 1)
	l, from := d.opening(t)
	s := <-l.stage.free
	defer func() { l.stage.free <- s }()
	wantOK(t, "grant", s.grantTo(d.peer, from.proc))
	v := d.server(t)
	serve := func(ctx context.Context, k uint64) []byte {
		m := &fileChunk{id: 1000, handle: from.handle, index: k, grant: s.grant.Number(), stage: s.grant.Region()}
		r, err := v.peer.transfer.OpenGrant(m.grant, &m.stage, Write)
		wantOK(t, "OpenGrant", err)
		return v.answerChunk(ctx, r, m)
	}
	ended, end := context.WithCancel(context.Background())
	end()
	if m, err := decode(serve(soon(t), 1)); err != nil {
		t.Fatalf("a request is answered with %+v, %v", m, err)
	}
	wantSame(t, "the slot", s.buffer.mem.Bytes(), want[chunk.Size:])
	for range 20 {
		serve(ended, 0)
		wantSame(t, "the slot after a late request", s.buffer.mem.Bytes(), want[chunk.Size:])
	}
}

// TestUnansweredSlot: memory granted to an unanswered request is revoked before its slot is used
// for another chunk.
func TestUnansweredSlot(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", 2*chunk.Size, 1)
	l, from := d.opening(t)
	root, err := os.OpenRoot(d.to)
	wantOK(t, "OpenRoot", err)
	defer root.Close()
	target, err := chunk.Create(root, "f", 2*chunk.Size, false)
	wantOK(t, "Create", err)
	s := <-l.stage.free
	resume := d.stall(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() { ended <- l.chunk(ctx, from, target, 0, &cachedChunk{}, s) }()
	v := d.server(t)
	waiting := func() (n int) {
		d.there.mu.Lock()
		defer d.there.mu.Unlock()
		return len(v.state.inProgress)
	}
	eventually(t, "the request is being served", func() bool { return waiting() == 1 })
	cancel(ErrCanceled)
	wantErr(t, "a chunk", <-ended, ErrCanceled)
	if s.buffer != nil {
		t.Error("a slot whose request has no answer keeps its memory")
	}
	resume()
	eventually(t, "the first request has ended", func() bool { return waiting() == 0 })
	wantOK(t, "the next chunk", l.chunk(soon(t), from, target, 1, &cachedChunk{}, s))
	wantSame(t, "the slot", s.buffer.mem.Bytes(), want[chunk.Size:])
	l.stage.free <- s
	l.releaseLater(from)
	wantOK(t, "Close", target.Close())
}

// TestGetFileFromStoppedServer: requests in progress when the Engine is closed get no response: an
// error would fail the transfer, although it can resume with the next Engine.
func TestGetFileFromStoppedServer(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", manyChunks, 1)
	resume := d.stall(t)
	dest := filepath.Join(d.to, "f")
	x := d.peer.Get("d/f", dest, TransferConfig{})
	v, old := d.server(t), d.there
	eventually(t, "requests are being served", func() bool {
		old.mu.Lock()
		defer old.mu.Unlock()
		return len(v.state.inProgress) == 6
	})
	old.work.Go(func() { // Close waits for them
		<-old.ctx.Done()
		resume()
		eventually(t, "no request is being served", func() bool {
			v.peer.link.Mu.Lock()
			defer v.peer.link.Mu.Unlock()
			return len(v.peer.link.Serving) == 0
		})
	})
	d.there = old.startAgain()
	wantOK(t, "Get", x.Wait(soon(t)))
	wantFile(t, dest, want)
}

// noneOpen reports whether a process has closed all files.
func (f *Engine) noneOpen(proc *process) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(proc.state.files) == len(proc.state.released)
}

// noneOpen waits until the peer has closed all files.
func (d *depot) noneOpen(t testing.TB) {
	t.Helper()
	eventually(t, "no file is open", func() bool {
		for _, p := range d.there.peers.All() {
			p.link.Mu.Lock()
			proc := p.link.Proc
			p.link.Mu.Unlock()
			if proc != nil && !d.there.noneOpen(proc) {
				return false
			}
		}
		return true
	})
}

// TestOpenedFilesAreClosed: a file is closed if the response to its open request is not used, because the
// transfer was canceled or the request was retried in the next session.
func TestOpenedFilesAreClosed(t *testing.T) {
	n := memoryNetwork(1)
	asked, gate := make(chan struct{}, 10), make(chan struct{})
	d := &depot{dir: t.TempDir(), to: t.TempDir()}
	authorize := func(context.Context, *node.Peer, string, Access) (Access, error) {
		asked <- struct{}{}
		<-gate
		return Read, nil
	}
	d.there = n.start(t, hostConfig{name: "there", engine: Config{Authorize: authorize, Exports: []ExportConfig{{Name: "d", Path: d.dir}}}})
	d.here = n.start(t, hostConfig{name: "here"})
	d.peer = d.here.to(d.there)
	want := d.write(t, "f", 100, 1)
	x := d.peer.Get("d/f", d.to, TransferConfig{})
	<-asked
	x.Cancel()
	wantErr(t, "Get that is canceled", x.Wait(soon(t)), ErrCanceled)
	d.noneOpen(t)
	x = d.peer.Get("d/f", d.to, TransferConfig{})
	<-asked
	lose(d.peer)
	<-asked
	close(gate)
	wantOK(t, "Get", x.Wait(soon(t)))
	wantFile(t, filepath.Join(d.to, "f"), want)
	d.noneOpen(t)
}

// TestStuckPeerLeavesSlots: transfers from an unresponsive peer leave memory for other peers'
// transfers.
func TestStuckPeerLeavesSlots(t *testing.T) {
	n := memoryNetwork(1)
	d := newDepot(t, n, Read)
	want := d.write(t, "f", 20*chunk.Size, 1)
	other := n.start(t, hostConfig{name: "other"})
	_, err := other.Serve(ExportConfig{Name: "d", Path: d.dir, DefaultAccess: Read})
	wantOK(t, "Export", err)
	p := d.here.to(other)
	resume := d.stall(t)
	var stuck []*Transfer
	for range stagingSlots / stageSlots {
		stuck = append(stuck, d.peer.Get("d/f", t.TempDir(), TransferConfig{}))
	}
	eventually(t, "the stuck transfers have what they get", func() bool { return len(d.here.staging) == peerStaging })
	x := p.Get("d/f", d.to, TransferConfig{})
	wantOK(t, "Get from another peer", x.Wait(soon(t)))
	wantFile(t, filepath.Join(d.to, "f"), want)
	resume()
	for _, x := range stuck {
		wantOK(t, "Get", x.Wait(soon(t)))
	}
	if got := len(d.here.staging) + len(d.peer.staging); got != 0 {
		t.Errorf("%d tokens are left, want none", got)
	}
}

// TestCanceledRequestsCount: canceling and retrying requests never exceeds the peer's limit on outstanding
// requests.
func TestCanceledRequestsCount(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "f", chunk.Size, 1)
	l, from := d.opening(t)
	resume := d.stall(t)
	session := d.peer.session()
	for range cap(d.peer.link.Serving) + 10 {
		s := &slot{}
		wantOK(t, "grant", s.grantTo(d.peer, from.proc))
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		_, err := l.fetch(ctx, from, &chunk.Target{}, 0, &cachedChunk{}, s)
		cancel()
		wantErr(t, "a request that is given up", err, context.DeadlineExceeded)
		wantOK(t, "drop", s.drop())
	}
	resume()
	eventually(t, "all requests are answered", func() bool { return len(d.peer.requests) == 0 })
	if d.peer.session() != session {
		t.Error("the session has ended")
	}
	l.releaseLater(from)
	d.noneOpen(t)
}

// TestHandleOfAnotherFile: a request to open another file under an open handle is refused, and the open file
// stays usable.
func TestHandleOfAnotherFile(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "f", 100, 1)
	l, from := d.opening(t)
	for _, name := range []string{"d", "d/none", "d/f"} {
		_, _, err := askAny[*fileOpened](soon(t), d.peer, d.peer.requests, func(id uint32) []byte {
			return (&fileOpen{id: id, handle: from.handle, name: name}).encode()
		})
		if name == "d/f" {
			wantOK(t, "the same file again", err)
		} else {
			wantErr(t, name, err, ErrDenied)
		}
	}
	if file := d.there.lookup(d.server(t), from.handle); file == nil || !file.isOpen() {
		t.Error("the file is not known any more, want it open")
	}
	l.releaseLater(from)
	d.noneOpen(t)
}

// TestReleaseAfterClose: after Close, a remote file is released without another goroutine, which Close would not wait for.
func TestReleaseAfterClose(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "f", 100, 1)
	l, from := d.opening(t)
	wantOK(t, "Close", d.here.Close(soon(t)))
	caller := make(chan string, 1)
	from.release = func() { caller <- string(debug.Stack()) }
	l.releaseLater(from)
	if stack := <-caller; !strings.Contains(stack, "testing.tRunner(") {
		t.Errorf("the file is released by another goroutine:\n%s", stack)
	}
}

// TestChangingFileOfTree: a large file of a directory that changes while it is received is received again, and counted once.
func TestChangingFileOfTree(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	d.write(t, "f", manyChunks, 1)
	var want []byte
	var once sync.Once
	d.here.chunkReceived = func(k int64, _ []byte) {
		if k == 0 {
			once.Do(func() { want = d.write(t, "f", manyChunks, 2) })
		}
	}
	x := d.peer.Get("d", d.to, TransferConfig{})
	wantOK(t, "Get", x.Wait(soon(t)))
	wantFile(t, filepath.Join(d.to, "f"), want)
	if s := x.Status(); s.Bytes != s.Total || s.Total != manyChunks || s.BytesReused > s.Bytes {
		t.Errorf("Status() = %+v, want all of the file once", s)
	}
}

// TestManyFiles: files beyond the limit of open files wait for others to be closed.
func TestManyFiles(t *testing.T) {
	d := depotIn(t, memoryNetwork(1), Read, memoryDir(t), memoryDir(t))
	const n = maxOpen + 50
	for i := range n {
		d.write(t, fmt.Sprintf("t/%d", i), 100, 1)
	}
	all := []*Transfer{d.peer.Get("d/t", filepath.Join(d.to, "tree"), TransferConfig{Sync: SyncNever, Parallel: n})}
	for i := range n {
		all = append(all, d.peer.Get(fmt.Sprintf("d/t/%d", i), filepath.Join(d.to, fmt.Sprint(i)), TransferConfig{Sync: SyncNever}))
	}
	for _, x := range all {
		wantOK(t, x.name, x.Wait(soon(t)))
	}
	eventually(t, "all files are given up", func() bool { return len(d.peer.opens) == 0 })
}
