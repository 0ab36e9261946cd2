package bootstrap

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// An accepted header has a valid length for its type.
func FuzzHeader(f *testing.F) {
	f.Add(appendFrame(nil, framePreface, 0, preface{Version, AuthToken}.encode()))
	f.Add(appendFrame(nil, frameMessage, KindCard, []byte("card")))
	f.Add([]byte{0x16, 3, 1, 0, 0xff, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := readHeader(bytes.NewReader(b))
		if err != nil {
			return
		}
		if h.length > MaxMessage || (h.typ < frameMessage && h.length > 512) || (h.typ == frameMessage) != (h.kind != 0) {
			t.Errorf("%x is decoded as %+v, want an error", b, h)
		}
		if again := appendFrame(nil, h.typ, h.kind, nil); !bytes.Equal(again[4:8], b[4:8]) {
			t.Errorf("%x is written back as %x", b[:8], again)
		}
	})
}

// Accepted prefaces, hellos and refusals survive a round trip.
func FuzzHandshakePayloads(f *testing.F) {
	f.Add(preface{Version, AuthCertificate}.encode())
	h := hello{incarnation: 5, deadAfter: time.Second, window: window, name: "name"}
	f.Add(h.encode())
	f.Add(append(h.encode(), "\x00a field of a later version"...))
	f.Add((&refusal{refusedAuth, "no"}).encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := decodePreface(b); err == nil && p.version == Version && !bytes.Equal(p.encode(), b) {
			t.Errorf("preface %x is written back as %x", b, p.encode())
		}
		if h, err := decodeHello(b); err == nil {
			// Later versions' fields follow a zero byte after the name, and are ignored.
			if rest, ok := bytes.CutPrefix(b, h.encode()); !ok || (len(rest) > 0 && rest[0] != 0) {
				t.Errorf("hello %x is written back as %x", b, h.encode())
			}
		}
		if r, err := decodeRefusal(b); err == nil {
			if !bytes.Equal(r.encode(), b) {
				t.Errorf("refusal %x is written back as %x", b, r.encode())
			}
			if r.Unwrap() == nil || r.Error() == "" {
				t.Errorf("refusal %x has no sentinel", b)
			}
		}
	})
}

// FuzzDoor sends arbitrary bytes to a listener without authentication. It must reject everything
// but a complete handshake.
func FuzzDoor(f *testing.F) {
	h := hello{incarnation: 5, deadAfter: time.Second, window: window, name: "name"}
	good := appendFrame(appendFrame(nil, framePreface, 0, preface{Version, AuthNone}.encode()), frameHello, 0, h.encode())
	f.Add(good)
	f.Add(good[:30])
	f.Add(appendFrame(good, frameMessage, KindCard, []byte("card")))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, y := net.Pipe()
		cfg := plainConfig().withDefaults()
		s := &unauthConn{raw: wires{x}, cfg: &cfg, cred: &credentials{auth: AuthNone}}
		written, read := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(written)
			_, _ = y.Write(b)
			_ = y.SetReadDeadline(time.Now().Add(time.Millisecond))
			<-read
			_ = y.Close()
		}()
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, y) // until the deadline: a listener whose data is not read waits
		}()
		c, err := s.admit(t.Context())
		if err == nil {
			if len(b) < headerLen+prefaceLen+headerLen+helloMin || !bytes.Equal(b[:8+prefaceLen], good[:8+prefaceLen]) {
				t.Errorf("%x was admitted, want it rejected", b)
			}
			_ = c.raw.Close()
		}
		<-written
	})
}

// FuzzConn lets an authenticated peer send arbitrary bytes. The Conn must fail with a documented
// error and never buffer more than the granted bytes.
func FuzzConn(f *testing.F) {
	f.Add(appendFrame(appendFrame(nil, frameMessage, KindCard, []byte("card")), frameBye, 0, []byte("so long")))
	f.Add(appendFrame(appendFrame(nil, frameDatagram, 0, []byte("down")), frameWindow, 0, []byte{0, 0, 1, 0}))
	f.Add(appendFrame(appendFrame(nil, frameKeepalive, 0, nil), frameHello, 0, make([]byte, helloMin)))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &Conn{
			read: bufio.NewReader(bytes.NewReader(b)), dead: time.Hour,
			recvCredit: window, sendCredit: window, done: make(chan struct{}), wake: make(chan struct{}, 1),
		}
		c.changed.L = &c.mu
		c.Control()
		var err error
		for err == nil {
			err = c.handleFrame()
		}
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrPeerClosed) {
			t.Errorf("%x ends in %v, want a reason", b, err)
		}
		kept := 0
		for _, m := range c.inbox {
			kept += cost(m.Body)
		}
		if kept > window || kept > len(b)*(messageCost/headerLen) || c.sendCredit > maxWindow {
			t.Errorf("%d bytes make the Conn keep %d, with credit %d", len(b), kept, c.sendCredit)
		}
	})
}
