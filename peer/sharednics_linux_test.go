package peer_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// softNICs opens a software NIC over UDP for the test.
func softNICs(t *testing.T, last byte) []ibverbx.RailConfig {
	t.Helper()
	nics, err := peer.OpenSoftNICs(netip.AddrFrom4([4]byte{127, 0, 0, last}))()
	if err != nil {
		t.Fatalf("SoftNICs: got %v, want no error", err)
	}
	t.Cleanup(func() { _ = nics.Close() })
	return nics.Rails
}

// dialTo returns the two Sessions of a connection to a Listener.
func dialTo(t *testing.T, meeting *peer.Listener, cfg peer.Config) (dialed, accepted *peer.Session) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		s, err := peer.Dial(soon(t), meeting.Addr().String(), cfg)
		dialed = s
		done <- err
	}()
	accepted, err := meeting.Accept(soon(t))
	if err != nil {
		t.Fatalf("Accept: got %v, want no error", err)
	}
	if err := <-done; err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	return dialed, accepted
}

// TestSealedSessionsOnOneCQ: Sessions on one VirtualCQ, and so on the same NICs, are sealed with separate
// secrets. They do not use shared memory, because the other sides use their NICs alone.
func TestSealedSessionsOnOneCQ(t *testing.T) {
	rails, err := ibverbx.NewRails(softNICs(t, 33)...)
	if err != nil {
		t.Fatalf("NewRails: got %v, want no error", err)
	}
	here := newShard(t, rails)
	cfg := tokenConfig(nil)
	cfg.SharedCQ, cfg.Regions[0].Size, cfg.Link = here.on, 4096, peer.LinkAuto
	meeting, err := peer.Listen(soon(t), "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	var both [2][2]*peer.Session
	for i := range both {
		cfg := tokenConfig(peer.OpenSoftNICs(netip.AddrFrom4([4]byte{127, 0, 0, 34 + byte(i)})))
		cfg.Link = peer.LinkAuto
		far, near := dialTo(t, meeting, cfg)
		both[i] = [2]*peer.Session{far, near}
	}
	for i, s := range both {
		notify(t, s[0], s[1], here, uint32(100+i))
		for _, s := range s {
			paths, err := s.QP.Paths()
			if err != nil || !s.Agreed.Sealed || !paths[0].Sealed || s.Link != peer.LinkUDP || s.LinkReason == "" {
				t.Errorf("agreed sealed %v, path sealed %v, link %q (%q), %v; want sealed packets over UDP with a reason",
					s.Agreed.Sealed, paths[0].Sealed, s.Link, s.LinkReason, err)
			}
		}
	}
	for _, s := range both {
		end(t, s[:]...)
	}
	if err := meeting.Close(); err != nil {
		t.Errorf("Listener.Close: got %v, want no error", err)
	}
	here.close()
	if err := rails.Close(); err != nil {
		t.Errorf("Rails.Close: got %v, want no error", err)
	}
}

// TestSharedMemoryBesideRails: the Sessions of a Listener with shared NICs use shared memory if both sides
// allow it, and the NICs otherwise.
func TestSharedMemoryBesideRails(t *testing.T) {
	cfg := tokenConfig(nil)
	cfg.Rails, cfg.Link = softNICs(t, 36), peer.LinkAuto
	meeting, err := peer.Listen(soon(t), "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	for i, want := range []peer.Link{peer.LinkShm, peer.LinkUDP} {
		cfg := tokenConfig(peer.OpenSoftNICs(netip.AddrFrom4([4]byte{127, 0, 0, 37 + byte(i)})))
		cfg.Link = want
		far, near := dialTo(t, meeting, cfg)
		write(t, far, near, 1)
		write(t, near, far, 2)
		for _, s := range []*peer.Session{far, near} {
			paths, err := s.QP.Paths()
			sealed := want == peer.LinkUDP
			if err != nil || s.Link != want || s.Agreed.Sealed != sealed || paths[0].Sealed != sealed {
				t.Errorf("link %q, agreed sealed %v, path sealed %v, %v; want %q and %v", s.Link, s.Agreed.Sealed, paths[0].Sealed, err, want, sealed)
			}
		}
		end(t, far, near)
	}
	if err := meeting.Close(); err != nil {
		t.Errorf("Listener.Close: got %v, want no error", err)
	}
}

// direct returns the number of requests that the NICs of s executed in the peer's memory.
func direct(t *testing.T, s *peer.Session) (n uint64) {
	t.Helper()
	for _, r := range s.Rails.Configs() {
		n += r.Context.Device().(*softnic.NIC).Stats().Direct
	}
	return n
}

// distantNICs is softNICs with a rate limit, as on a network: ports do not report verbs.PortAttr.OnCaller.
func distantNICs(t *testing.T, last byte) []ibverbx.RailConfig {
	t.Helper()
	link, err := softnic.NewUDPLink(&softnic.UDPConfig{Impairment: softnic.Impairment{Rate: 1e12}})
	if err != nil {
		t.Fatalf("NewUDPLink: got %v, want no error", err)
	}
	nic, err := softnic.New(link, softnic.Config{Addr: netip.AddrFrom4([4]byte{127, 0, 0, last})})
	if err != nil {
		t.Fatalf("New: got %v, want no error", err)
	}
	t.Cleanup(func() { _ = nic.Close() })
	ctx, err := nic.Open()
	if err != nil {
		t.Fatalf("Open: got %v, want no error", err)
	}
	return []ibverbx.RailConfig{{Context: ctx}}
}

// sharedPair returns the Sessions of a connection between two shards, each with software NICs at the given addresses.
func sharedPair(t *testing.T, open func(*testing.T, byte) []ibverbx.RailConfig, links [2]peer.Link, nics [2][]byte) (s [2]*peer.Session, shards [2]*shard, errs [2]error) {
	t.Helper()
	var cfgs [2]peer.Config
	for i := range cfgs {
		var configs []ibverbx.RailConfig
		for _, last := range nics[i] {
			configs = append(configs, open(t, last)...)
		}
		rails, err := ibverbx.NewRails(configs...)
		if err != nil {
			t.Fatalf("NewRails: got %v, want no error", err)
		}
		t.Cleanup(func() {
			if err := rails.Close(); err != nil {
				t.Errorf("Rails.Close: got %v, want no error", err)
			}
		})
		shards[i] = newShard(t, rails)
		t.Cleanup(shards[i].close)
		cfgs[i] = tokenConfig(nil)
		cfgs[i].SharedCQ, cfgs[i].Link = shards[i].on, links[i]
	}
	meeting, err := peer.Listen(soon(t), "127.0.0.1:0", cfgs[0])
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(soon(t))
	go func() {
		defer close(done)
		if s[1], errs[1] = peer.Dial(ctx, meeting.Addr().String(), cfgs[1]); errs[1] != nil {
			cancel()
		}
	}()
	s[0], errs[0] = meeting.Accept(ctx)
	<-done
	if err := meeting.Close(); err != nil {
		t.Errorf("Listener.Close: got %v, want no error", err)
	}
	return s, shards, errs
}

// read posts one READ of the peer's whole region or, with want, READs until one is executed in the
// peer's memory.
func read(t *testing.T, s *peer.Session, on *shard, want bool) {
	t.Helper()
	for limit, was := time.Now().Add(time.Minute), direct(t, s); ; {
		err := on.on(func(*ibverbx.VirtualCQ) error {
			wr := ibverbx.SendWR{Opcode: verbs.OpRDMARead, Remote: s.Remote("data"), Flags: verbs.SendSignaled}
			wr.SetSGE(s.Local("data").SGE(0, 1<<20))
			on.imms[s.QP] = 1
			_, err := s.QP.PostSend([]ibverbx.SendWR{wr})
			return err
		})
		if err != nil {
			t.Fatalf("PostSend: got %v, want no error", err)
		}
		for on.imm(s.QP) == 1 { // a completion sets it to 0
			if time.Now().After(limit) {
				t.Fatal("a READ has not completed after a minute")
			}
		}
		if !want || direct(t, s) > was {
			return
		}
	}
}

// TestSharedMemoryOnSharedCQ: Sessions on shared VirtualCQs use shared memory beside their rails, which may differ in number. The
// packets stay sealed. When one side loses the shared memory, packets carry the requests.
func TestSharedMemoryOnSharedCQ(t *testing.T) {
	for name, nics := range map[string][2][]byte{"one rail": {{40}, {41}}, "one and two rails": {{42}, {43, 44}}} {
		t.Run(name, func(t *testing.T) {
			s, shards, errs := sharedPair(t, softNICs, [2]peer.Link{peer.LinkAuto, peer.LinkShm}, nics)
			if err := errors.Join(errs[:]...); err != nil {
				t.Fatalf("connect: got %v, want no error", err)
			}
			for i, s := range s {
				if s.Link != peer.LinkShm || s.LinkReason != "" || !s.Agreed.Sealed {
					t.Errorf("link %q (%q), sealed %v, want shm and sealed packets", s.Link, s.LinkReason, s.Agreed.Sealed)
				}
				read(t, s, shards[i], true)
			}
			peer.LoseSharedMemory(s[0])
			for i, s := range s {
				read(t, s, shards[i], false)
			}
			end(t, s[:]...)
		})
	}
}

// TestSharedMemoryKeepsWhole: a Session on shared memory does not divide a request of 1 MiB among its lanes.
func TestSharedMemoryKeepsWhole(t *testing.T) {
	s, shards, errs := sharedPair(t, distantNICs, [2]peer.Link{peer.LinkShm, peer.LinkShm}, [2][]byte{{49}, {50}})
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatalf("connect: got %v, want no error", err)
	}
	if port, err := s[0].Rails.Configs()[0].Context.QueryPort(1); err != nil || port.OnCaller {
		t.Fatalf("QueryPort: got OnCaller %v, %v, want a port that would fragment", port.OnCaller, err)
	}
	before := s[0].QP.Stats().Fragments
	read(t, s[0], shards[0], false)
	if got := s[0].QP.Stats().Fragments - before; got != 1 {
		t.Errorf("a READ of 1 MiB left as %d fragments, want 1", got)
	}
	end(t, s[:]...)
}

// TestSharedMemoryRefused: a Session on a shared VirtualCQ that requires shared memory fails if the peer wants UDP, and without Link it
// uses UDP.
func TestSharedMemoryRefused(t *testing.T) {
	s, _, errs := sharedPair(t, softNICs, [2]peer.Link{peer.LinkUDP, peer.LinkShm}, [2][]byte{{45}, {46}})
	if !errors.Is(errs[1], peer.ErrMismatch) || !strings.Contains(fmt.Sprint(errs[1]), "wants udp") {
		t.Errorf("shm and udp: got %v, want a mismatch that names both", errs[1])
	}
	if s[1] != nil {
		t.Error("got a Session, want none")
	}
	s, _, errs = sharedPair(t, softNICs, [2]peer.Link{"", peer.LinkAuto}, [2][]byte{{47}, {48}})
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatalf("connect: got %v, want no error", err)
	}
	for _, s := range s {
		if s.Link != peer.LinkUDP || s.LinkReason == "" {
			t.Errorf("link %q (%q), want udp with a reason", s.Link, s.LinkReason)
		}
	}
	end(t, s[:]...)
}
