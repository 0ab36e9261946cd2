package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"ibverbx/cuda"
	"ibverbx/cuda/cudatest"
)

// asCommand runs the test binary as the command itself.
const asCommand = "KVCACHE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// command runs the example, which starts its decoder, and returns its output.
func command(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), env...), asCommand+"=1")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("kvcache %v: %v, %q", args, err, said.String())
	}
	return out.String()
}

// wantAll checks that all requests were handed over in the given kind of memory.
func wantAll(t *testing.T, out, place string) {
	t.Helper()
	if want := "24 requests handed over in memory of " + place + ": "; !strings.HasPrefix(out, want) || !strings.Contains(out, "all right") {
		t.Errorf("got %q, want 24 requests in memory of %s that are all right", out, place)
	}
}

// TestHost hands all requests over in host memory.
func TestHost(t *testing.T) { wantAll(t, command(t, nil), "the host") }

// TestGPU hands all requests over from one GPU buffer to another.
func TestGPU(t *testing.T) {
	cudatest.Open(t) // skips the test without a GPU
	wantAll(t, command(t, cudatest.Environ(t, 1), "-memory", "cuda:0"), "cuda:0")
}

// TestWithoutDriver: without a GPU the program prints the missing requirement and the fix, and exits with 0.
func TestWithoutDriver(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, cuda.DefaultLibrary), []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	out := command(t, []string{"LD_LIBRARY_PATH=" + dir}, "-memory", "cuda:0")
	if !strings.HasPrefix(out, "no GPU to use: ") || !strings.Contains(out, "-memory host") {
		t.Errorf("got %q, want the reason and what to do", out)
	}
}
