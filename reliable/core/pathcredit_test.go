package core

import "testing"

// TestPathCredit: a peer has two receives on each of four paths. No path ever has more chunks in flight, and
// with loss everything still arrives.
func TestPathCredit(t *testing.T) {
	for _, loss := range []float64{0, 0.05} {
		cfg := modest()
		cfg.PathCredit, cfg.PeerCredit, cfg.RecvCredit = true, 8, 8
		l := newLine(t, cfg, cfg, 1<<13, 1)
		l.Loss = loss
		most := 0
		l.Lose = func(from int, p *packet) bool {
			if from != 0 || p.route < RoutePath {
				return false
			}
			n := 1
			for _, f := range l.queue {
				if f.to == 1 && f.pack.route == p.route {
					n++
				}
			}
			most = max(most, n)
			return false
		}
		l.post(0, Message{Kind: MsgWrite}, bytesOf(1<<13, 1), 0)
		if !l.run(second, func() bool { return l.finished(0) }) || l.ends[0].done[0] != statusSuccess {
			t.Fatalf("loss %v: %v at %d ns, want success", loss, l.ends[0].done, l.now)
		}
		if loss == 0 && most != 2 {
			t.Fatalf("%d chunks were under way on one path, want 2", most)
		}
	}
}

// TestCreditShrinks: a peer is notified immediately when it has fewer receives.
func TestCreditShrinks(t *testing.T) {
	c := newConn(t, modest())
	if a := c.Step(1, &Event{Kind: EvCredit, Count: 40}); len(a) != 1 || a[0].Record.Window != 40 {
		t.Fatalf("%+v, want an acknowledgement with a window of 40", a)
	}
	if a := c.Step(2, &Event{Kind: EvCredit, Count: 50}); len(a) != 0 {
		t.Fatalf("%+v for more receives, want nothing", a)
	}
}
