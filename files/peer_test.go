package files

import (
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
	"ibverbx/transfer"
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

// TestReceivedByRail: the bytes that the peer has written count at the local rails, unless it is unknown which of them carried the bytes.
func TestReceivedByRail(t *testing.T) {
	for _, tt := range []struct {
		local    []int64
		received railCounts
		want     []int64
	}{
		{[]int64{1, 2}, railCounts{10, 20}, []int64{11, 22}},
		{[]int64{1}, railCounts{10, 20}, []int64{31}},
		{[]int64{1, 2}, railCounts{10}, nil},
		{[]int64{1, 2}, nil, nil},
		{nil, railCounts{10}, nil},
		{nil, nil, nil},
	} {
		var local []transfer.RailStatus
		for _, n := range tt.local {
			local = append(local, transfer.RailStatus{Bytes: n})
		}
		var got []int64
		for _, r := range addReceived(local, tt.received) {
			got = append(got, r.Bytes)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("addReceived(%v, %v) = %v, want %v", tt.local, tt.received, got, tt.want)
		}
	}
}
