package twohosts_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestTwoProcesses runs both programs and compares the sent and received data.
func TestTwoProcesses(t *testing.T) {
	dir := t.TempDir()
	data := bytes.Repeat([]byte("two hosts, one queue pair. "), 40_000)
	write(t, filepath.Join(dir, "token"), []byte("a secret of more than 16 bytes"))
	write(t, filepath.Join(dir, "file"), data)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	build := exec.CommandContext(ctx, "go", "build", "-o", dir+"/", "./receive", "./send")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}

	receive := exec.CommandContext(ctx, filepath.Join(dir, "receive"), "-listen", "127.0.0.1:0", "-token-file", filepath.Join(dir, "token"))
	receive.Stderr = os.Stderr
	out, err := receive.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := receive.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	_, addr, ok := strings.Cut(lines.Text(), "waiting at ")
	if !ok {
		t.Fatalf("the receiver's first line is %q, want its address", lines.Text())
	}
	sent, err := exec.CommandContext(ctx, filepath.Join(dir, "send"), "-token-file", filepath.Join(dir, "token"), addr, filepath.Join(dir, "file")).CombinedOutput()
	if err != nil {
		t.Errorf("send: %v\n%s", err, sent)
		cancel() // or the receiver waits forever
	}
	lines.Scan()
	received := lines.Text()
	if err := receive.Wait(); err != nil {
		t.Errorf("receive: %v", err)
	}
	for what, line := range map[string]string{"sent": string(sent), "received": received} {
		if want := fmt.Sprintf("%s %d bytes", what, len(data)); !strings.HasPrefix(line, want) {
			t.Errorf("got %q, want it to begin with %q", line, want)
		}
		if want := fmt.Sprintf("SHA-256 %x", sha256.Sum256(data)); !strings.Contains(line, want) {
			t.Errorf("got %q, want it to contain %q", line, want)
		}
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
