package cudatest_test

import (
	"testing"

	"ibverbx/cuda/cudatest"
)

// TestOpen: Open returns a GPU with working memory.
func TestOpen(t *testing.T) {
	g := cudatest.Open(t)
	m, got := cudatest.Alloc(t, g, 1<<20), make([]byte, 5)
	if _, err := m.WriteAt([]byte("bytes"), 1<<20-5); err != nil {
		t.Fatalf("WriteAt = %v, want nil", err)
	}
	if _, err := m.ReadAt(got, 1<<20-5); err != nil || string(got) != "bytes" {
		t.Errorf("ReadAt = %v and %q, want nil and what was written", err, got)
	}
	if file, _, err := m.DMABuf(); err != nil {
		t.Errorf("DMABuf = %v, want nil", err)
	} else if err := file.Close(); err != nil {
		t.Errorf("Close = %v, want nil", err)
	}
}
