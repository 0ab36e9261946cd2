package files

import (
	"path/filepath"
	"sync"
	"testing"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
	"ibverbx/verbs"
)

// TestEngineReplaced: a transfer continues with another Engine in the same process, on the same
// transfer.Engine.
func TestEngineReplaced(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	want := d.write(t, "f", 24*chunk.Size, 1)
	met, resume := make(chan struct{}), make(chan struct{})
	var once sync.Once
	d.here.chunkReceived = func(k int64, _ []byte) {
		if k == 5 {
			once.Do(func() { close(met) })
			<-resume
		}
	}
	dest := filepath.Join(d.to, "f")
	x := d.peer.Get("d/f", dest, TransferConfig{})
	<-met
	old := d.there.Engine
	_, err := New(old.cfg)
	wantErr(t, "a second Engine", err, verbs.ErrBusy)
	wantOK(t, "Close", old.Close(soon(t)))
	wantOK(t, "Close again", old.Close(soon(t)))
	_, err = old.Serve(ExportConfig{Name: "e", Path: d.dir})
	wantErr(t, "Export of a closed Engine", err, ErrClosed)
	d.there.Engine, err = New(old.cfg)
	wantOK(t, "New", err)
	close(resume)
	wantOK(t, "Get", x.Wait(soon(t)))
	wantFile(t, dest, want)
}

// TestFalseHello: a peer without an id is refused.
func TestFalseHello(t *testing.T) {
	d := newDepot(t, memoryNetwork(1), Read)
	for _, hello := range [][]byte{nil, make([]byte, 7), make([]byte, 8)} {
		wantErr(t, "up", (*handler)(d.peer).Up(d.peer.session(), hello), rpc.ErrProtocol)
	}
	_, err := New(Config{})
	wantErr(t, "New without Transfer", err, verbs.ErrInvalid)
}
