package peer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
	"ibverbx/peer"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

var token = []byte("a token for tests, and long enough")

var loopback = netip.MustParseAddr("127.0.0.1")

// soon is shared with the tests of other packages.
var soon = enginetest.Soon

// network is a set of rails in memory. Each rail is a link, and a host has a NIC on each.
type network []softnic.Link

func newNetwork(rails int) network { return enginetest.MemoryLinks(rails) }

// open returns a Config.Open for a host on the first rails. The optional cfg describes its NICs.
func (n network) open(rails int, cfg ...softnic.Config) func() (peer.NICs, error) {
	return func() (nics peer.NICs, err error) {
		_, nics.Rails, nics.Close, err = enginetest.OpenNICs(n[:rails], append(cfg, softnic.Config{})[0], nil)
		return nics, err
	}
}

// plain is the authentication of tests that are not about it: deriving a key from a token takes tens of milliseconds.
var plain = bootstrap.Config{InsecurePlaintextOnLoopback: true}

func config(open func() (peer.NICs, error)) peer.Config {
	return peer.Config{Auth: plain, Open: open, Regions: []peer.RegionConfig{{Name: "data", Size: 1 << 20}}}
}

// tokenConfig is config with a token. Packets between software NICs are then sealed.
func tokenConfig(open func() (peer.NICs, error)) peer.Config {
	cfg := config(open)
	cfg.Auth = bootstrap.Config{Token: token}
	return cfg
}

// meet connects two sides. Either may fail.
func meet(t testing.TB, dialer, listener peer.Config) (d, l *peer.Session, dialErr, listenErr error) {
	t.Helper()
	meeting, err := peer.Listen(soon(t), "127.0.0.1:0", listener)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	done := make(chan struct{})
	ctx := soon(t)
	go func() {
		defer close(done)
		l, listenErr = meeting.Accept(ctx)
	}()
	d, dialErr = peer.Dial(ctx, meeting.Addr().String(), dialer)
	<-done
	if err := meeting.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	for _, s := range []*peer.Session{d, l} {
		if s != nil {
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("Session.Close: got %v, want no error", err)
				}
			})
		}
	}
	return d, l, dialErr, listenErr
}

func mustMeet(t testing.TB, dialer, listener peer.Config) (d, l *peer.Session) {
	t.Helper()
	d, l, dialErr, listenErr := meet(t, dialer, listener)
	if dialErr != nil || listenErr != nil {
		t.Fatalf("got %v and %v, want no errors", dialErr, listenErr)
	}
	return d, l
}

// write fills one side's memory, transfers it and compares.
func write(t testing.TB, from, to *peer.Session, fill byte) {
	t.Helper()
	for i := range from.Local("data").Bytes() {
		from.Local("data").Bytes()[i] = fill + byte(i%251)
	}
	transfer(t, from, to)
	if !bytes.Equal(from.Local("data").Bytes(), to.Local("data").Bytes()) {
		t.Errorf("the bytes differ, want them equal")
	}
}

// transfer writes one side's memory to the other's and waits for the notification.
func transfer(t testing.TB, from, to *peer.Session) {
	t.Helper()
	if _, err := to.QP.PostRecv([]ibverbx.RecvWR{{WRID: 9}}); err != nil {
		t.Fatalf("PostRecv: got %v, want no error", err)
	}
	wr := ibverbx.SendWR{WRID: 7, Opcode: verbs.OpRDMAWriteWithImm, Imm: 1, Flags: verbs.SendSignaled, Remote: from.Remote("data")}
	wr.SetSGE(from.Local("data").SGE(0, 1<<20))
	if _, err := from.QP.PostSend([]ibverbx.SendWR{wr}); err != nil {
		t.Fatalf("PostSend: got %v, want no error", err)
	}
	var wcs [4]ibverbx.WC
	ended := map[uint64]bool{}
	for limit := time.Now().Add(2 * time.Minute); len(ended) < 2; {
		for _, s := range []*peer.Session{from, to} {
			n, err := s.CQ.Poll(wcs[:])
			if err != nil {
				t.Fatalf("Poll: got %v, want no error", err)
			}
			for i := range wcs[:n] {
				if err := wcs[i].Err(); err != nil {
					t.Fatalf("a request ended in %v, want success", err)
				}
				ended[wcs[i].WRID] = true
			}
		}
		if time.Now().After(limit) {
			t.Fatalf("after 2 minutes %v have completed, want the write and its notification", ended)
		}
	}
}

// Two sides with any Configs get a Session that carries data in both directions.
func TestSession(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(d, l *peer.Config)
		want   peer.Agreement
	}{
		{"as it is", func(*peer.Config, *peer.Config) {}, peer.Agreement{
			Lanes: 8, SendDepth: 256, RecvDepth: 256, LaneDepth: 128, MTU: verbs.MTU4096, Failover: true,
		}},
		{"wishes of both", func(d, l *peer.Config) {
			d.QP = ibverbx.Config{Lanes: 16, SendDepth: 64, FragmentSize: 64 << 10}
			l.QP = ibverbx.Config{Lanes: 6, LaneDepth: 32}
			l.MTU, d.Schemes, l.Schemes = 1024, []ibverbx.Scheme{ibverbx.Spray, ibverbx.DQPLB}, []ibverbx.Scheme{ibverbx.Tally, ibverbx.DQPLB}
		}, peer.Agreement{
			Scheme: ibverbx.DQPLB, Lanes: 6, SendDepth: 64, RecvDepth: 256, LaneDepth: 32, FragmentSize: 64 << 10, MTU: verbs.MTU1024, Failover: true,
		}},
		{"with a token", func(d, l *peer.Config) {
			d.Auth = bootstrap.Config{Token: token}
			l.Auth = d.Auth
		}, peer.Agreement{
			Lanes: 8, SendDepth: 256, RecvDepth: 256, LaneDepth: 128, MTU: verbs.MTU4096, Failover: true,
		}},
		{"one lane, straight through", func(d, l *peer.Config) { d.QP.Lanes, l.NoFailover = 1, true }, peer.Agreement{
			Lanes: 1, SendDepth: 256, RecvDepth: 256, LaneDepth: 128, MTU: verbs.MTU4096,
		}},
		{"one lane with failover", func(d, _ *peer.Config) { d.QP.Lanes = 1 }, peer.Agreement{
			Lanes: 1, SendDepth: 256, RecvDepth: 256, LaneDepth: 128, MTU: verbs.MTU4096, Failover: true,
		}},
		{"1,024 lanes", func(d, l *peer.Config) { d.QP.Lanes, l.QP.Lanes = 1024, 1024 }, peer.Agreement{
			Lanes: 1024, SendDepth: 256, RecvDepth: 256, LaneDepth: 128, MTU: verbs.MTU4096, Failover: true,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := newNetwork(2)
			dc, lc := config(n.open(2)), config(n.open(2))
			tt.change(&dc, &lc)
			d, l := mustMeet(t, dc, lc)
			if d.Agreed != tt.want || l.Agreed != tt.want {
				t.Errorf("agreed on %+v and %+v, want %+v", d.Agreed, l.Agreed, tt.want)
			}
			write(t, d, l, 1)
			write(t, l, d, 99)
			if err := d.Send(soon(t), []byte("well done")); err != nil {
				t.Errorf("Send: got %v, want no error", err)
			}
			if b, err := l.Recv(soon(t)); err != nil || string(b) != "well done" {
				t.Errorf("Recv: got %q, %v, want %q", b, err, "well done")
			}
			brief, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			if err := d.WaitDone(brief); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("WaitDone before the peer does: got %v, want it to wait", err)
			}
			if err := errors.Join(d.Send(soon(t), []byte("lost")), l.WaitDone(soon(t)), d.WaitDone(soon(t))); err != nil {
				t.Errorf("WaitDone: got %v, want no error", err)
			}
		})
	}
}

// TestSessionBeyondDevice: the CQs of a NIC are too small for the lanes. The error names the lanes and the limit.
func TestSessionBeyondDevice(t *testing.T) {
	n := newNetwork(1)
	small := config(func() (peer.NICs, error) {
		nics, err := n.open(1)()
		nics.Rails[0].Context = enginetest.Limits{CQE: 100_000}.Over(nics.Rails[0].Context)
		return nics, err
	})
	small.QP = ibverbx.Config{Lanes: 1024, LaneDepth: 128}
	_, _, err, _ := meet(t, small, small)
	if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "1024 lanes") || !strings.Contains(err.Error(), "100000") {
		t.Errorf("Dial: got %v, want %v that names 1024 lanes and 100000", err, verbs.ErrInvalid)
	}
}

// A lost lane is rebuilt over the control channel of the Session.
func TestSessionFailover(t *testing.T) {
	open := newNetwork(2).open(2)
	t.Run("bare rails", func(t *testing.T) { sessionFailover(t, config(open)) })
	t.Run("long offers", func(t *testing.T) {
		cfg := config(wrapped(open, reliable.Config{Paths: 256}))
		cfg.QP.Lanes = 4
		sessionFailover(t, cfg)
	})
}

// wrapped returns a Config.Open whose contexts package reliable wraps.
func wrapped(open func() (peer.NICs, error), cfg reliable.Config) func() (peer.NICs, error) {
	return func() (peer.NICs, error) {
		nics, err := open()
		for i := range nics.Rails {
			ctx, e := reliable.Wrap(nics.Rails[i].Context, cfg)
			if e != nil {
				return nics, e
			}
			nics.Rails[i].Context = ctx
			stop := nics.Close
			nics.Close = func() error { return errors.Join(ctx.Close(), stop()) }
		}
		return nics, err
	}
}

func sessionFailover(t *testing.T, cfg peer.Config) {
	t.Helper()
	d, l := mustMeet(t, cfg, cfg)
	write(t, d, l, 1)
	if err := d.QP.KillLane(3); err != nil {
		t.Fatalf("KillLane: got %v, want no error", err)
	}
	var wcs [4]ibverbx.WC
	back := func() bool {
		lane := d.QP.Stats().Lanes[3]
		return lane.Generation > 0 && lane.State == "up"
	}
	for limit := time.Now().Add(2 * time.Minute); !back(); {
		write(t, d, l, 5)
		for _, s := range []*peer.Session{d, l} {
			if _, err := s.CQ.Poll(wcs[:]); err != nil {
				t.Fatalf("Poll: got %v, want no error", err)
			}
		}
		if time.Now().After(limit) {
			t.Fatalf("after 2 minutes lane 3 is %+v, want it up again", d.QP.Stats().Lanes[3])
		}
	}
	if s := d.Conn.Stats(); s.DatagramsIn == 0 || s.DatagramsOut == 0 {
		t.Errorf("the control channel carried %d and %d datagrams, want some", s.DatagramsIn, s.DatagramsOut)
	}
}

// A mismatch is an error on both sides, with both values.
func TestSessionMismatch(t *testing.T) {
	n := newNetwork(1)
	dc, lc := config(n.open(1)), config(n.open(1, softnic.Config{MTU: verbs.MTU1024}))
	dc.Minimum.MTU = 2048
	_, _, dialErr, listenErr := meet(t, dc, lc)
	for name, err := range map[string]error{"Dial": dialErr, "Accept": listenErr} {
		if !errors.Is(err, peer.ErrMismatch) || !strings.Contains(err.Error(), "MTU: the dialer needs at least 2048, the listener can do at most 1024") {
			t.Errorf("%s: got %v, want a mismatch of the MTU", name, err)
		}
	}
	if !strings.Contains(dialErr.Error(), "this side dials") || !strings.Contains(listenErr.Error(), "this side listens") {
		t.Errorf("got %v and %v, want each to name its role", dialErr, listenErr)
	}
}

// A side that cannot continue sends the reason to the other.
func TestSessionFails(t *testing.T) {
	n := newNetwork(1)
	good := config(n.open(1))
	broken := good
	broken.Open = func() (peer.NICs, error) { return peer.NICs{}, errors.New("no NIC today") }
	tooMuch := good
	tooMuch.Minimum.RecvDepth = 1 << 16 // more than a softnic queue holds
	for name, spoiled := range map[string]peer.Config{"no NIC today": broken, "more than the NICs": tooMuch} {
		// The listener fails, because a failing dialer may exit before it is accepted.
		_, _, dialErr, listenErr := meet(t, good, spoiled)
		if listenErr == nil || !strings.Contains(listenErr.Error(), name) {
			t.Errorf("Accept: got %v, want that there is %s", listenErr, name)
		}
		if !errors.Is(dialErr, bootstrap.ErrPeerClosed) || !strings.Contains(dialErr.Error(), name) {
			t.Errorf("Dial: got %v, want that the peer has %s", dialErr, name)
		}
	}
}

// A peer that is silent or sends garbage after admission is dropped.
func TestSessionOfSilence(t *testing.T) {
	n := newNetwork(1)
	cfg := config(n.open(1))
	for name, say := range map[string]func(c *bootstrap.Conn) error{
		"deadline":     func(*bootstrap.Conn) error { return nil },
		"decode offer": func(c *bootstrap.Conn) error { return c.Send(t.Context(), bootstrap.KindOffer, []byte("{}")) },
		"of kind":      func(c *bootstrap.Conn) error { return c.Send(t.Context(), bootstrap.KindCard, []byte("{}")) },
		"version 4":    func(c *bootstrap.Conn) error { return c.Send(t.Context(), bootstrap.KindOffer, newer(t)) },
		`no field "VER`: func(c *bootstrap.Conn) error {
			return c.Send(t.Context(), bootstrap.KindOffer, []byte(`{"VERSION":1}`))
		},
		"at most 16384 ": func(c *bootstrap.Conn) error { return c.Send(t.Context(), bootstrap.KindOffer, make([]byte, 20000)) },
	} {
		if cfg.Timeout = 0; name == "deadline" {
			cfg.Timeout = 300 * time.Millisecond
		}
		meeting, err := peer.Listen(soon(t), "127.0.0.1:0", cfg)
		if err != nil {
			t.Fatalf("Listen: got %v, want no error", err)
		}
		c, err := bootstrap.Dial(soon(t), meeting.Addr().String(), cfg.Auth)
		if err != nil {
			t.Fatalf("Dial: got %v, want no error", err)
		}
		if err := say(c); err != nil {
			t.Fatalf("Send: got %v, want no error", err)
		}
		if _, err := meeting.Accept(soon(t)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Accept: got %v, want %q", err, name)
		}
		if err := errors.Join(c.Close(), meeting.Close()); err != nil {
			t.Errorf("Close: got %v, want no error", err)
		}
	}
}

// newer returns an offer of another version.
func newer(t *testing.T) []byte {
	t.Helper()
	return []byte(`{"version":4,"rails":null,"schemes":null,"lanes":{"want":0,"min":0,"max":0},"send_depth":{"want":0,"min":0,"max":0},` +
		`"recv_depth":{"want":0,"min":0,"max":0},"lane_depth":{"want":0,"min":0,"max":0},"fragment":{"want":0,"min":0,"max":0},` +
		`"mtu":{"want":0,"min":0,"max":0},"failover":false,"seal":"on"}`)
}

func TestConfigRefused(t *testing.T) {
	n := newNetwork(1)
	for name, spoil := range map[string]func(*peer.Config){
		"QP.Deadline":   func(c *peer.Config) { c.QP.Deadline, c.NoFailover = time.Second, true },
		"RequireSealed": func(c *peer.Config) { c.Unsealed, c.RequireSealed = true, true },
		"SharedCQ": func(c *peer.Config) {
			c.SharedCQ = func(func(*ibverbx.VirtualCQ) error) error { return nil }
		},
		"QP.Control":        func(c *peer.Config) { c.QP.Control, _ = ibverbx.ControlPair() },
		"QP.Scheme":         func(c *peer.Config) { c.QP.Scheme = ibverbx.Spray },
		"QP.CxxPeer":        func(c *peer.Config) { c.QP.CxxPeer = true },
		"Timeout":           func(c *peer.Config) { c.Timeout = -1 },
		"MTU":               func(c *peer.Config) { c.MTU = 1500 },
		"Regions[0]":        func(c *peer.Config) { c.Regions[0].Size = 0 },
		"Regions[0].Name":   func(c *peer.Config) { c.Regions[0].Name = strings.Repeat("x", 65) },
		"of UTF-8":          func(c *peer.Config) { c.Regions[0].Name = "\xff" },
		"names must differ": func(c *peer.Config) { c.Regions = append(c.Regions, c.Regions[0]) },
		"Regions has 1025:": func(c *peer.Config) { c.Regions = make([]peer.RegionConfig, 1025) },
	} {
		cfg := config(n.open(1))
		spoil(&cfg)
		_, dialErr := peer.Dial(t.Context(), "127.0.0.1:1", cfg)
		_, listenErr := peer.Listen(t.Context(), "127.0.0.1:0", cfg)
		for _, err := range []error{dialErr, listenErr} {
			if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(fmt.Sprint(err), name) {
				t.Errorf("%s: got %v, want that it is invalid", name, err)
			}
		}
	}
}
