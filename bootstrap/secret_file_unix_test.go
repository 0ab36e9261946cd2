//go:build unix

package bootstrap

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSecretFilesOfOthersRefused: as in ssh, both sides refuse a token or key that users other than
// the owner can read or change. The error contains the command that fixes the file.
func TestSecretFilesOfOthersRefused(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, testToken, 0o600); err != nil {
		t.Fatalf("write a token: got %v, want no error", err)
	}
	certificate := newAuthority(t).config("x", nil)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(token, link); err != nil {
		t.Fatalf("Symlink: got %v, want no error", err)
	}
	for _, tt := range []struct {
		name       string
		file, real string
		cfg        Config
	}{
		{"token", token, token, Config{TokenFile: token}},
		{"link to a token", link, token, Config{TokenFile: link}},
		{"key", certificate.KeyFile, certificate.KeyFile, certificate},
	} {
		for _, mode := range []os.FileMode{0o640, 0o604, 0o620, 0o602, 0o644, 0o666} {
			if err := os.Chmod(tt.real, mode); err != nil {
				t.Fatalf("Chmod: got %v, want no error", err)
			}
			_, listen := Listen(t.Context(), "127.0.0.1:0", tt.cfg)
			_, dial := Dial(t.Context(), "127.0.0.1:1", tt.cfg)
			for _, err := range []error{listen, dial} {
				if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "chmod 600 "+tt.file) {
					t.Errorf("%s with mode %04o: got %v, want %v and the command chmod 600 %s", tt.name, mode, err, ErrConfig, tt.file)
				}
			}
		}
		for _, mode := range []os.FileMode{0o600, 0o400, 0o700} {
			if err := os.Chmod(tt.real, mode); err != nil {
				t.Fatalf("Chmod: got %v, want no error", err)
			}
			l, err := Listen(t.Context(), "127.0.0.1:0", tt.cfg)
			if err != nil {
				t.Errorf("%s with mode %04o: got %v, want no error", tt.name, mode, err)
				continue
			}
			if err := l.Close(); err != nil {
				t.Errorf("Close: got %v, want no error", err)
			}
		}
	}
	// Certificates are public.
	for _, file := range []string{certificate.CertFile, certificate.CAFile} {
		if err := os.Chmod(file, 0o644); err != nil {
			t.Fatalf("Chmod: got %v, want no error", err)
		}
	}
	if _, err := certificate.load(true, nil); err != nil {
		t.Errorf("load with readable certificates: got %v, want no error", err)
	}
}
