package core

import (
	"container/heap"
	"strings"
	"testing"
)

// TestReorderingPath shows why a path must not reorder. Later chunks on its path overtake one chunk, so it
// counts as lost and is retransmitted. If the original arrives before the retransmission, the latter is a
// wasted duplicate. If it arrives after the message has completed, on a live and hence unfenced path, it is
// written into memory that the user owns again. This breaks the guarantee, as documented.
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
			l.finish(t, second)
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
