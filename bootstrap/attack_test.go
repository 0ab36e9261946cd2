package bootstrap

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

// newSilent starts a server that accepts connections but never sends. It returns its address.
func newSilent(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: got %v, want no error", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String()
}

// A dialer without the token gets the preface with the version, and a refusal, but not the
// listener's proof, which would allow guessing the token offline.
func TestStrangerLearnsNothing(t *testing.T) {
	t.Parallel()
	d := newDoor(t, tokenConfig())
	c := secure(t, d.connect(t))
	wireSend(t, c, framePreface, preface{Version, AuthToken}.encode())
	if h, b := wireTake(t, c); h.typ != framePreface || !bytes.Equal(b, preface{Version, AuthToken}.encode()) {
		t.Fatalf("the listener answers with type %d, %x, want a preface", h.typ, b)
	}
	wireSend(t, c, frameProof, make([]byte, proofLen))
	h, b := wireTake(t, c)
	r, err := decodeRefusal(b)
	if h.typ != frameRefusal || err != nil || r.code != refusedAuth {
		t.Errorf("a wrong proof is answered with type %d, %+v, %v, want a refusal of code %d", h.typ, r, err, refusedAuth)
	}
	if rest, _ := io.ReadAll(c); len(rest) > 0 {
		t.Errorf("%x follows the refusal, want nothing", rest)
	}
	wants(t, "the listener", d.rejection(t), ErrAuth)
}

// A man in the middle has a TLS session with each side and forwards every frame. The proofs
// belong to different sessions, so both sides reject them.
func TestManInTheMiddle(t *testing.T) {
	d := newDoor(t, tokenConfig())
	cfg := tokenConfig()
	cred, err := cfg.load(false, nil)
	if err != nil {
		t.Fatalf("load: got %v, want no error", err)
	}
	middle, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: got %v, want no error", err)
	}
	relayed := make(chan int, 1)
	go func() {
		raw, err := middle.Accept()
		if err != nil {
			relayed <- -1
			return
		}
		victim := tls.Server(raw, cred.tls)
		server, err := tls.Dial("tcp", d.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{alpn}})
		if err != nil {
			relayed <- -1
			return
		}
		back := make(chan struct{})
		go func() {
			_, _ = io.Copy(victim, server)
			_ = victim.Close()
			close(back)
		}()
		n, _ := io.Copy(server, victim)
		_ = server.Close()
		<-back
		relayed <- int(n)
	}()
	_, err = Dial(soon(t), middle.Addr().String(), tokenConfig())
	wants(t, "Dial through the middle", err, ErrAuth)
	wants(t, "the listener", d.rejection(t), ErrAuth)
	_ = middle.Close()
	if n := <-relayed; n < headerLen+prefaceLen+headerLen+proofLen {
		t.Errorf("%d bytes were forwarded, want at least the dialer's preface and proof", n)
	}
	if s := d.Stats(); s.Admitted != 0 {
		t.Errorf("%d peers were admitted, want 0", s.Admitted)
	}
}

// A listener without the token sends the dialer's own proof back.
func TestReflectedProof(t *testing.T) {
	key, err := (&Config{Token: []byte("a token of somebody else's")}).load(false, nil)
	if err != nil {
		t.Fatalf("load: got %v, want no error", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: got %v, want no error", err)
	}
	defer func() { _ = l.Close() }()
	after := make(chan []byte, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			after <- []byte(err.Error())
			return
		}
		c := tls.Server(raw, key.tls)
		_, _ = io.CopyN(c, c, headerLen+prefaceLen+headerLen+proofLen)
		h, err := readHeader(c)
		if err == nil && h.typ != frameRefusal {
			after <- []byte{byte(h.typ)}
		} else {
			after <- nil
		}
		_ = c.Close()
	}()
	_, err = Dial(soon(t), l.Addr().String(), tokenConfig())
	wants(t, "Dial", err, ErrAuth)
	if got := <-after; got != nil {
		t.Errorf("after its own proof the dialer sends %q, want at most a refusal", got)
	}
}

// A recorded proof does not work in another session.
func TestReplayedProof(t *testing.T) {
	t.Parallel()
	d := newDoor(t, tokenConfig())
	cfg := tokenConfig()
	cred, err := cfg.load(true, nil)
	if err != nil {
		t.Fatalf("load: got %v, want no error", err)
	}
	prove := func(of, in *tls.Conn) header {
		state := of.ConnectionState()
		proof, _, err := proofs(cred.tokens[0].key, &state)
		if err != nil {
			t.Fatalf("proofs: got %v, want no error", err)
		}
		wireSend(t, in, framePreface, preface{Version, AuthToken}.encode())
		wireTake(t, in)
		wireSend(t, in, frameProof, proof[:])
		h, _ := wireTake(t, in)
		return h
	}
	first, second := secure(t, d.connect(t)), secure(t, d.connect(t))
	if h := prove(first, first); h.typ != frameProof {
		t.Errorf("a right proof is answered with type %d, want %d", h.typ, frameProof)
	}
	if h := prove(first, second); h.typ != frameRefusal {
		t.Errorf("a proof of another session is answered with type %d, want %d", h.typ, frameRefusal)
	}
	wants(t, "the listener", d.rejection(t), ErrAuth)
}

func TestOldTLSRefused(t *testing.T) {
	t.Parallel()
	d := newDoor(t, tokenConfig())
	c := tls.Client(d.connect(t), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{alpn}, MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12})
	if err := c.Handshake(); err == nil {
		t.Errorf("TLS 1.2: got no error, want one")
	}
	if err := d.rejection(t); err == nil {
		t.Errorf("the listener rejected with no error, want one")
	}
	other := tls.Client(d.connect(t), &tls.Config{InsecureSkipVerify: true})
	_ = other.Handshake()
	wants(t, "TLS without the protocol", d.rejection(t), ErrProtocol)
}

func TestWrongVersion(t *testing.T) {
	t.Parallel()
	d := newDoor(t, plainConfig())
	c := d.connect(t)
	wireSend(t, c, framePreface, preface{version: 9, auth: 200}.encode())
	h, b := wireTake(t, c)
	if r, err := decodeRefusal(b); h.typ != frameRefusal || err != nil || !errors.Is(&r, ErrVersion) {
		t.Errorf("version 9 is answered with type %d, %q, want a refusal for the version", h.typ, b)
	}
	wants(t, "the listener", d.rejection(t), ErrVersion)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: got %v, want no error", err)
	}
	defer func() { _ = l.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		raw, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = raw.Write(appendFrame(nil, framePreface, 0, preface{version: 2, auth: AuthNone}.encode()))
		_, _ = io.Copy(io.Discard, raw)
		_ = raw.Close()
	}()
	_, err = Dial(soon(t), l.Addr().String(), plainConfig())
	wants(t, "Dial", err, ErrVersion)
	<-done
}

// Malformed input is rejected, and the listener keeps working.
func TestGarbage(t *testing.T) {
	for name, cfg := range map[string]Config{"plain": plainConfig(), "token": tokenConfig()} {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t, cfg)
			rng := rand.New(rand.NewPCG(1, 2))
			random := make([]byte, 4096)
			for i := range random {
				random[i] = byte(rng.Uint32())
			}
			for _, b := range [][]byte{
				[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), random, make([]byte, 100), bytes.Repeat([]byte{0xff}, 100),
				appendFrame(nil, frameHello, 0, make([]byte, helloMin)), appendFrame(nil, frameMessage, KindCard, []byte("card")),
				{0xff, 0xff, 0xff, 0xff, byte(framePreface), 0, 0, 0},
				{},
			} {
				c := d.connect(t)
				if _, err := c.Write(b); err != nil {
					t.Fatalf("write: got %v, want no error", err)
				}
				if err := c.(*net.TCPConn).CloseWrite(); err != nil {
					t.Fatalf("CloseWrite: got %v, want no error", err)
				}
				got, _ := io.ReadAll(c)
				if len(got) > headerLen+1+maxText {
					t.Errorf("%.20q is answered with %d bytes, want a refusal at most", b, len(got))
				}
				if err := d.rejection(t); err == nil {
					t.Errorf("%.20q: rejected with no error, want one", b)
				}
			}
			d.meet(t, cfg)
		})
	}
}

// Newer peers replace silent ones, which therefore cannot block them.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	cfg := plainConfig()
	cfg.MaxHandshakes = 4
	cfg.HandshakeTimeout = time.Hour
	d := newDoor(t, cfg)
	for range 20 {
		d.connect(t)
	}
	for range 16 {
		wants(t, "a peer that is silent among many", d.rejection(t), ErrBusy)
	}
	if s := d.Stats(); s.HalfOpen > 4 {
		t.Errorf("%d peers are half-open, want at most 4", s.HalfOpen)
	}
	d.meet(t, plainConfig()) // it replaces one of them
	wants(t, "a peer that is silent among many", d.rejection(t), ErrBusy)
	if s := d.Stats(); s.HalfOpen != 3 || s.Admitted != 1 {
		t.Errorf("Stats: got %+v, want 3 half-open and 1 admitted", s)
	}
}

// A peer that is silent, or sends a byte now and then, times out.
func TestSlowHandshake(t *testing.T) {
	t.Parallel()
	cfg := plainConfig()
	cfg.HandshakeTimeout = time.Second
	d := newDoor(t, cfg)
	d.connect(t)
	slow := d.connect(t)
	go func() {
		for _, b := range appendFrame(nil, framePreface, 0, preface{Version, AuthNone}.encode()) {
			if _, err := slow.Write([]byte{b}); err != nil {
				return
			}
			time.Sleep(100 * time.Millisecond) // too slow for HandshakeTimeout
		}
	}()
	for range 2 {
		wants(t, "a peer that is slow", d.rejection(t), ErrTimeout)
	}
	if s := d.Stats(); s.HalfOpen != 0 || s.Admitted != 0 {
		t.Errorf("Stats: got %+v, want no half-open and no admitted peers", s)
	}
}

// A host that uses all half-open slots replaces its own connections, not the ones of another host
// that needs a few round trips.
func TestCrowdMakesWay(t *testing.T) {
	pending := func(addrs ...address) (half []*pendingHandshake) {
		for _, a := range addrs {
			half = append(half, &pendingHandshake{from: origin(a)})
		}
		return half
	}
	for name, tt := range map[string]struct {
		half []*pendingHandshake
		want int
	}{
		"a crowd":         {pending("10.0.0.1:1", "10.0.0.2:1", "10.0.0.2:2", "10.0.0.2:3"), 1},
		"all alike":       {pending("10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"), 0},
		"mapped":          {pending("10.0.0.1:1", "[::ffff:10.0.0.2]:1", "10.0.0.2:2"), 1},
		"one IPv6 host":   {pending("[2001:db8::1]:1", "[2001:db8:0:1::1]:1", "[2001:db8:0:1::2]:1"), 1},
		"link-local":      {pending("10.0.0.1:1", "[fe80::1%eth0]:1", "[fe80::2%eth1]:1"), 1},
		"unknown host":    {pending("10.0.0.1:1", "pipe", "pipe"), 1},
		"the only one is": {pending("10.0.0.1:1"), 0},
	} {
		if got := oldestOfBusiest(tt.half); got != tt.want {
			t.Errorf("%s: number %d makes way, want %d", name, got, tt.want)
		}
	}
}

// Closing a listener does not wait for slow peers.
func TestCloseWithHalfOpen(t *testing.T) {
	for name, cfg := range map[string]Config{"plain": plainConfig(), "token": tokenConfig()} {
		cfg.HandshakeTimeout = time.Hour
		d := newDoor(t, cfg)
		d.connect(t)
		c := d.dial(t, cfg) // waits for Accept
		for d.Stats().HalfOpen == 0 {
			time.Sleep(time.Millisecond)
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: Close: got %v, want no error", name, err)
		}
		<-c.Done()
		wants(t, name+": a peer that was not accepted", c.Err(), ErrPeerClosed)
		_, err := d.Accept(t.Context())
		wants(t, name+": Accept", err, ErrClosed)
	}
}

// A dialer that may not use plain text with an address sends no data to it.
func TestPlainTextSaysNothing(t *testing.T) {
	x, y := net.Pipe()
	heard := make(chan int, 1)
	go func() {
		b, _ := io.ReadAll(y)
		heard <- len(b)
	}()
	cfg := plainConfig().withDefaults()
	s := &unauthConn{raw: far{x}, cfg: &cfg, cred: &credentials{auth: AuthNone}, dialed: true}
	_, err := s.admit(t.Context())
	wants(t, "admit", err, ErrInsecure)
	if n := <-heard; n != 0 {
		t.Errorf("the dialer sent %d bytes, want 0", n)
	}
	_ = y.Close()
}

// far is a connection with a non-loopback remote address.
type far struct{ net.Conn }

func (far) RemoteAddr() net.Addr { return address("10.0.0.1:5") }

// A peer that announces another authentication method is rejected before any proof.
func TestOtherProof(t *testing.T) {
	t.Parallel()
	d := newDoor(t, tokenConfig())
	for _, auth := range []Auth{AuthCertificate, AuthNone} {
		c := secure(t, d.connect(t))
		wireSend(t, c, framePreface, preface{Version, auth}.encode())
		if h, _ := wireTake(t, c); h.typ != frameRefusal {
			t.Errorf("proof by %v is answered with type %d, want a refusal", auth, h.typ)
		}
		wants(t, "the listener", d.rejection(t), ErrAuth)
	}
}
