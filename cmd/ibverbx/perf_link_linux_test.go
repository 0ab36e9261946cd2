package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/testslice"
)

// shortReport runs a short test against a server and returns its report.
func shortReport(t *testing.T, args ...string) measure.Report {
	t.Helper()
	return reportOf(t, append([]string{"-s", "64K", "-n", "50", "--check"}, args...)...)
}

// TestPerfLink: two processes of one user communicate over shared memory unless a side selects UDP. The report gives
// the reason for UDP. --link shm never falls back to UDP.
func TestPerfLink(t *testing.T) {
	token := newToken(t, "a secret of this test, long enough")
	t.Setenv("TMPDIR", t.TempDir())
	type test struct {
		server, client string // flags
		link, reason   string
		fails          string
	}
	for _, tt := range testslice.Pick(t, []test{
		{"", "", "shm", "", ""},
		{"--link shm", "", "shm", "", ""},
		{"", "--link shm --rails 1", "shm", "", ""},
		{"--rails 1", "--rails 2", "shm", "", ""},
		{"", "--link udp", "udp", "udp was requested", ""},
		{"--link udp", "--link auto", "udp", "the peer: udp was requested", ""},
		{"", "--addr 127.0.0.1", "udp", "udp was requested", ""},
		{"", "--transport uc", "udp", "rail 0 is not a plain software NIC", ""},
		{"--link udp", "--link shm", "", "", "link: the dialer wants shm, the listener wants udp"},
		{"--link shm", "--link udp", "", "", "link: the dialer wants udp, the listener wants shm"},
		{"--link shm", "--transport uc", "", "", "rail 0 is not a plain software NIC"},
	}) {
		t.Run(tt.server+" "+tt.client, func(t *testing.T) {
			server, addr := serve(t, append([]string{"--token-file", token, "--once"}, strings.Fields(tt.server)...)...)
			args := append([]string{addr, "--token-file", token}, strings.Fields(tt.client)...)
			if tt.fails != "" {
				status, _, stderr := command(t.Context(), append([]string{"perf", "-s", "64K", "-n", "50"}, args...)...)
				if status == exitOK || !strings.Contains(stderr, tt.fails) {
					t.Errorf("status %d, %q, want an error that says %q", status, stderr, tt.fails)
				}
				server.end()
				return
			}
			if r := shortReport(t, args...); r.Link != tt.link || r.LinkReason != tt.reason {
				t.Errorf("over %q because of %q, want %q and %q", r.Link, r.LinkReason, tt.link, tt.reason)
			}
			if status := server.end(); status != exitOK {
				t.Errorf("the server ended with status %d: %s", status, strings.Join(server.said, "\n"))
			}
		})
	}
	if left, err := filepath.Glob(filepath.Join(os.TempDir(), "*.sock")); err != nil || len(left) > 0 {
		t.Errorf("sockets are left: %q, %v", left, err)
	}
}

// installed copies this binary and a token to a directory accessible to other users, and returns their paths.
func installed(t *testing.T, uid int) (binary, token string) {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "ibverbx-test-")
	if err != nil {
		t.Skipf("no directory that others can reach: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	b, err := os.ReadFile(os.Args[0])
	enginetest.WantOK(t, "ReadFile", err)
	binary, token = filepath.Join(dir, "ibverbx"), filepath.Join(dir, "token")
	for _, err := range []error{
		os.Chmod(dir, 0o755), os.WriteFile(binary, b, 0o755), os.WriteFile(token, []byte("a secret of this test, long enough\n"), 0o600), os.Chown(token, uid, -1),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return binary, token
}

// serverArgs returns the arguments of a server for one client.
func serverArgs(token string) []string {
	return []string{"perf", "serve", "--listen", "127.0.0.1:0", "--once", "--token-file", token}
}

// TestPerfOtherUser: processes of two users communicate over UDP and report why.
func TestPerfOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	const nobody = 65534
	binary, token := installed(t, nobody)
	cmd := exec.CommandContext(t.Context(), binary, serverArgs(token)...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	_, addr := served(t, start(t, cmd))
	if r := shortReport(t, addr, "--token-file", newToken(t, "a secret of this test, long enough")); r.Link != "udp" || !strings.Contains(r.LinkReason, "permission denied") {
		t.Errorf("over %q because of %q, want udp because permission was denied", r.Link, r.LinkReason)
	}
}

// TestPerfContainer: a server in separate namespaces is reached over shared memory if it shares the socket directory,
// otherwise over UDP.
func TestPerfContainer(t *testing.T) {
	for _, tt := range []struct{ name, script, link, reason string }{
		{"a directory of its own", `mount -t tmpfs none "$D" && exec "$0" "$@"`, "udp", "cannot be reached"},
		{"the same directory", `exec "$0" "$@"`, "shm", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			unshare := []string{"--user", "--map-root-user", "--mount", "--pid", "--fork", "--ipc", "--uts"}
			if out, err := exec.CommandContext(t.Context(), "unshare", append(unshare, "true")...).CombinedOutput(); err != nil {
				t.Skipf("no namespaces: %v: %s", err, out)
			}
			binary, token := installed(t, os.Geteuid())
			cmd := exec.CommandContext(t.Context(), "unshare", append(unshare, append([]string{"sh", "-c", tt.script, binary}, serverArgs(token)...)...)...)
			cmd.Env = append(os.Environ(), "D="+os.TempDir())
			_, addr := served(t, start(t, cmd))
			if r := shortReport(t, addr, "--token-file", token); r.Link != tt.link || !strings.Contains(r.LinkReason, tt.reason) {
				t.Errorf("over %q because of %q, want %q because of %q", r.Link, r.LinkReason, tt.link, tt.reason)
			}
		})
	}
}
