package peer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// A side does not return before the other is ready. The other side here echoes everything and delays its
// ready message.
func TestReady(t *testing.T) {
	l, err := bootstrap.Listen(t.Context(), "127.0.0.1:0", plain)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	defer func() { _ = l.Close() }()
	type outcome struct {
		s   *peer.Session
		err error
	}
	returned := make(chan outcome, 1)
	ctx := soon(t)
	go func() {
		s, err := peer.Dial(ctx, l.Addr().String(), config(newNetwork(1).open(1)))
		returned <- outcome{s, err}
	}()
	c, err := l.Accept(ctx)
	if err != nil {
		t.Fatalf("Accept: got %v, want no error", err)
	}
	defer func() { _ = c.Close() }()
	for _, kind := range []bootstrap.Kind{bootstrap.KindOffer, bootstrap.KindCard, bootstrap.KindRegions, bootstrap.KindReady} {
		m, err := c.Recv(ctx)
		if err != nil || m.Kind != kind {
			t.Fatalf("Recv: got kind %d and %v, want %d", m.Kind, err, kind)
		}
		if kind == bootstrap.KindReady {
			time.Sleep(50 * time.Millisecond)
			select {
			case o := <-returned:
				t.Fatalf("Dial returned %v before the peer was ready, want it to wait", o.err)
			default:
			}
		}
		if err := c.Send(ctx, kind, m.Body); err != nil {
			t.Fatalf("Send: got %v, want no error", err)
		}
	}
	o := <-returned
	if o.err != nil {
		t.Fatalf("Dial: got %v, want no error", o.err)
	}
	if err := o.s.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
}

func TestRegionsRefused(t *testing.T) {
	const good = `{"regions":[{"name":"a","addr":4096,"length":4096,"rkeys":[1,2]}]}`
	if r, err := peer.DecodeRegions([]byte(good), 2); err != nil || len(r) != 1 || r["a"] == nil || r["a"].RKeys[1] != 2 {
		t.Errorf("a good region: got %+v and %v, want it accepted", r, err)
	}
	for name, text := range map[string]string{
		"keys":        strings.Replace(good, "[1,2]", "[1]", 1),
		"no keys":     strings.Replace(good, "[1,2]", "null", 1),
		"length":      strings.Replace(good, `"length":4096`, `"length":0`, 1),
		"end":         strings.Replace(good, `"addr":4096`, `"addr":18446744073709551000`, 1),
		"name":        strings.Replace(good, `"a"`, `"`+strings.Repeat("x", 65)+`"`, 1),
		"repeated":    strings.Replace(good, `"name":"a"`, `"name":"a","name":"a"`, 1),
		"another":     strings.Replace(good, `"name"`, `"game"`, 1),
		"same name":   strings.Replace(good, "}]}", `},{"name":"a","addr":8192,"length":4096,"rkeys":[3,4]}]}`, 1),
		"more behind": good + "{}",
		"nothing":     `{"regions":null}`,
	} {
		if r, err := peer.DecodeRegions([]byte(text), 2); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: got %+v and %v, want it rejected", name, r, err)
		}
	}
}

// A Config without NICs gets a software NIC on the local address of the connection. SoftNICs
// with several addresses opens several. They use UDP.
func TestSessionOverUDP(t *testing.T) {
	d, l := mustMeet(t, tokenConfig(nil), tokenConfig(nil))
	write(t, d, l, 1)
	write(t, l, d, 9)
	two := config(peer.OpenSoftNICs(loopback, loopback))
	two.QP.Lanes, two.QP.FragmentSize = 6, 16<<10
	d, l = mustMeet(t, two, two)
	write(t, d, l, 3)
	for i, rail := range d.QP.Stats().Rails {
		if rail.Bytes == 0 {
			t.Errorf("rail %d carried nothing, want half", i)
		}
	}
	if _, _, _, err := meet(t, config(nil), config(peer.OpenDevices("none_such"))); err == nil {
		t.Errorf("Accept with an unknown device: got no error, want one")
	}
}

// TestCardToOthersRefused: a card with a multicast, broadcast or foreign address is rejected. The peer here
// mirrors all messages and modifies the card.
func TestCardToOthersRefused(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("softnic between processes needs Linux")
	}
	for gid, want := range map[string]string{
		"::ffff:224.0.0.1": "not the address of one host", "::ffff:255.255.255.255": "not the address of one host",
		"::ffff:192.0.2.1": "not on the same host",
	} {
		cfg := peer.Config{Auth: plain}
		meeting, err := peer.Listen(soon(t), "127.0.0.1:0", cfg)
		if err != nil {
			t.Fatalf("Listen: got %v, want no error", err)
		}
		c, err := bootstrap.Dial(soon(t), meeting.Addr().String(), cfg.Auth)
		if err != nil {
			t.Fatalf("Dial: got %v, want no error", err)
		}
		b, err := json.Marshal(offer())
		if err := errors.Join(err, c.Send(soon(t), bootstrap.KindOffer, b)); err != nil {
			t.Fatalf("Send: got %v, want no error", err)
		}
		ctx := soon(t)
		mirrored := make(chan error, 1)
		go func() {
			for {
				m, err := c.Recv(ctx)
				if err == nil && m.Kind == bootstrap.KindCard {
					m.Body = bytes.ReplaceAll(m.Body, []byte("::ffff:127.0.0.1"), []byte(gid))
				}
				if err == nil && m.Kind != bootstrap.KindOffer {
					err = c.Send(ctx, m.Kind, m.Body)
				}
				if err != nil {
					mirrored <- err
					return
				}
			}
		}()
		if _, err := meeting.Accept(ctx); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("a card with %s: got %v, want %q", gid, err, want)
		}
		if err := <-mirrored; !errors.Is(err, bootstrap.ErrPeerClosed) {
			t.Errorf("the peer: got %v, want %v", err, bootstrap.ErrPeerClosed)
		}
		if err := errors.Join(c.Close(), meeting.Close()); err != nil {
			t.Errorf("Close: got %v, want no error", err)
		}
	}
}
