package bootstrap

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// TestSecretsAreNotPrinted: no verb prints the secret of a Conn or the token of a Config.
func TestSecretsAreNotPrinted(t *testing.T) {
	cfg := tokenConfig()
	door := newDoor(t, cfg)
	d, l := door.meet(t, cfg)
	if err := errors.Join(d.Close(), l.Close(), door.Close()); err != nil { // stops the goroutines that write the printed fields
		t.Fatalf("Close: got %v, want no error", err)
	}
	type holder struct {
		Conn   *Conn
		hidden *Conn
		Auth   Config
	}
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	for _, v := range []any{d, l, cfg, &cfg, holder{d, l, cfg}, &holder{d, l, cfg}} {
		logger.Info("value", "v", v)
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			text := fmt.Sprintf(verb, v) + log.String()
			for _, secret := range [][]byte{d.Secret(), []byte(cfg.Token)} {
				for _, form := range []string{"%s", "%x", "%d", "%v", "%#v", "%q"} {
					shown := strings.Trim(fmt.Sprintf(form, secret), "[]\"")
					if strings.Contains(text, shown) {
						t.Errorf("%s of a %T prints a secret: %s", verb, v, text)
					}
				}
			}
		}
	}
}

// TestConnSecret: both ends of a Conn over TLS have the same secret, which differs for every Conn.
// It depends on the token, and differs from the value that the proofs use. Without TLS it is nil.
func TestConnSecret(t *testing.T) {
	a := newAuthority(t)
	server, client := a.config("server", nil), a.config("client", nil)
	seen := map[string]bool{}
	for name, cfg := range map[string][2]Config{"token": {tokenConfig(), tokenConfig()}, "certificates": {client, server}} {
		for range 2 {
			d, l := newDoor(t, cfg[1]).meet(t, cfg[0])
			if len(d.Secret()) != 32 || !bytes.Equal(d.Secret(), l.Secret()) || seen[string(d.Secret())] {
				t.Errorf("%s: secrets %x and %x, want the same 32 bytes, and new ones", name, d.Secret(), l.Secret())
			}
			seen[string(d.Secret())] = true
			state := d.stream.(*tls.Conn).ConnectionState()
			for label, differs := range map[string]bool{secretLabel: name == "token", exporterLabel: true} {
				bare, err := state.ExportKeyingMaterial(label, nil, 32)
				if err != nil || bytes.Equal(bare, d.Secret()) == differs {
					t.Errorf("%s: the secret is the exported value of %s: %v, %v, want %v", name, label, !differs, err, !differs)
				}
			}
		}
	}
	d, l := newDoor(t, plainConfig()).meet(t, plainConfig())
	if d.Secret() != nil || l.Secret() != nil {
		t.Errorf("plain text: secrets %x and %x, want none", d.Secret(), l.Secret())
	}
}
