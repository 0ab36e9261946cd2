package bootstrap

import (
	"bytes"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Limits of a token in bytes. 16 random bytes cannot be guessed.
const (
	minToken = 16
	maxToken = 4096
	// maxTokens is the maximum number of tokens in a directory. Each costs some tens of milliseconds.
	maxTokens = 256
	// hashIterations is the number of hash iterations, which take some tens of milliseconds. It makes
	// guessing expensive if a token is not random enough.
	hashIterations = 1 << 17
	keyLen         = sha256.Size
)

// proofLen is the length of a proof.
const proofLen = sha256.Size

// Labels of the two directions. A proof cannot be reflected to its sender.
const (
	dialerLabel   = "ibverbx bootstrap 1: proof of the dialer"
	listenerLabel = "ibverbx bootstrap 1: proof of the listener"
	exporterLabel = "EXPORTER-ibverbx-bootstrap-1"
)

// token is an accepted token.
type token struct {
	name   string // its file in Config.TokenDir; otherwise ""
	digest [sha256.Size]byte
	key    []byte // derived from the token, or Config.Key
}

// readTokens reads a Config's tokens. It reuses the keys of unchanged ones from old.
func (c *Config) readTokens(dial bool, old *credentials) ([]token, error) {
	switch {
	case len(c.Key) > 0:
		return c.readKey()
	case c.TokenFile != "" && len(c.Token) > 0:
		return nil, errors.New("both Token and TokenFile are set: choose one")
	case c.TokenDir != "" && (c.TokenFile != "" || len(c.Token) > 0):
		return nil, errors.New("both TokenDir and one token are set: choose one")
	case c.TokenDir != "" && dial:
		return nil, errors.New("TokenDir is for listeners: set TokenFile to one of its files")
	case c.TokenDir == "" && c.TokenFile == "":
		return appendToken(nil, "", "Token", c.Token, old)
	case c.TokenDir == "":
		return appendFile(nil, "", c.TokenFile, old)
	}
	names, err := tokenNames(c.TokenDir)
	if err != nil {
		return nil, err
	}
	var tokens []token
	for _, name := range names {
		more, err := appendFile(tokens, name, filepath.Join(c.TokenDir, name), old)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		tokens = more
	}
	return tokens, nil
}

// readKey returns a Config's key as its only token.
func (c *Config) readKey() ([]token, error) {
	switch {
	case c.TokenFile != "" || c.TokenDir != "" || len(c.Token) > 0:
		return nil, errors.New("both Key and a token are set: choose one")
	case len(c.Key) != keyLen:
		return nil, fmt.Errorf("the Key has %d bytes: want %d random ones", len(c.Key), keyLen)
	}
	return []token{{digest: sha256.Sum256(c.Key), key: bytes.Clone(c.Key)}}, nil
}

// TokenKey returns the 32-byte key derived from the token in a file. A file readable by other users is rejected.
func TokenKey(file string) (Secret, error) {
	tokens, err := appendFile(nil, "", file, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return tokens[0].key, nil
}

// appendFile adds the token in a file.
func appendFile(tokens []token, name, path string, old *credentials) ([]token, error) {
	secret, err := readSecret(path, maxToken+1)
	if err != nil {
		return nil, err
	}
	return appendToken(tokens, name, "token "+path, secret, old)
}

// tokenNames returns the names of the tokens in a directory, sorted.
func tokenNames(dir string) (names []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	if len(names) > maxTokens {
		return nil, fmt.Errorf("%s has %d tokens: want at most %d", dir, len(names), maxTokens)
	}
	return names, nil
}

// appendToken adds a token with the given secret. Two names must not share a secret: they would be
// indistinguishable.
func appendToken(tokens []token, name, where string, secret []byte, old *credentials) ([]token, error) {
	secret = bytes.TrimSpace(secret)
	if len(secret) < minToken || len(secret) > maxToken {
		return nil, fmt.Errorf("%s has %d bytes: want %d to %d, such as 32 random ones in base64", where, len(secret), minToken, maxToken)
	}
	one := token{name: name, digest: sha256.Sum256(secret)}
	for _, other := range tokens {
		if other.digest == one.digest {
			return nil, fmt.Errorf("%s is the same token as %q", where, other.name)
		}
	}
	if old != nil {
		for _, other := range old.tokens {
			if other.digest == one.digest {
				one.key = other.key
			}
		}
	}
	if one.key == nil {
		key, err := pbkdf2.Key(sha256.New, string(secret), []byte("ibverbx bootstrap token 1"), hashIterations, keyLen)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		one.key = key
	}
	return append(tokens, one), nil
}

// contains reports whether t is among the tokens.
func (cr *credentials) contains(t *token) bool {
	for _, other := range cr.tokens {
		if other.name == t.name && other.digest == t.digest {
			return true
		}
	}
	return false
}

// match returns the token that a dialer's proof belongs to, and the listener's proof for it. The
// token is nil if none matches. It always tries all tokens, so that its duration does not reveal
// the match.
func (cr *credentials) match(proof []byte, state *tls.ConnectionState) (found *token, answer [proofLen]byte, err error) {
	for i := range cr.tokens {
		dialer, listener, err := proofs(cr.tokens[i].key, state)
		if err != nil {
			return nil, answer, err
		}
		if proofMatches(proof, dialer) {
			found, answer = &cr.tokens[i], listener
		}
	}
	return found, answer, nil
}

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

// proofMatches compares a proof with the expected one in constant time.
func proofMatches(got []byte, want [proofLen]byte) bool { return hmac.Equal(got, want[:]) }
