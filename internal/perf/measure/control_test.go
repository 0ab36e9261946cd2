package measure

import (
	"context"
	"strings"
	"testing"
	"time"
)

// listener is a Peer that keeps the messages sent to it.
type listener struct {
	Peer
	sent []string
}

func (l *listener) Send(_ context.Context, b []byte) error {
	l.sent = append(l.sent, string(b))
	return nil
}

// TestRequests: the remote side may only request valid, bounded work, one comparison at a time. Any
// other request fails the run without a response.
func TestRequests(t *testing.T) {
	for _, tt := range []struct {
		name    string
		cfg     Config
		kind    messageKind
		n       int64
		in      bool
		pending bool
		want    bool
	}{
		{name: "a fill of too many", cfg: Config{Op: Read, Check: true}, kind: kindFill, n: 5, in: true},
		{name: "a compare of too many", cfg: Config{Op: Write, Check: true}, kind: kindCompare, n: 5, in: true},
		{name: "a fill of a write", cfg: Config{Op: Write, Check: true}, kind: kindFill, n: 4, in: true},
		{name: "a compare of a read", cfg: Config{Op: Read, Check: true}, kind: kindCompare, n: 4, in: true},
		{name: "a compare without --check", cfg: Config{Op: Write}, kind: kindCompare, n: 4, in: true},
		{name: "a compare of what nobody sends", cfg: Config{Op: Write, Check: true}, kind: kindCompare, n: 4},
		{name: "a second compare", cfg: Config{Op: Write, Check: true}, kind: kindCompare, n: 4, in: true, pending: true},
		{name: "a compare", cfg: Config{Op: Write, Check: true}, kind: kindCompare, n: 4, in: true, want: true},
		{name: "a fill", cfg: Config{Op: Read, Check: true}, kind: kindFill, n: 4, in: true, want: true},
	} {
		s := &side{}
		if tt.in {
			m := &memory{bytes: make([]byte, 4*64)}
			s.in = &flow{op: tt.cfg.Op, source: &buffer{memory: m, places: 4, stride: 64, size: 64}}
		}
		to := &listener{}
		c := &control{ctx: t.Context(), peer: to, run: &SizeRun{plan: plan{chain: 2, window: 2}, cfg: &tt.cfg, sides: [2]*side{s, {}}, epoch: time.Now()}}
		if tt.pending {
			c.pending = &controlMessage{Kind: kindCompare, N: 4}
		}
		err := c.handle(&received{controlMessage: controlMessage{Kind: tt.kind, N: tt.n}})
		answers := 0
		if tt.want && tt.kind == kindFill {
			answers = 1
		}
		if (err == nil) != tt.want || len(to.sent) != answers {
			t.Errorf("%s: got %v and %d messages in response, want it accepted: %v, and %d messages", tt.name, err, len(to.sent), tt.want, answers)
		}
		if !tt.want && (err == nil || !strings.Contains(err.Error(), "unexpected request from the remote side")) {
			t.Errorf("%s: got %v, want it refused as unexpected", tt.name, err)
		}
	}
}
