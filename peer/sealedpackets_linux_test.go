package peer_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/softnic"
)

// spy sees every packet that a NIC sends or receives and keeps the last ones.
type spy struct {
	mu   sync.Mutex
	sent []seen
}

// seen is a packet and its destination.
type seen struct {
	to     netip.AddrPort
	packet []byte
}

// Packet implements softnic.Capture.
func (c *spy) Packet(_ int64, _, dst netip.AddrPort, _ uint16, _, _ uint8, parts ...[]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sent) == 256 {
		c.sent = c.sent[1:]
	}
	c.sent = append(c.sent, seen{dst, bytes.Join(parts, nil)})
}

// last returns one of the last packets, if any.
func (c *spy) last(ago int) (seen, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ago >= len(c.sent) {
		return seen{}, false
	}
	s := c.sent[len(c.sent)-1-ago]
	return seen{s.to, bytes.Clone(s.packet)}, true
}

// spied returns a software NIC over UDP whose packets c captures, and a Config.Open for it.
func spied(t testing.TB, last byte, c *spy) (*softnic.NIC, func() (peer.NICs, error)) {
	t.Helper()
	link, err := softnic.NewUDPLink(&softnic.UDPConfig{Capture: c})
	if err != nil {
		t.Fatalf("NewUDPLink: got %v, want no error", err)
	}
	nic, err := softnic.New(link, softnic.Config{Addr: netip.AddrFrom4([4]byte{127, 0, 0, last})})
	if err != nil {
		t.Fatalf("New: got %v, want no error", err)
	}
	t.Cleanup(func() { _ = nic.Close() })
	return nic, func() (peer.NICs, error) {
		ctx, err := nic.Open()
		return peer.NICs{Rails: []ibverbx.RailConfig{{Context: ctx}}, Close: nic.Close}, err
	}
}

// TestClosedSessionForgetsKeys: NICs that outlive a Session forget its keys: its packets are then counted as
// unknown.
func TestClosedSessionForgetsKeys(t *testing.T) {
	var c spy
	nic, open := spied(t, 51, &spy{})
	nics, err := open()
	if err != nil {
		t.Fatalf("open: got %v, want no error", err)
	}
	rails, err := ibverbx.NewRails(nics.Rails...)
	if err != nil {
		t.Fatalf("NewRails: got %v, want no error", err)
	}
	here := newShard(t, rails)
	cfg := tokenConfig(nil)
	cfg.SharedCQ, cfg.Regions[0].Size = here.on, 4096
	meeting, err := peer.Listen(soon(t), "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	_, open = spied(t, 52, &c)
	far, near := dialTo(t, meeting, tokenConfig(open))
	notify(t, far, near, here, 7)
	end(t, far, near)
	p, ok := c.last(0)
	for ago := 1; ok && p.to.Addr() != netip.AddrFrom4([4]byte{127, 0, 0, 51}); ago++ {
		p, ok = c.last(ago)
	}
	if !ok {
		t.Fatal("no packet was sent")
	}
	before := nic.Stats()
	strike(t, p.to, p.packet)
	for limit := time.Now().Add(time.Minute); nic.Stats().Seals == before.Seals; time.Sleep(time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("after a minute the packet is not counted")
		}
	}
	if got := nic.Stats().Seals; got.Unknown != before.Seals.Unknown+1 {
		t.Errorf("a packet of a closed Session: %+v, want it counted as Unknown", got)
	}
	if err := meeting.Close(); err != nil {
		t.Errorf("Listener.Close: got %v, want no error", err)
	}
	here.close()
	if err := rails.Close(); err != nil {
		t.Errorf("Rails.Close: got %v, want no error", err)
	}
}

// strike sends a packet from a separate socket.
func strike(t *testing.T, to netip.AddrPort, b []byte) {
	t.Helper()
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err == nil {
		_, err = c.Write(b)
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		t.Errorf("send to %v: got %v, want no error", to, err)
	}
}

// TestSealedEvents: a Session's events report whether its packets are sealed.
func TestSealedEvents(t *testing.T) {
	for _, unsealed := range []bool{false, true} {
		var cfgs [2]peer.Config
		nic, open := spied(t, 61, &spy{})
		_, far := spied(t, 62, &spy{})
		cfgs[0], cfgs[1] = tokenConfig(open), tokenConfig(far)
		cfgs[0].Unsealed, cfgs[1].Unsealed = unsealed, unsealed
		d, _ := mustMeet(t, cfgs[0], cfgs[1])
		nic.SetPort(false)
		var events [1]ibverbx.Event
		for n, limit := 0, time.Now().Add(time.Minute); n == 0; n = d.CQ.Events(events[:]) {
			if _, err := d.CQ.Poll(nil); err != nil || time.Now().After(limit) {
				t.Fatalf("Poll: got %v and no event, want one", err)
			}
		}
		if events[0].Sealed == unsealed {
			t.Errorf("unsealed %v: event %v says sealed: %v", unsealed, events[0].Kind, events[0].Sealed)
		}
	}
}
