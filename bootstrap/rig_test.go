package bootstrap

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// testToken is the token of both sides.
var testToken = []byte("sixteen bytes at the least, and these are more")

func tokenConfig() Config { return Config{Token: testToken} }

func plainConfig() Config { return Config{InsecurePlaintextOnLoopback: true} }

// authority issues certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.key = newKey(t)
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatalf("make an authority: got %v, want no error", err)
	}
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatalf("make a key: got %v, want no error", err)
	}
	return key
}

func (a *authority) write(name, kind string, der []byte) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatalf("write %s: got %v, want no error", path, err)
	}
	return path
}

// config issues a certificate, which change may modify first.
func (a *authority) config(name string, change func(*x509.Certificate)) Config {
	a.t.Helper()
	key := newKey(a.t)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if change != nil {
		change(cert)
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatalf("issue a certificate: got %v, want no error", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatalf("encode a key: got %v, want no error", err)
	}
	return Config{
		CAFile: filepath.Join(a.dir, "ca.pem"), CertFile: a.write(name+".pem", "CERTIFICATE", der), KeyFile: a.write(name+".key", "PRIVATE KEY", pkcs8),
	}
}

// door is a listener that records rejections.
type door struct {
	*Listener
	mu       sync.Mutex
	rejected []error
	news     chan struct{}
}

func newDoor(t *testing.T, cfg Config) *door {
	t.Helper()
	d := &door{news: make(chan struct{}, 1000)}
	cfg.Rejected = func(_ net.Addr, err error) {
		d.mu.Lock()
		d.rejected = append(d.rejected, err)
		d.mu.Unlock()
		d.news <- struct{}{}
	}
	l, err := Listen(t.Context(), "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	d.Listener = l
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Listener.Close: got %v, want no error", err)
		}
	})
	return d
}

// rejection waits for the next rejected peer.
func (d *door) rejection(t *testing.T) error {
	t.Helper()
	select {
	case <-d.news:
	case <-time.After(2 * time.Minute):
		t.Fatalf("no peer was rejected in 2 minutes, want one")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	err := d.rejected[0]
	d.rejected = d.rejected[1:]
	return err
}

// meet dials the listener and accepts.
func (d *door) meet(t *testing.T, cfg Config) (dialed, accepted *Conn) {
	t.Helper()
	dialed = d.dial(t, cfg)
	accepted, err := d.Accept(soon(t))
	if err != nil {
		t.Fatalf("Accept: got %v, want no error", err)
	}
	closeAfter(t, accepted)
	return dialed, accepted
}

func (d *door) dial(t *testing.T, cfg Config) *Conn {
	t.Helper()
	c, err := Dial(soon(t), d.Addr().String(), cfg)
	if err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	closeAfter(t, c)
	return c
}

func closeAfter(t *testing.T, c *Conn) { t.Cleanup(func() { _ = c.Close() }) }

// soon returns a context with a generous timeout.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// connect opens a bare TCP connection to the listener.
func (d *door) connect(t *testing.T) net.Conn {
	t.Helper()
	raw, err := net.Dial("tcp", d.Addr().String())
	if err != nil {
		t.Fatalf("connect: got %v, want no error", err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	if err := raw.SetDeadline(time.Now().Add(2 * time.Minute)); err != nil {
		t.Fatalf("SetDeadline: got %v, want no error", err)
	}
	return raw
}

// secure starts TLS on a connection, as a dialer with a token does.
func secure(t *testing.T, raw net.Conn) *tls.Conn {
	t.Helper()
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{alpn}, MinVersion: tls.VersionTLS13})
	if err := c.Handshake(); err != nil {
		t.Fatalf("TLS: got %v, want no error", err)
	}
	return c
}

// wireSend writes a frame.
func wireSend(t *testing.T, c net.Conn, typ frameType, payload []byte) {
	t.Helper()
	if _, err := c.Write(appendFrame(nil, typ, 0, payload)); err != nil {
		t.Fatalf("write a frame of type %d: got %v, want no error", typ, err)
	}
}

// wireTake reads a frame.
func wireTake(t *testing.T, c net.Conn) (header, []byte) {
	t.Helper()
	h, err := readHeader(c)
	if err != nil {
		t.Fatalf("read a header: got %v, want no error", err)
	}
	b, err := readPayload(c, h)
	if err != nil {
		t.Fatalf("read a frame of type %d: got %v, want no error", h.typ, err)
	}
	return h, b
}

// wireMeet runs a dialer's handshake by hand, in plain text.
func wireMeet(t *testing.T, c net.Conn) {
	t.Helper()
	wireSend(t, c, framePreface, preface{Version, AuthNone}.encode())
	wireTake(t, c)
	mine := hello{incarnation: 7, deadAfter: time.Minute, window: window}
	wireSend(t, c, frameHello, mine.encode())
	wireTake(t, c)
}

// wants checks the error.
func wants(t *testing.T, what string, err error, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}
