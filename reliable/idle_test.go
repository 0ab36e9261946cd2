package reliable_test

import (
	"os"
	"runtime"
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
)

// TestIdleConnection: an idle connection with the default Config takes little memory. There are 100 of them, or 1,000 with
// IBVERBX_TEST_LONG=1.
func TestIdleConnection(t *testing.T) {
	n := 100
	if os.Getenv("IBVERBX_TEST_LONG") == "1" {
		n = 1000
	}
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	link := softnic.NewMemoryLink(nil)
	a, b := newPair(t, link, reliable.Config{}, 4096)
	before := heap()
	for range n {
		join(t, a.another(t), b.another(t))
	}
	each := (heap() - before) / (2 * n)
	used, _ := reliable.Receives(a.qp)
	t.Logf("an idle connection takes %d KiB of heap, and %d receive buffers", each>>10, used/n)
	if each > 128<<10 {
		t.Errorf("an idle connection takes %d bytes of heap, want at most 128 KiB", each)
	}
}
