package docs

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
)

// scenario runs commands as a page prints them, in order, in a temporary directory. Servers keep running until the end and must then
// exit with status 0 after SIGTERM. "go run ./cmd/ibverbx" becomes a built ibverbx.
type scenario struct {
	name     string
	commands []string
	// replace has pairs of old and new text. {dir} is the temporary directory, {target} the address of an echo server, {addr} the address
	// of the latest server, {metrics} its metrics address.
	replace  []string
	statuses []int                          // the allowed exit statuses; 0 if empty
	within   string                         // the working directory below {dir}
	prepare  func(t *testing.T, dir string) // creates the files that the page assumes
	check    func(t *testing.T, s *shell)   // runs after the commands, before servers stop
}

// scenarios returns all scenarios. Servers get a free port instead of their default port, and paths outside the
// working directory move into it.
func scenarios() []scenario {
	return append(fileScenarios(), []scenario{
		{name: "perf", commands: []string{"go run ./cmd/ibverbx perf"}, replace: []string{"ibverbx perf", "ibverbx perf -D 100ms"}}, // saves 5 s of CPU time
		{name: "demo", commands: []string{"go run ./cmd/ibverbx demo"}},
		{
			name:     "module",
			commands: []string{"go mod edit -replace ibverbx=../ibverbx && go mod tidy"},
			within:   "src/app",
			prepare:  prepareModule,
			check:    func(_ *testing.T, s *shell) { s.run("go list -deps .") }, // resolves all imports
		},
		{
			name: "forward",
			commands: []string{
				"ibverbx serve --forward 127.0.0.1:5432 --token-file token",
				"ibverbx forward -L 5432:127.0.0.1:5432 db --token-file token",
			},
			replace: []string{"5432:127.0.0.1:5432", "0:{target}", "127.0.0.1:5432", "{target}", " db ", " {addr} ", "ibverbx serve", "ibverbx serve --listen 127.0.0.1:0"},
			check:   checkForward,
		},
		{
			name: "metrics",
			commands: []string{
				"ibverbx perf serve --token-file token --metrics :9100",
				"curl http://localhost:9100/metrics",
			},
			replace: []string{"perf serve", "perf serve --listen 127.0.0.1:0", "--metrics :9100", "--metrics 127.0.0.1:0", "localhost:9100", "{metrics}"},
		},
		{
			name:     "doctor",
			commands: []string{"./ibverbx doctor"},
			statuses: []int{0, 1}, // 1 without an RDMA NIC
		},
		{
			name: "sim",
			commands: []string{
				"ibverbx sim --list",
				"ibverbx sim --scenario rail-loss --seeds 100",
				"ibverbx sim --seed 7 --trace trace.jsonl",
				"ibverbx sim --scenario reliable-400g-loss-1 --json",
			},
			replace: []string{"--seeds 100", "--seeds 10"}, // saves 4 s of CPU time
			check:   func(t *testing.T, s *shell) { nonEmpty(t, s.dir, "trace.jsonl") },
		},
	}...)
}

// fileScenarios returns the scenarios that copy files between two hosts.
func fileScenarios() []scenario {
	return []scenario{
		{
			name: "copy",
			commands: []string{
				"./ibverbx token token",
				"./ibverbx serve --token-file token docs",
				"./ibverbx get --token-file token localhost docs /tmp/docs",
			},
			replace: []string{"ibverbx serve", "ibverbx serve --listen 127.0.0.1:0", "localhost", "{addr}", "/tmp/docs", "{dir}/copy"},
			prepare: func(t *testing.T, dir string) {
				enginetest.Must(t, os.Remove(filepath.Join(dir, "token")))
				enginetest.Must(t, os.CopyFS(filepath.Join(dir, "docs"), os.DirFS("../../docs")))
			},
			check: func(t *testing.T, s *shell) { sameFile(t, s.dir, "docs/README.md", "copy/README.md") },
		},
		{
			name: "files",
			commands: []string{
				"ibverbx serve /models --token-file token",
				"ibverbx ls host1 --token-file token",
				"ibverbx get host1 models/v7 /data --token-file token",
			},
			replace: []string{"ibverbx serve", "ibverbx serve --listen 127.0.0.1:0", "host1", "{addr}", " /models", " {dir}/models", " /data", " {dir}/data"},
			prepare: func(t *testing.T, dir string) { write(t, filepath.Join(dir, "models/v7/model.safetensors"), 3<<20) },
			check: func(t *testing.T, s *shell) {
				sameFile(t, s.dir, "models/v7/model.safetensors", "data/model.safetensors")
			},
		},
		{
			name: "checkpoint",
			commands: []string{
				"ibverbx serve /checkpoints --token-file token",
				"ibverbx get HOST checkpoints/ckpt-42 /data --token-file token",
			},
			replace: []string{"ibverbx serve", "ibverbx serve --listen 127.0.0.1:0", "HOST", "{addr}", " /checkpoints", " {dir}/checkpoints", " /data", " {dir}/data"},
			prepare: func(t *testing.T, dir string) { write(t, filepath.Join(dir, "checkpoints/ckpt-42/shard-0"), 3<<20) },
			check:   func(t *testing.T, s *shell) { sameFile(t, s.dir, "checkpoints/ckpt-42/shard-0", "data/shard-0") },
		},
	}
}

// prepareModule creates a module beside a clone of ibverbx, which it imports.
func prepareModule(t *testing.T, dir string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	enginetest.Must(t, err)
	enginetest.Must(t, os.MkdirAll(filepath.Join(dir, "src/app"), 0o755))
	enginetest.Must(t, os.Symlink(root, filepath.Join(dir, "src/ibverbx")))
	enginetest.Must(t, os.WriteFile(filepath.Join(dir, "src/app/go.mod"), []byte("module app\n\ngo 1.26.0\n"), 0o600))
	enginetest.Must(t, os.WriteFile(filepath.Join(dir, "src/app/main.go"), []byte("package main\n\nimport _ \"ibverbx/transfer\"\n\nfunc main() {}\n"), 0o600))
}

// checkForward sends bytes through the forwarded port to the echo server.
func checkForward(t *testing.T, s *shell) {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.addr)
	enginetest.Must(t, err)
	defer c.Close()
	const sent = "through the forwarded port"
	_, err = io.WriteString(c, sent)
	enginetest.Must(t, err)
	got := make([]byte, len(sent))
	_, err = io.ReadFull(c, got)
	enginetest.Must(t, err)
	if string(got) != sent {
		t.Errorf("the forwarded port returns %q, want %q", got, sent)
	}
}

// fetch requests a URL, like curl.
func fetch(t *testing.T, url string) {
	t.Helper()
	r, err := http.Get(url) //nolint:noctx // the server belongs to the test
	enginetest.Must(t, err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	enginetest.Must(t, err)
	if r.StatusCode != http.StatusOK || !strings.Contains(string(body), "ibverbx_") {
		t.Errorf("%s: %s, %d bytes, want metrics of ibverbx", url, r.Status, len(body))
	}
}

// write creates a file with n bytes.
func write(t *testing.T, path string, n int) {
	t.Helper()
	enginetest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	enginetest.Must(t, os.WriteFile(path, bytes.Repeat([]byte("checked. "), n/9), 0o600))
}

// nonEmpty reads a file that must have content.
func nonEmpty(t *testing.T, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	enginetest.Must(t, err)
	if len(b) == 0 {
		t.Errorf("%s is empty", name)
	}
	return b
}

// sameFile compares two files.
func sameFile(t *testing.T, dir, a, b string) {
	t.Helper()
	if !bytes.Equal(nonEmpty(t, dir, a), nonEmpty(t, dir, b)) {
		t.Errorf("%s and %s differ", a, b)
	}
}
