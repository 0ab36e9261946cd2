package bootstrap

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
)

// proofLen is the length of a proof.
const proofLen = sha256.Size

// Labels of the two directions. A proof cannot be reflected to its sender.
const (
	dialerLabel   = "ibverbx bootstrap 1: proof of the dialer"
	listenerLabel = "ibverbx bootstrap 1: proof of the listener"
	exporterLabel = "EXPORTER-ibverbx-bootstrap-1"
)

// proofs returns the proofs that the two sides must show in a TLS session. A proof is a MAC,
// under the key derived from the token, of a value that only the two ends of this session can
// compute (RFC 8446 section 7.5). A man in the middle has two sessions with different values,
// and a replayed proof belongs to another session.
func proofs(key []byte, state *tls.ConnectionState) (dialer, listener [proofLen]byte, err error) {
	bound, err := state.ExportKeyingMaterial(exporterLabel, nil, sha256.Size)
	if err != nil {
		return dialer, listener, fmt.Errorf("bind the proofs to the TLS session: %w", err)
	}
	prove := func(label string) (p [proofLen]byte) {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(label))
		mac.Write([]byte{0})
		mac.Write(bound)
		mac.Sum(p[:0])
		return p
	}
	return prove(dialerLabel), prove(listenerLabel), nil
}

// proves compares a proof with the expected one in constant time.
func proves(got []byte, want [proofLen]byte) bool { return hmac.Equal(got, want[:]) }
