package bootstrap

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
)

// Secret holds bytes that package fmt does not print.
type Secret []byte

// Format implements fmt.Formatter. It prints "(secret)".
func (Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "(secret)") }

// secretLabel is the exporter label of Conn.Secret.
const secretLabel = "EXPORTER-ibverbx-seal-1"

// sessionSecret returns a secret known only to the two ends of a TLS session. It depends on the token, unless that is nil.
func sessionSecret(state *tls.ConnectionState, t *token) ([]byte, error) {
	b, err := state.ExportKeyingMaterial(secretLabel, nil, sha256.Size)
	if err == nil && t != nil {
		b, err = hkdf.Extract(sha256.New, b, t.key)
	}
	if err != nil {
		return nil, fmt.Errorf("export a secret of the TLS session: %w", err)
	}
	return b, nil
}

// Secret returns 32 bytes known only to the two ends of this Conn, for sealing packets (softnic.NewSeal). They differ for every Conn. It is
// nil without TLS.
func (c *Conn) Secret() []byte {
	if !c.isOpen() {
		return nil
	}
	return c.secret()
}

// Format implements fmt.Formatter. It prints the peer's address, but neither the secret nor messages.
func (c *Conn) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "Conn to %v", c.peer.Addr) }
