package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
)

// TestToken: a token file from the command authenticates both sides. It is readable by its owner only, holds a unique
// secret, and is never overwritten.
func TestToken(t *testing.T) {
	file, other := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "token")
	out := succeed(t, "token", file)
	if want := "serve DIR --token-file " + file; !strings.Contains(out, want) {
		t.Errorf("token does not print %q:\n%s", want, out)
	}
	secret := strings.TrimSpace(read(t, file))
	if strings.Contains(out, secret) {
		t.Errorf("token prints the secret, want it in the file alone")
	}
	info, err := os.Stat(file)
	if err != nil || (info.Mode().Perm() != 0o600 && runtime.GOOS != "windows") {
		t.Errorf("the file is %v, %v, want mode 0600", info, err)
	}
	succeed(t, "token", other)
	if len(secret) != 44 || secret == strings.TrimSpace(read(t, other)) {
		t.Errorf("two secrets are %q and %q, want 32 random bytes each in base64", secret, read(t, other))
	}
	l, err := bootstrap.Listen(t.Context(), "127.0.0.1:0", bootstrap.Config{TokenFile: file})
	enginetest.WantOK(t, "Listen", err)
	defer func() { _ = l.Close() }()
	c, err := bootstrap.Dial(t.Context(), l.Addr().String(), bootstrap.Config{TokenFile: file})
	enginetest.WantOK(t, "Dial", err)
	_ = c.Close()
	if _, err := bootstrap.Dial(t.Context(), l.Addr().String(), bootstrap.Config{TokenFile: other}); !errors.Is(err, bootstrap.ErrAuth) {
		t.Errorf("Dial with another token: got %v, want %v", err, bootstrap.ErrAuth)
	}

	status, out, stderr := command(t.Context(), "token", file)
	if status != exitFailure || out != "" || !strings.Contains(stderr, file+" exists") || strings.TrimSpace(read(t, file)) != secret {
		t.Errorf("token over a file that exists: got status %d, %q, %q, want %d and the file as it was", status, out, stderr, exitFailure)
	}
	refused(t, "token", "one file")
	refused(t, "token a b", "one file")
	if status, _, _ := command(t.Context(), "token", filepath.Join(file, "below")); status != exitFailure {
		t.Errorf("token below a file: got status %d, want %d", status, exitFailure)
	}
}

// TestWriteNewLeavesNothingBehind: a failed write, such as on a full disk, removes the file.
func TestWriteNewLeavesNothingBehind(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	full := errors.New("no space left on device")
	err := writeNew(file, 0o600, func(w io.Writer) error {
		if _, err := io.WriteString(w, "half of a sec"); err != nil {
			t.Errorf("write: got %v, want no error", err)
		}
		return full
	})
	if _, stat := os.Lstat(file); !errors.Is(err, full) || !errors.Is(stat, os.ErrNotExist) {
		t.Errorf("writeNew: got %v and then %v of the file, want %v and no file", err, stat, full)
	}
}
