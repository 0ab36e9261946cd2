package bootstrap

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"time"
)

// Auth is an authentication method.
type Auth uint8

// Authentication methods.
const (
	AuthCertificate Auth = iota + 1 // certificates from a common authority, over TLS
	AuthToken                       // a shared token, over TLS
	AuthNone                        // none: plain text
)

// String returns a phrase for error messages.
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

const alpn = "ibverbx-bootstrap"

// credentials are loaded from a Config.
type credentials struct {
	auth Auth
	tls  *tls.Config // nil with AuthNone
	pool *x509.CertPool
	// tokens are the accepted tokens: one for a dialer. They are empty without tokens, and while their file is missing.
	tokens     []token
	anyNetwork bool // plain text is allowed beyond loopback
}

// withoutPeers returns credentials that admit no peers. A dialer with tokens cannot dial with them.
func (cr *credentials) withoutPeers() *credentials {
	c := &credentials{auth: cr.auth, pool: x509.NewCertPool()}
	if cr.tls != nil {
		c.tls = cr.tls.Clone()
		c.tls.RootCAs, c.tls.ClientCAs = c.pool, c.pool
	}
	return c
}

// load reads the credentials named by a Config. It reuses the keys of unchanged tokens in old,
// which may be nil.
func (c *Config) load(dial bool, old *credentials) (*credentials, error) {
	certificate := c.CertFile != "" || c.KeyFile != "" || c.CAFile != ""
	token := c.TokenFile != "" || len(c.Token) > 0 || c.TokenDir != "" || len(c.Key) > 0
	switch {
	case c.InsecurePlaintextOnAnyNetwork && !c.InsecurePlaintextOnLoopback:
		return nil, badConfig("InsecurePlaintextOnAnyNetwork needs InsecurePlaintextOnLoopback too")
	case c.InsecurePlaintextOnLoopback && (certificate || token):
		return nil, badConfig("both plain text and certificates or a token are set: choose one")
	case certificate && token:
		return nil, badConfig("both certificates and a token are set: choose one")
	case c.InsecurePlaintextOnLoopback:
		return &credentials{auth: AuthNone, anyNetwork: c.InsecurePlaintextOnAnyNetwork}, nil
	case certificate:
		return c.loadCertificates(dial)
	case token:
		return c.loadTokens(dial, old)
	}
	return nil, badConfig("no credentials: set TokenFile, or CertFile, KeyFile and CAFile")
}

func (c *Config) loadCertificates(dial bool) (*credentials, error) {
	if c.CertFile == "" || c.KeyFile == "" || c.CAFile == "" {
		return nil, fmt.Errorf("%w: CertFile, KeyFile and CAFile must all be set", ErrConfig)
	}
	chain, err := os.ReadFile(c.CertFile)
	if err != nil {
		return nil, fmt.Errorf("%w: certificate: %w", ErrConfig, err)
	}
	key, err := readSecret(c.KeyFile, maxKeyFile)
	if err != nil {
		return nil, fmt.Errorf("%w: key: %w", ErrConfig, err)
	}
	cert, err := tls.X509KeyPair(chain, key)
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
	return &credentials{auth: AuthCertificate, tls: t, pool: pool}, nil
}

// loadTokens reads the tokens. The certificates are ephemeral and prove nothing. The proofs
// authenticate, and they are bound to the TLS session.
func (c *Config) loadTokens(dial bool, old *credentials) (*credentials, error) {
	tokens, err := c.readTokens(dial, old)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	cert, err := ephemeral()
	if err != nil {
		return nil, err
	}
	t := baseTLS(cert)
	if dial {
		t.InsecureSkipVerify = true // the listener's proof replaces verification
	}
	return &credentials{auth: AuthToken, tls: t, tokens: tokens}, nil
}

// baseTLS returns the settings of every session: TLS 1.3 only, without resumption, so that every
// session is authenticated.
func baseTLS(cert tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, MaxVersion: tls.VersionTLS13, NextProtos: []string{alpn},
		SessionTicketsDisabled: true, Certificates: []tls.Certificate{cert},
	}
}

// ephemeral returns a self-signed certificate.
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

// allows returns an error if plain text is not allowed with an address.
func (cr *credentials) allows(addr net.Addr) error {
	if cr.auth != AuthNone || cr.anyNetwork {
		return nil
	}
	ap, err := netip.ParseAddrPort(addr.String())
	if err == nil && ap.Addr().Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w: %s is not a loopback address: use certificates or a token", ErrInsecure, addr)
}
