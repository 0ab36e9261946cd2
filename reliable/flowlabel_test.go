package reliable

import (
	"testing"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// TestFlowLabels: every path and control QP of a connection has a distinct source port, including their next
// epochs, and adjacent paths differ in their last bits.
func TestFlowLabels(t *testing.T) {
	for _, paths := range []int{1, 2, 7, 16, 256} {
		c := &connection{ctx: &pathContext{}, id: 3, attr: verbs.QPAttr{SQPSN: 0xfffff0}, paths: make([]path, paths)}
		ports, lasts := map[uint16]int{}, map[uint16]bool{}
		for epoch := range uint16(8) {
			for i := range paths {
				label := c.flowLabel(i, epoch)
				if label == 0 || label >= 1<<20 {
					t.Fatalf("the label of path %d of %d, epoch %d, is %#x: want 20 bits above 0", i, paths, epoch, label)
				}
				port := roce.SourcePort(label)
				ports[port]++
				if epoch == 0 && i < 16 {
					lasts[port%16] = true
				}
			}
		}
		if len(ports) != 8*paths {
			t.Errorf("%d paths have %d source ports in 8 epochs, want %d", paths, len(ports), 8*paths)
		}
		if want := min(paths, 16); len(lasts) != want {
			t.Errorf("the first of %d paths have %d different last digits, want %d", paths, len(lasts), want)
		}
		if roce.SourcePort(c.flowLabel(paths, 0)) == roce.SourcePort(c.flowLabel(paths+1, 0)) {
			t.Errorf("both control QPs of %d paths have one source port, want two", paths)
		}
	}
}
