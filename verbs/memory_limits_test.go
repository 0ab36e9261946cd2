//go:build (unix || windows) && !heapmem && (amd64 || arm64)

package verbs_test

import (
	"errors"
	"testing"

	"ibverbx/verbs"
)

// A size beyond the address space is an error, even with huge pages.
func TestAllocMemoryTooMuch(t *testing.T) {
	for _, cfg := range []*verbs.MemoryConfig{nil, {HugePages: true}} {
		m, err := verbs.AllocMemory(1<<60, cfg)
		var op *verbs.OpError
		if m != nil || !errors.As(err, &op) {
			t.Errorf("AllocMemory of an exbibyte = %v, %v, want an *OpError", m, err)
		}
	}
}
