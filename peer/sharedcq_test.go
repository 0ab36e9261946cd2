package peer_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// shard is a VirtualCQ that several Sessions use. A mutex guards it, and a goroutine polls it.
type shard struct {
	t    *testing.T
	mu   sync.Mutex
	cq   *ibverbx.VirtualCQ
	imms map[*ibverbx.VirtualQP]uint32 // the last immediate of each VirtualQP
	stop chan struct{}
	done sync.WaitGroup
}

func newShard(t *testing.T, rails *ibverbx.Rails) *shard {
	t.Helper()
	cq, err := rails.NewCQ(ibverbx.CQConfig{Waker: verbs.NewWaker()})
	if err != nil {
		t.Fatalf("NewCQ: got %v, want no error", err)
	}
	s := &shard{t: t, cq: cq, imms: map[*ibverbx.VirtualQP]uint32{}, stop: make(chan struct{})}
	s.done.Go(s.poll)
	return s
}

// on is a Config.SharedCQ.
func (s *shard) on(step func(*ibverbx.VirtualCQ) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return step(s.cq)
}

func (s *shard) poll() {
	var wcs [16]ibverbx.WC
	for {
		select {
		case <-s.stop:
			return
		case <-time.After(10 * time.Microsecond):
		}
		err := s.on(func(cq *ibverbx.VirtualCQ) error {
			n, err := cq.Poll(wcs[:])
			for i := range wcs[:n] {
				err = errors.Join(err, wcs[i].Err())
				s.imms[wcs[i].QP] = wcs[i].Imm
			}
			return err
		})
		if err != nil {
			s.t.Errorf("a poll or a completion failed: %v", err)
			return
		}
	}
}

// imm returns the last immediate of a VirtualQP.
func (s *shard) imm(q *ibverbx.VirtualQP) (imm uint32) {
	_ = s.on(func(*ibverbx.VirtualCQ) error {
		imm = s.imms[q]
		return nil
	})
	return imm
}

func (s *shard) close() {
	close(s.stop)
	s.done.Wait()
	if err := s.cq.Close(); err != nil {
		s.t.Errorf("VirtualCQ.Close: got %v, want no error", err)
	}
}

// notify sends an immediate to a Session on a shard and waits for its arrival.
func notify(t *testing.T, from, to *peer.Session, at *shard, imm uint32) {
	t.Helper()
	err := at.on(func(*ibverbx.VirtualCQ) error {
		_, err := to.QP.PostRecv([]ibverbx.RecvWR{{}})
		return err
	})
	if err != nil {
		t.Fatalf("PostRecv: got %v, want no error", err)
	}
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Imm: imm, Flags: verbs.SendSignaled, Remote: from.Remote("data")}
	wr.SetSGE(from.Local("data").SGE(0, 64))
	if _, err := from.QP.PostSend([]ibverbx.SendWR{wr}); err != nil {
		t.Fatalf("PostSend: got %v, want no error", err)
	}
	var wcs [1]ibverbx.WC
	if n, err := from.CQ.Wait(soon(t), wcs[:]); n != 1 || err != nil || wcs[0].Err() != nil {
		t.Fatalf("Wait: got %d, %v and %v, want a success", n, err, wcs[0].Err())
	}
	for limit := time.Now().Add(time.Minute); at.imm(to.QP) != imm; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("after a minute the immediate is %d, want %d", at.imm(to.QP), imm)
		}
	}
}

// end closes both Sessions of a connection when both are done.
func end(t *testing.T, both ...*peer.Session) {
	var ends sync.WaitGroup
	for _, s := range both {
		ends.Go(func() {
			if err := errors.Join(s.WaitDone(soon(t)), s.Close()); err != nil {
				t.Errorf("the end of a Session: got %v, want no error", err)
			}
		})
	}
	ends.Wait()
}

// TestSessionsOnOneCQ: several peers dial concurrently, and their Sessions share one VirtualCQ and one Rails,
// polled continuously by a goroutine. Their lanes need more completions than the default depth. Closing some does not affect the others.
func TestSessionsOnOneCQ(t *testing.T) {
	const peers, lanes = 6, 150
	n := newNetwork(2)
	nics, err := n.open(2)()
	if err != nil {
		t.Fatalf("open: got %v, want no error", err)
	}
	defer func() { _ = nics.Close() }()
	rails, err := ibverbx.NewRails(nics.Rails...)
	if err != nil {
		t.Fatalf("NewRails: got %v, want no error", err)
	}
	here := newShard(t, rails)
	cfg := config(nil)
	cfg.SharedCQ, cfg.Regions[0].Size, cfg.QP.Lanes = here.on, 4096, lanes
	meeting, err := peer.Listen(soon(t), "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	far, near := make([]*peer.Session, peers), map[string]*peer.Session{}
	var dials sync.WaitGroup
	for i := range far {
		dials.Go(func() {
			cfg := config(n.open(2))
			cfg.QP.Lanes = lanes
			cfg.Regions[0].Name = fmt.Sprint("from ", i)
			cfg.Regions = append(cfg.Regions, peer.RegionConfig{Name: "data", Size: 4096})
			s, err := peer.Dial(soon(t), meeting.Addr().String(), cfg)
			if far[i] = s; err != nil {
				t.Errorf("Dial: got %v, want no error", err)
			}
		})
	}
	for range far {
		s, err := meeting.Accept(soon(t))
		if err != nil {
			t.Fatalf("Accept: got %v, want no error", err)
		}
		if s.CQ != here.cq || s.Rails != rails {
			t.Error("a Session has a VirtualCQ or Rails of its own")
		}
		near[s.RemoteNames()[1]] = s
	}
	dials.Wait()
	peerOf := func(i int) *peer.Session { return near[fmt.Sprint("from ", i)] }
	for i, s := range far {
		notify(t, s, peerOf(i), here, uint32(100+i))
	}
	for i := range peers / 2 {
		end(t, far[i], peerOf(i))
	}
	for i := peers / 2; i < peers; i++ {
		notify(t, far[i], peerOf(i), here, uint32(200+i))
		end(t, far[i], peerOf(i))
	}
	if err := meeting.Close(); err != nil {
		t.Errorf("Listener.Close: got %v, want no error", err)
	}
	here.close()
	if err := rails.Close(); err != nil {
		t.Errorf("Rails.Close: got %v, want no error", err)
	}
}

// TestListenerSharesEvents: the Sessions of a Listener share the NICs of Config.Rails. When a port goes down,
// all of them lose its lanes, although a NIC reports the event once.
func TestListenerSharesEvents(t *testing.T) {
	n := newNetwork(2)
	var cfg peer.Config
	var nics []*softnic.NIC
	for _, link := range n {
		nic, err := softnic.New(link, softnic.Config{})
		if err != nil {
			t.Fatalf("New: got %v, want no error", err)
		}
		defer func() { _ = nic.Close() }()
		ctx, err := nic.Open()
		if err != nil {
			t.Fatalf("Open: got %v, want no error", err)
		}
		nics = append(nics, nic)
		cfg.Rails = append(cfg.Rails, ibverbx.RailConfig{Context: ctx})
	}
	cfg.Auth = plain
	meeting, err := peer.Listen(soon(t), "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	var near []*peer.Session
	for range 3 {
		dialed := make(chan error, 1)
		go func() {
			s, err := peer.Dial(soon(t), meeting.Addr().String(), config(n.open(2)))
			if s != nil {
				t.Cleanup(func() { _ = s.Close() })
			}
			dialed <- err
		}()
		s, err := meeting.Accept(soon(t))
		if err := errors.Join(err, <-dialed); err != nil {
			t.Fatalf("got %v, want a Session", err)
		}
		defer func() { _ = s.Close() }()
		near = append(near, s)
	}
	if err := meeting.Close(); err != nil { // the Sessions stay
		t.Errorf("Listener.Close: got %v, want no error", err)
	}
	nics[0].SetPort(false)
	for i, s := range near {
		var wcs [1]ibverbx.WC
		if _, err := s.CQ.Poll(wcs[:]); err != nil {
			t.Errorf("Poll: got %v, want no error", err)
		}
		if up := s.QP.Stats().Rails[0].Up; up != 0 {
			t.Errorf("session %d has %d data lanes on a port that is down, want 0", i, up)
		}
	}
}
