package peer_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/softnic"
)

// records is a slog handler that keeps the messages above Info.
type records struct {
	mu   sync.Mutex
	seen []string
}

func (r *records) Enabled(_ context.Context, level slog.Level) bool { return level > slog.LevelInfo }
func (r *records) WithAttrs([]slog.Attr) slog.Handler               { return r }
func (r *records) WithGroup(string) slog.Handler                    { return r }
func (r *records) Handle(_ context.Context, one slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := one.Level.String() + " " + one.Message
	one.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	r.seen = append(r.seen, text)
	return nil
}

// Sessions that end with WaitDone and Close on both sides log nothing above Info, also with receives
// posted, whichever side closes first.
func TestCleanShutdownLogsNothing(t *testing.T) {
	log := &records{}
	for range 20 {
		n := newNetwork(1)
		cfg := config(n.open(1, softnic.Config{}))
		cfg.QP = ibverbx.Config{Lanes: 2, Log: slog.New(log)}
		d, l := mustMeet(t, cfg, cfg)
		ctx, ended := soon(t), make(chan error, 2)
		for _, s := range []*peer.Session{d, l} {
			if _, err := s.QP.PostRecv([]ibverbx.RecvWR{{WRID: 5}}); err != nil {
				t.Fatalf("PostRecv: got %v, want no error", err)
			}
			go func() { ended <- errors.Join(s.WaitDone(ctx), s.Close()) }()
		}
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Fatalf("WaitDone and Close: got %v, want no errors", err)
		}
	}
	if len(log.seen) > 0 {
		t.Errorf("%d records above Info, the first is %q; want none", len(log.seen), log.seen[0])
	}
}
