package core

import (
	"container/heap"
	"strings"
	"testing"
)

// TestReorderingPath shows what it means that a path must not reorder. One chunk is overtaken
// by those behind it on its path, so that it counts as lost and is sent again. If it comes
// before the repetition it is a duplicate that was sent in vain. If it comes after the message
// has completed, on a path that was never fenced because it lives, it is written into memory
// that is the user's again: the promise is broken, and the docs say so.
func TestReorderingPath(t *testing.T) {
	for _, c := range []struct {
		late   int64
		broken bool
	}{{3_000, false}, {5_000_000, true}} {
		var l *line
		broken := attempt(func() {
			l = newLine(t, modest(), modest(), 16*40, 1)
			l.send = func(from int, p *packet) {
				if from == 0 && isChunk(p, 5) {
					l.seq++
					heap.Push(&l.queue, flight{at: l.now + l.Delay + c.late, seq: l.seq, to: 1, pack: *p})
					return
				}
				l.take(from, p)
			}
			l.post(0, Message{Kind: MsgWrite}, bytesOf(16*40, 1), 0)
			if !l.run(second, func() bool { return l.finished(0) }) {
				t.Fatalf("stuck at %d ns", l.now)
			}
			l.run(l.now+20_000_000, func() bool { return false })
		})
		if c.broken != strings.Contains(broken, "fence: ") || (broken != "") != c.broken {
			t.Errorf("a chunk that is %d ns late: broken promise %q, want one is %v", c.late, broken, c.broken)
		}
		if s := l.ends[0].conn.Stats(); s.SamePathLoss+s.ReorderLoss != 1 || s.Retransmitted != 1 {
			t.Errorf("a chunk that is %d ns late: %+v, want it to be lost once and sent again once", c.late, s)
		}
		if s := l.ends[1].conn.Stats(); !c.broken && s.Duplicates != 1 {
			t.Errorf("a chunk that is %d ns late: %d duplicates, want 1", c.late, s.Duplicates)
		}
	}
}
