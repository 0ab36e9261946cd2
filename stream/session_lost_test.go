package stream

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx/internal/enginetest/nodetest"
	"ibverbx/softnic"
)

// TestLaneDiesMidStream: NICs fail and recover, and one fails permanently, unnoticed by the program.
func TestLaneDiesMidStream(t *testing.T) {
	p := newPair(t, faultNetwork(t, 2, softnic.Impairment{Loss: 0.001, Delay: 20 * time.Microsecond}), Config{})
	here, there := p.dial(t)
	want := random(10, 8<<20)
	go func() {
		for i := range 8 {
			_, _ = here.Write(want[i<<20:][:1<<20])
			switch i {
			case 1, 2, 3, 4:
				s := []*nodetest.Host{p.here, p.there}[i%2]
				s.NICs[i/3].Reset()
			case 5:
				p.here.NICs[1].Fail() // for good
			}
		}
		_ = here.CloseWrite()
	}()
	got, err := io.ReadAll(there)
	wantOK(t, "ReadAll", err)
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes came that differ from the %d that were written", len(got), len(want))
	}
	if n := p.peer.Stats().Sessions; n != 1 {
		t.Errorf("there were %d sessions, want 1", n)
	}
}

// TestSessionLostIsReset: the streams of a lost session are reset on both sides, even while in use. Delivered
// data can still be read. Afterwards streams can be dialed again.
func TestSessionLostIsReset(t *testing.T) {
	onLinks(t, func(t *testing.T, n *network) {
		p := newPair(t, n, Config{Ring: MinRing})
		for round := range 2 {
			here, there := p.dial(t)
			quiet, _ := p.dial(t)
			_, err := here.Write([]byte("before"))
			wantOK(t, "Write", err)
			if got := string(readAll(t, there, 3)); got != "bef" {
				t.Errorf("got %q, want bef", got)
			}
			var all sync.WaitGroup
			all.Go(func() {
				var err error
				for err == nil {
					_, err = there.Write(make([]byte, 10_000))
				}
				wantErrIn(t, "Write", err)
			})
			all.Go(func() {
				_, err := io.Copy(io.Discard, here)
				wantErrIn(t, "Read", err)
			})
			all.Go(func() {
				_, err := quiet.Read(make([]byte, 1))
				wantErrIn(t, "Read", err)
			})
			time.Sleep(time.Duration(round) * time.Millisecond) // at another point
			p.lose()
			all.Wait()
			b, err := io.ReadAll(there)
			wantErr(t, "Read", err, syscall.ECONNRESET)
			if string(b) != "ore" {
				t.Errorf("got %q, want what had come before", b)
			}
		}
		p.dial(t)
	})
}

// wantErrIn is wantErr for goroutines: the stream was reset.
func wantErrIn(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) {
		t.Errorf("%s: got error %v, want %v", what, err, syscall.ECONNRESET)
	}
}

// TestDialAcrossSessions: Dial does not fail because sessions are lost while it waits.
func TestDialAcrossSessions(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing, Backlog: 1000})
	stop, lost := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(lost)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				p.lose()
			}
		}
	}()
	for sessions := uint64(0); sessions < 3; sessions = p.peer.Stats().Sessions {
		c, err := p.cfg.Dial(soon(t), p.peer, "test")
		wantOK(t, "Dial", err)
		wantOK(t, "Close", c.Close())
	}
	close(stop)
	<-lost
	wantOK(t, "Close", p.l.Close())
	p.wantNone(t)
}

// TestEndSurvivesSession: a finished stream can be read to EOF even after the session is lost.
func TestEndSurvivesSession(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{})
	here, there := p.dial(t)
	_, err := there.Write([]byte("last words"))
	wantOK(t, "Write", err)
	wantOK(t, "Close", there.Close())
	wantOK(t, "Node.Close", p.there.Close())
	eventually(t, "the session is lost", func() bool { return p.peer.Stats().QP.Lanes == nil })
	b, err := io.ReadAll(here)
	if err != nil || string(b) != "last words" {
		t.Errorf("ReadAll: got %q and %v, want the last words", b, err)
	}
}

// TestNoReset: a peer that does not close its direction loses the session after a timeout, so it cannot hold
// the memory.
func TestNoReset(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
	p.setLinger(t, 20*time.Millisecond)
	here, there := p.dial(t)
	there.mu.Lock()
	there.out.pushing = true // never sends anything
	there.mu.Unlock()
	wantOK(t, "Close", here.Close())
	eventually(t, "the session has ended", func() bool { return p.peer.Stats().Sessions > 1 })
	eventually(t, "there are no streams", func() bool { return NodeStats(p.here.Node).Streams == 0 })
	there.mu.Lock()
	there.out.pushing = false
	there.mu.Unlock()
}

// TestDialWithFailedDevice: the device of a rail fails at either end. Streams are dialed on the session that exists and on a new one, and
// again when the device works.
func TestDialWithFailedDevice(t *testing.T) {
	for rail := range 2 {
		for side := range 2 {
			n := memoryNetwork(2)
			p := newPair(t, n, Config{})
			failing := []*nodetest.Host{p.here, p.there}[side].NICs[rail]
			failing.Fail()
			other := &pair{here: n.start(t, nil), there: p.there, l: p.l, cfg: p.cfg}
			other.here.NICs[rail].Fail()
			var err error
			other.peer, err = other.here.Peer(soon(t), p.there.Addr().String())
			wantOK(t, "Peer", err)
			echo := func(p *pair) {
				here, there := p.dial(t)
				want := random(uint64(rail), 1<<20)
				go func() { _, _ = here.Write(want) }()
				if !bytes.Equal(readAll(t, there, len(want)), want) {
					t.Error("the bytes differ")
				}
			}
			echo(p)
			echo(other)
			failing.Recover()
			other.here.NICs[rail].Recover()
			for _, p := range []*pair{p, other} {
				eventually(t, "both rails have lanes", func() bool {
					s := p.peer.Stats().QP.Rails
					return len(s) == 2 && s[0].Up > 0 && s[1].Up > 0
				})
				echo(p)
			}
		}
	}
}
