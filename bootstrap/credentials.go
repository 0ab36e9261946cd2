package bootstrap

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"os"
	"time"
)

// Auth says how the two sides of a Conn have proved themselves.
type Auth uint8

// Ways to prove oneself.
const (
	AuthCertificate Auth = iota + 1 // by certificates of a common authority
	AuthToken                       // by a shared token
	AuthNone                        // not at all: plain text
)

// String names it.
func (a Auth) String() string {
	switch a {
	case AuthCertificate:
		return "certificates"
	case AuthToken:
		return "a token"
	case AuthNone:
		return "nothing (plain text)"
	}
	return fmt.Sprintf("Auth(%d)", uint8(a))
}

// Bounds of a token. 16 bytes are the least that nobody guesses, if they are random.
const (
	minToken = 16
	maxToken = 4096
	// stretch is how often a token is hashed, some tens of milliseconds: it makes guessing
	// dear if a token is less random than it should be.
	stretch = 1 << 17
	alpn    = "ibverbx-bootstrap"
)

// credentials are what a side proves itself with.
type credentials struct {
	auth Auth
	tls  *tls.Config // nil with AuthNone
	key  []byte      // made from the token, nil without one
	any  bool        // plain text also beyond loopback
}

// load reads the credentials that a Config names.
func (c *Config) load(dial bool) (*credentials, error) {
	certificate := c.CertFile != "" || c.KeyFile != "" || c.CAFile != ""
	token := c.TokenFile != "" || len(c.Token) > 0
	switch {
	case c.InsecurePlaintextOnAnyNetwork && !c.InsecurePlaintextOnLoopback:
		return nil, badConfig("InsecurePlaintextOnAnyNetwork needs InsecurePlaintextOnLoopback too")
	case c.InsecurePlaintextOnLoopback && (certificate || token):
		return nil, badConfig("plain text with certificates or a token: give one of them")
	case certificate && token:
		return nil, badConfig("certificates and a token: give one of them")
	case c.InsecurePlaintextOnLoopback:
		return &credentials{auth: AuthNone, any: c.InsecurePlaintextOnAnyNetwork}, nil
	case certificate:
		return c.loadCertificates(dial)
	case token:
		return c.loadToken(dial)
	}
	return nil, badConfig("nothing to prove oneself with: give TokenFile, or CertFile, KeyFile and CAFile")
}

func (c *Config) loadCertificates(dial bool) (*credentials, error) {
	if c.CertFile == "" || c.KeyFile == "" || c.CAFile == "" {
		return nil, fmt.Errorf("%w: CertFile, KeyFile and CAFile go together", ErrConfig)
	}
	cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("%w: certificate %s with key %s: %w", ErrConfig, c.CertFile, c.KeyFile, err)
	}
	pem, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("%w: authority: %w", ErrConfig, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%w: authority %s has no certificate in PEM", ErrConfig, c.CAFile)
	}
	t := baseTLS(cert)
	if dial {
		t.RootCAs, t.ServerName = pool, c.ServerName
	} else {
		t.ClientCAs, t.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	return &credentials{auth: AuthCertificate, tls: t}, nil
}

// loadToken makes the key of a token. The certificates below are made for the occasion and
// prove nothing: the proofs do, which are bound to the TLS session.
func (c *Config) loadToken(dial bool) (*credentials, error) {
	if c.TokenFile != "" && len(c.Token) > 0 {
		return nil, fmt.Errorf("%w: Token and TokenFile: give one of them", ErrConfig)
	}
	token, where := c.Token, "Token"
	if c.TokenFile != "" {
		where = "token " + c.TokenFile
		b, err := readBounded(c.TokenFile, maxToken+1)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrConfig, err)
		}
		token = b
	}
	token = bytes.TrimSpace(token)
	if len(token) < minToken || len(token) > maxToken {
		return nil, fmt.Errorf("%w: %s has %d bytes: want %d to %d, such as 32 random ones in base64", ErrConfig, where, len(token), minToken, maxToken)
	}
	key, err := pbkdf2.Key(sha256.New, string(token), []byte("ibverbx bootstrap token 1"), stretch, sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrConfig, where, err)
	}
	cert, err := ephemeral()
	if err != nil {
		return nil, err
	}
	t := baseTLS(cert)
	if dial {
		t.InsecureSkipVerify = true // the listener's proof takes its place
	}
	return &credentials{auth: AuthToken, tls: t, key: key}, nil
}

// readBounded reads a file of at most limit bytes, and that much of a longer one.
func readBounded(name string, limit int) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err // half of a token would be another one
	}
	return b, nil
}

// baseTLS is what every session has: TLS 1.3 alone, and no resumption, so that each is
// proved anew.
func baseTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13, NextProtos: []string{alpn},
		SessionTicketsDisabled: true, Certificates: []tls.Certificate{cert},
	}
}

// ephemeral makes a certificate that nobody vouches for.
func ephemeral() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(10 * 365 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// allows returns an error if plain text may not be spoken with an address.
func (cr *credentials) allows(addr net.Addr) error {
	if cr.auth != AuthNone || cr.any {
		return nil
	}
	ap, err := netip.ParseAddrPort(addr.String())
	if err == nil && ap.Addr().Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w: %s is not a loopback address: use certificates or a token", ErrInsecure, addr)
}
