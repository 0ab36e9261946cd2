package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"ibverbx/bootstrap"
	"ibverbx/internal/enginetest"
)

// certConfig names the credential files of one side.
func certConfig(dir, side string) bootstrap.Config {
	in := func(name string) string { return filepath.Join(dir, name) }
	return bootstrap.Config{CAFile: in("ca.pem"), CertFile: in(side + ".pem"), KeyFile: in(side + ".key")}
}

// TestCertMeet: the files of one cert command authenticate both sides, for every requested host name.
func TestCertMeet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "certs")
	out := succeed(t, "cert", dir, "--host", "node7", "--host", "127.0.0.1")
	says(t, out, "perf serve --ca", "perf node7 --ca", "certificate of the server (node7, 127.0.0.1)")
	l, err := bootstrap.Listen(t.Context(), "127.0.0.1:0", certConfig(dir, "server"))
	enginetest.WantOK(t, "Listen", err)
	defer func() { _ = l.Close() }()
	for name, ok := range map[string]bool{"": true, "node7": true, "node8": false} {
		cfg := certConfig(dir, "client")
		cfg.ServerName = name
		c, err := bootstrap.Dial(t.Context(), l.Addr().String(), cfg)
		if (err == nil) != ok {
			t.Errorf("Dial as %q: got %v, want success %v", name, err, ok)
		}
		if err == nil {
			_ = c.Close()
		}
	}
	// A client certificate is not valid for a server.
	wrong, err := bootstrap.Listen(t.Context(), "127.0.0.1:0", certConfig(dir, "client"))
	enginetest.WantOK(t, "Listen", err)
	defer func() { _ = wrong.Close() }()
	if _, err := bootstrap.Dial(t.Context(), wrong.Addr().String(), certConfig(dir, "client")); err == nil {
		t.Errorf("Dial of a listener with a client's certificate: got no error, want one")
	}
}

func TestCertFiles(t *testing.T) {
	dir := t.TempDir()
	succeed(t, "cert", dir)
	names := []string{"ca.pem", "ca.key", "server.pem", "server.key", "client.pem", "client.key"}
	before := map[string]string{}
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		enginetest.WantOK(t, "Stat", err)
		want := os.FileMode(0o644)
		if strings.HasSuffix(name, ".key") {
			want = 0o600
		}
		if got := info.Mode().Perm(); got&^want != 0 && runtime.GOOS != "windows" {
			t.Errorf("%s has mode %o, want no more than %o", name, got, want)
		}
		before[name] = read(t, filepath.Join(dir, name))
	}
	fails(t, exitFailure, "--force", "cert", dir)
	enginetest.WantOK(t, "Remove", os.Remove(filepath.Join(dir, "ca.pem")))
	command(t.Context(), "cert", dir)
	if _, err := os.Stat(filepath.Join(dir, "ca.pem")); err == nil {
		t.Errorf("cert wrote one file although others are there, want none")
	}
	// A symbolic link is replaced and its target left unchanged.
	aside := filepath.Join(t.TempDir(), "aside")
	enginetest.WantOK(t, "Rename", os.Rename(filepath.Join(dir, "server.key"), aside))
	if err := os.Symlink(aside, filepath.Join(dir, "server.key")); err != nil && runtime.GOOS != "windows" {
		t.Fatalf("Symlink: got %v, want no error", err)
	}
	succeed(t, "cert", dir, "--force")
	if read(t, aside) != before["server.key"] {
		t.Errorf("cert --force wrote through a link, want the link replaced")
	}
	for _, name := range names {
		if read(t, filepath.Join(dir, name)) == before[name] {
			t.Errorf("cert --force left %s as it was, want a new one", name)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	enginetest.WantOK(t, "read", err)
	return string(b)
}

func TestCertFlagErrors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "x")
	for args, want := range map[string]string{
		"a b": "one directory", "--days 0": "--days 0", "--host node:18515": "without a port", "--days x": "--days",
	} {
		words := append([]string{"cert"}, strings.Fields(args)...)
		if !strings.Contains(args, "a b") {
			words = append(words, dir)
		}
		status, out, stderr := command(t.Context(), words...)
		if status == exitOK || out != "" || !strings.Contains(stderr, want) {
			t.Errorf("cert %s: got status %d, %q, %q, want an error that says %q", args, status, out, stderr, want)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("a refused command made %s, want nothing", dir)
	}
}

// TestCertLeavesNothingBehind: if writing a file fails, no files or new directories are left, and with --force the
// existing files are unchanged.
func TestCertLeavesNothingBehind(t *testing.T) {
	top := t.TempDir()
	good := certFile{name: "ca.pem", kind: "CERTIFICATE", der: []byte{1}, mode: 0o600}
	bad := good
	bad.name = filepath.Join("missing", "ca.key") // fails during the write, like a full disk
	if err := writeFiles(filepath.Join(top, "a", "b"), []certFile{good, bad}, false); err == nil {
		t.Fatal("writeFiles: got no error, want one")
	}
	if left, err := os.ReadDir(top); len(left) != 0 || err != nil {
		t.Errorf("%v is left, %v, want nothing", left, err)
	}
	old := filepath.Join(top, "ca.pem")
	enginetest.WantOK(t, "WriteFile", os.WriteFile(old, []byte("from before"), 0o600))
	if err := writeFiles(top, []certFile{good, bad}, true); err == nil {
		t.Fatal("writeFiles: got no error, want one")
	}
	if left, err := os.ReadDir(top); len(left) != 1 || err != nil || read(t, old) != "from before" {
		t.Errorf("%v with %q is left, %v, want the file from before", left, read(t, old), err)
	}
}
