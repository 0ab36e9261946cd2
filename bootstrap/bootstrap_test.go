package bootstrap

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// With every authentication method, both sides get each other's messages and datagrams.
func TestMeet(t *testing.T) {
	a := newAuthority(t)
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("\n  "+string(testToken)+" \n"), 0o600); err != nil {
		t.Fatalf("write a token: got %v, want no error", err)
	}
	key, err := TokenKey(file)
	if err != nil {
		t.Fatalf("TokenKey: got %v, want no error", err)
	}
	random := Config{Key: bytes.Repeat([]byte("k"), keyLen)}
	for _, tt := range []struct {
		name           string
		listen, dialer Config
		auth           Auth
	}{
		{"certificates", a.config("server", nil), a.config("client", nil), AuthCertificate},
		{"token", Config{TokenFile: file}, tokenConfig(), AuthToken},
		{"key", random, random, AuthToken},
		{"key of a token", tokenConfig(), Config{Key: key}, AuthToken},
		{"plain", plainConfig(), plainConfig(), AuthNone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.dialer.Name, tt.dialer.Incarnation = "me", 42
			x, y := newDoor(t, tt.listen).meet(t, tt.dialer)
			if p := y.Peer(); p.Auth != tt.auth || p.Name != "me" || p.Incarnation != 42 {
				t.Errorf("the peer is %v, %q, %d, want %v, %q, %d", p.Auth, p.Name, p.Incarnation, tt.auth, "me", 42)
			}
			if c := y.Peer().Certificate; (c != nil) != (tt.auth == AuthCertificate) || (c != nil && c.Subject.CommonName != "client") {
				t.Errorf("the peer's certificate is %v, want that of client with certificates only", c)
			}
			for i, way := range [][2]*Conn{{x, y}, {y, x}} {
				carry(t, way[0], way[1], fmt.Sprint("direction ", i))
			}
		})
	}
}

// carry sends a message and a datagram from one side to the other.
func carry(t *testing.T, from, to *Conn, text string) {
	t.Helper()
	in, out := to.Control(), from.Control()
	if err := from.Send(soon(t), KindCard, []byte(text)); err != nil {
		t.Fatalf("Send: got %v, want no error", err)
	}
	m, err := to.Recv(soon(t))
	if err != nil || m.Kind != KindCard || string(m.Body) != text {
		t.Fatalf("Recv: got kind %d, %q, %v, want kind %d, %q", m.Kind, m.Body, err, KindCard, text)
	}
	if err := out.Send([]byte(text)); err != nil {
		t.Fatalf("Control.Send: got %v, want no error", err)
	}
	if got := datagram(t, in); got != text {
		t.Fatalf("Control.Recv: got %q, want %q", got, text)
	}
}

// datagram waits for a datagram.
func datagram(t *testing.T, k *Control) string {
	t.Helper()
	var b [MaxDatagram]byte
	for limit := time.Now().Add(2 * time.Minute); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		if n, err := k.Recv(b[:]); err != nil || n > 0 {
			return string(b[:n])
		}
	}
	t.Fatalf("no datagram came in 2 minutes, want one")
	return ""
}

// A peer that cannot authenticate is rejected and gets an error. The next peer is still admitted.
func TestStrangersStayOutside(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	for _, tt := range []struct {
		name           string
		listen, dialer Config
	}{
		{"another token", tokenConfig(), Config{Token: []byte("another token of many bytes")}},
		{"another key", Config{Key: make([]byte, keyLen)}, Config{Key: bytes.Repeat([]byte("k"), keyLen)}},
		{"another authority at the dialer", a.config("server", nil), func() Config {
			c := other.config("client", nil)
			c.CAFile = a.config("x", nil).CAFile // it trusts the listener's authority
			return c
		}()},
		{"another authority at the listener", a.config("server2", nil), other.config("client2", nil)},
		{"another host", a.config("server3", func(c *x509.Certificate) { c.IPAddresses = nil; c.DNSNames = []string{"elsewhere"} }), a.config("client3", nil)},
		{"an old certificate", a.config("server4", nil), a.config("client4", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })},
		{"a certificate for servers", a.config("server5", nil), a.config("client5", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })},
		{"a token at certificates", a.config("server6", nil), tokenConfig()},
		{"certificates at a token", tokenConfig(), a.config("client7", nil)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newDoor(t, tt.listen)
			c, err := Dial(soon(t), d.Addr().String(), tt.dialer)
			if err == nil {
				_ = c.Close()
			}
			wants(t, "Dial", err, ErrAuth)
			if err := d.rejection(t); err == nil {
				t.Errorf("the listener rejected with no error, want one")
			}
			good := tt.listen
			if good.CertFile != "" {
				good = a.config("good", nil)
				good.ServerName = map[bool]string{true: "elsewhere"}[tt.name == "another host"]
			}
			d.meet(t, good)
			if s := d.Stats(); s.Admitted != 1 || s.Rejected != 1 || s.HalfOpen != 0 {
				t.Errorf("Stats: got %+v, want 1 admitted, 1 rejected, 0 half-open", s)
			}
		})
	}
}

// If only one side uses TLS, both sides get an error that names the reason.
func TestPlainMeetsTLS(t *testing.T) {
	d := newDoor(t, plainConfig())
	_, err := Dial(soon(t), d.Addr().String(), tokenConfig())
	if err == nil {
		t.Errorf("Dial with TLS at a plain listener: got no error, want one")
	}
	if err := d.rejection(t); !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "speaks TLS") {
		t.Errorf("the plain listener returns %v, want that the peer speaks TLS", err)
	}
	d = newDoor(t, tokenConfig())
	if _, err = Dial(soon(t), d.Addr().String(), plainConfig()); err == nil {
		t.Errorf("Dial without TLS: got no error, want one")
	}
	wants(t, "the TLS listener", d.rejection(t), ErrProtocol)
}

// TestDialHTTPS: an HTTPS server speaks another protocol. It does not reject the credentials.
func TestDialHTTPS(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		s := httptest.NewUnstartedServer(nil)
		s.EnableHTTP2 = http2
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.StartTLS()
		defer s.Close()
		_, err := Dial(soon(t), s.Listener.Addr().String(), tokenConfig())
		wants(t, fmt.Sprintf("Dial an HTTPS server, HTTP/2 %t", http2), err, ErrProtocol)
		if errors.Is(err, ErrAuth) {
			t.Errorf("Dial an HTTPS server: got %v, want no ErrAuth", err)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	dir := t.TempDir()
	short := filepath.Join(dir, "short")
	long := filepath.Join(dir, "long")
	for file, text := range map[string]string{short: "   fifteen bytes..   ", long: strings.Repeat("x", maxToken+1)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatalf("write %s: got %v, want no error", file, err)
		}
	}
	good := newAuthority(t).config("x", nil)
	noCA := good
	noCA.CAFile = ""
	wrongKey := good
	wrongKey.KeyFile = good.CertFile
	noPEM := good
	noPEM.CAFile = short
	for name, cfg := range map[string]Config{
		"nothing":           {},
		"short token":       {TokenFile: short},
		"long token":        {TokenFile: long},
		"no such token":     {TokenFile: filepath.Join(dir, "none")},
		"empty token":       {Token: []byte("                     ")},
		"two tokens":        {TokenFile: short, Token: testToken},
		"token and cert":    {Token: testToken, CertFile: "x"},
		"key and token":     {Key: make([]byte, keyLen), Token: testToken},
		"key and cert":      {Key: make([]byte, keyLen), CertFile: "x"},
		"short key":         {Key: make([]byte, keyLen-1)},
		"plain and token":   {Token: testToken, InsecurePlaintextOnLoopback: true},
		"half of plain":     {InsecurePlaintextOnAnyNetwork: true},
		"no authority":      noCA,
		"wrong key":         wrongKey,
		"authority not PEM": noPEM,
		"DeadAfter":         {Token: testToken, DeadAfter: time.Millisecond},
		"HandshakeTimeout":  {Token: testToken, HandshakeTimeout: -1},
		"MaxHandshakes":     {Token: testToken, MaxHandshakes: -1},
		"Backlog":           {Token: testToken, Backlog: -1},
		"Name":              {Token: testToken, Name: strings.Repeat("x", 65)},
		"Incarnation":       {Token: testToken, Incarnation: 1 << 53},
	} {
		if l, err := Listen(t.Context(), "127.0.0.1:0", cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("Listen with %s: got %v, %v, want %v", name, l, err, ErrConfig)
		}
		if c, err := Dial(t.Context(), "127.0.0.1:1", cfg); !errors.Is(err, ErrConfig) {
			t.Errorf("Dial with %s: got %v, %v, want %v", name, c, err, ErrConfig)
		}
	}
	for _, file := range []string{short, filepath.Join(dir, "none"), dir} {
		if key, err := TokenKey(file); !errors.Is(err, ErrConfig) || key != nil {
			t.Errorf("TokenKey of %s: got %v, %v, want %v", filepath.Base(file), key, err, ErrConfig)
		}
	}
	// An unreadable file is an error, not an empty or shorter token.
	if _, err := Listen(t.Context(), "127.0.0.1:0", Config{TokenFile: dir}); !errors.Is(err, ErrConfig) || strings.Contains(err.Error(), "has 0 bytes") {
		t.Errorf("Listen with a directory as token: got %v, want %v because it cannot be read", err, ErrConfig)
	}
	if _, err := Dial(t.Context(), "no port", tokenConfig()); !errors.Is(err, ErrConfig) {
		t.Errorf("Dial without a port: got %v, want %v", err, ErrConfig)
	}
}

// address is a net.Addr.
type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

func TestPlainTextStaysAtHome(t *testing.T) {
	for _, addr := range []string{"0.0.0.0:0", ":0"} {
		if _, err := Listen(t.Context(), addr, plainConfig()); !errors.Is(err, ErrInsecure) {
			t.Errorf("Listen on %s in plain text: got %v, want %v", addr, err, ErrInsecure)
		}
	}
	forced := plainConfig()
	forced.InsecurePlaintextOnAnyNetwork = true
	l, err := Listen(t.Context(), "0.0.0.0:0", forced)
	if err != nil {
		t.Fatalf("Listen by force: got %v, want no error", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	for addr, ok := range map[address]bool{
		"127.0.0.1:5": true, "127.9.9.9:5": true, "[::1]:5": true, "[::ffff:127.0.0.1]:5": true,
		"10.0.0.1:5": false, "[::]:5": false, "[fe80::1%eth0]:5": false, "localhost:5": false, "": false,
	} {
		err := (&credentials{auth: AuthNone}).allows(addr)
		if (err == nil) != ok || (err != nil && !errors.Is(err, ErrInsecure)) {
			t.Errorf("plain text with %q: got %v, want allowed %v", addr, err, ok)
		}
		if err := (&credentials{auth: AuthNone, anyNetwork: true}).allows(addr); err != nil {
			t.Errorf("plain text with %q by force: got %v, want no error", addr, err)
		}
	}
}

// A message or datagram that is too long is rejected before any of it is sent.
func TestTooLong(t *testing.T) {
	x, y := newDoor(t, plainConfig()).meet(t, plainConfig())
	wants(t, "Send", x.Send(t.Context(), KindCard, make([]byte, MaxMessage+1)), ErrTooLong)
	wants(t, "Control.Send", x.Control().Send(make([]byte, MaxDatagram+1)), ErrTooLong)
	wants(t, "Control.Send of nothing", x.Control().Send(nil), ErrTooLong)
	for _, kind := range []Kind{0, kindEnd, 255} {
		wants(t, "Send", x.Send(t.Context(), kind, nil), ErrConfig)
	}
	big := bytes.Repeat([]byte("x"), MaxMessage)
	if err := x.Send(soon(t), KindApplication, big); err != nil {
		t.Fatalf("Send of %d bytes: got %v, want no error", len(big), err)
	}
	if m, err := y.Recv(soon(t)); err != nil || !bytes.Equal(m.Body, big) {
		t.Errorf("Recv: got %d bytes and %v, want %d", len(m.Body), err, len(big))
	}
}

// Every blocking call returns when its context is done.
func TestContexts(t *testing.T) {
	d := newDoor(t, plainConfig())
	x, y := d.meet(t, plainConfig())
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.Accept(ended)
	wants(t, "Accept", err, context.Canceled)
	_, err = x.Recv(ended)
	wants(t, "Recv", err, context.Canceled)
	_, err = Dial(ended, d.Addr().String(), plainConfig())
	wants(t, "Dial", err, context.Canceled)
	for x.Send(soon(t), KindApplication, make([]byte, MaxMessage)) == nil {
		if x.Stats().MessagesOut == window/MaxMessage-1 {
			break
		}
	}
	brief, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	wants(t, "Send to a peer without room", x.Send(brief, KindApplication, make([]byte, MaxMessage)), context.DeadlineExceeded)
	if x.Err() != nil || y.Err() != nil {
		t.Errorf("the Conns ended in %v and %v, want none", x.Err(), y.Err())
	}
	// A server that accepts connections but never sends.
	silent := newSilent(t)
	brief, cancel = context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Dial(brief, silent, plainConfig())
	wants(t, "Dial of a silent listener", err, context.DeadlineExceeded)
	cfg := plainConfig()
	cfg.HandshakeTimeout = 50 * time.Millisecond
	_, err = Dial(t.Context(), silent, cfg)
	wants(t, "Dial of a silent listener", err, ErrTimeout)
}

// TestErrorsStayOnOneLine: control characters in the peer's address or certificate are escaped in
// errors.
func TestErrorsStayOnOneLine(t *testing.T) {
	const evil = "host\nINFO all is well\x1b[2J"
	_, dial := Dial(soon(t), evil+":1", tokenConfig())
	_, port := Dial(soon(t), evil, tokenConfig())
	_, listen := Listen(soon(t), evil+":0", tokenConfig())
	_, config := Listen(soon(t), evil+":0", Config{})
	a := newAuthority(t)
	d := newDoor(t, a.config("server", func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{evil} }))
	client := a.config("client", nil)
	client.ServerName = "host"
	_, tls := Dial(soon(t), d.Addr().String(), client)
	if !errors.Is(tls, ErrAuth) {
		t.Errorf("Dial of a host with another name: got %v, want %v", tls, ErrAuth)
	}
	for what, err := range map[string]error{"Dial": dial, "Dial without a port": port, "Listen": listen, "Listen without a Config": config, "TLS": tls} {
		if err == nil || strings.ContainsAny(err.Error(), "\n\x1b") || !strings.Contains(err.Error(), `host\nINFO all is well\x1b[2J`) {
			t.Errorf("%s: got %q, want one line with the text escaped", what, err)
		}
	}
}
