package peer_test

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx/internal/enginetest"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// A region can be a part of a dma-buf. Its fd may be closed once the Session is established.
func TestDMABufRegion(t *testing.T) {
	n := newNetwork(2)
	dc, lc := config(n.open(2)), config(n.open(2))
	fd, file := enginetest.DMABuf(t, 2<<20)
	dc.Regions[0] = peer.RegionConfig{Name: "data", DMABuf: &peer.DMABufConfig{FD: fd, Offset: 8192, Length: 1 << 20}}
	d, l := mustMeet(t, dc, lc)
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	here, there := file[8192:][:1<<20], l.Local("data").Bytes()
	enginetest.Fill(there, 1)
	transfer(t, l, d)
	if !bytes.Equal(here, there) || d.Local("data").Bytes() != nil {
		t.Errorf("a write to a dma-buf differs at %d", enginetest.FirstDifference(here, there))
	}
	enginetest.Fill(here, 2)
	transfer(t, d, l)
	if !bytes.Equal(here, there) {
		t.Errorf("a write from a dma-buf differs at %d", enginetest.FirstDifference(here, there))
	}
}

// A region with both memory and a dma-buf, or with a dma-buf that is none, is an error.
func TestDMABufRegionRefused(t *testing.T) {
	n := newNetwork(1)
	dc, lc := config(n.open(1)), config(n.open(1))
	dc.Regions[0].DMABuf = &peer.DMABufConfig{FD: -1, Length: 4096}
	if _, err := peer.Dial(soon(t), "127.0.0.1:1", dc); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Dial with a Size and a DMABuf: got %v, want %v", err, verbs.ErrInvalid)
	}
	dc.Regions[0].Size = 0
	if _, _, err, _ := meet(t, dc, lc); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Dial with a dma-buf that is none: got %v, want %v", err, verbs.ErrInvalid)
	}
}
