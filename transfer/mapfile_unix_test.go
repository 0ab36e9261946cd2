//go:build unix

package transfer

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMapFilePipe: MapFile does not wait for the writer of a named pipe.
func TestMapFilePipe(t *testing.T) {
	h := memoryNetwork(1).start(t, hostConfig{})
	path := filepath.Join(t.TempDir(), "pipe")
	wantOK(t, "Mkfifo", unix.Mkfifo(path, 0o600))
	done := make(chan error, 1)
	go func() {
		_, err := h.MapFile("pipe", path, SegmentConfig{})
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "want a regular file") {
			t.Errorf("MapFile: got %v, want an error that names regular files", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("MapFile waits for a writer")
	}
}
