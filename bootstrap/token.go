package bootstrap

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
)

// proofLen is the length of a proof.
const proofLen = sha256.Size

// Labels of the two directions: a proof that came in is of no use on the way out.
const (
	dialerLabel   = "ibverbx bootstrap 1: proof of the dialer"
	listenerLabel = "ibverbx bootstrap 1: proof of the listener"
	exporterLabel = "EXPORTER-ibverbx-bootstrap-1"
)

// proofs returns what the two sides must show in a TLS session: a MAC, under the key made
// from the token, of a value that only the two ends of this very session can compute (RFC
// 8446 section 7.5). Someone in the middle has two sessions, with two values; and a proof
// of another time is of another session.
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

// proves compares a proof with what it must be, in a time that does not depend on it.
func proves(got []byte, want [proofLen]byte) bool { return hmac.Equal(got, want[:]) }
