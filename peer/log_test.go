package peer_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"ibverbx"
	"ibverbx/peer"
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

// Sessions closed with WaitDone and Close on both sides log at most at level Info, even with receives posted,
// whichever side closes first.
func TestCleanShutdownLogsNothing(t *testing.T) {
	log := &records{}
	for range 20 {
		n := newNetwork(1)
		cfg := config(n.open(1))
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

// A Session logs each state of its connection, with the peer, the rail and the cause: connected, rail lost,
// rail restored, closed. Lanes are logged at debug level.
func TestLogOfSession(t *testing.T) {
	var text safeBuffer
	n := newNetwork(2)
	cfg := config(n.open(2))
	quiet := cfg
	cfg.QP = ibverbx.Config{Lanes: 2, Log: slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	d, l := mustMeet(t, cfg, quiet)
	ctx, served := soon(t), make(chan error, 1)
	go func() { served <- errors.Join(l.WaitDone(ctx), l.Close()) }()
	if err := d.QP.KillLane(1); err != nil {
		t.Fatalf("KillLane: got %v, want no error", err)
	}
	for !strings.Contains(text.String(), "recovered") {
		if _, err := d.CQ.Poll(make([]ibverbx.WC, 8)); err != nil || ctx.Err() != nil {
			t.Fatalf("Poll: got %v and %v before the lane was back", err, ctx.Err())
		}
	}
	remote := d.Conn.Peer().Addr.String()
	if err := errors.Join(d.WaitDone(ctx), d.Close(), d.Close(), <-served); err != nil {
		t.Fatalf("WaitDone and Close: got %v, want no errors", err)
	}
	want := []struct{ level, msg, rail, cause string }{
		{"INFO", "connected", "", ""},
		{"DEBUG", `"lane down"`, "1", "yes"},
		{"WARN", `"rail down"`, "1", "yes"},
		{"DEBUG", "degraded", "1", "yes"},
		{"DEBUG", `"lane up"`, "1", ""},
		{"INFO", `"rail up"`, "1", ""},
		{"DEBUG", "recovered", "1", ""},
		{"INFO", "closed", "", ""},
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d records, want %d:\n%s", len(lines), len(want), &text)
	}
	for i, w := range want {
		all := " " + lines[i] + " "
		for _, part := range []string{"level=" + w.level, "msg=" + w.msg, "peer=" + remote, "vqp="} {
			if !strings.Contains(all, " "+part) {
				t.Errorf("record %d lacks %s: %s", i, part, lines[i])
			}
		}
		if strings.Contains(all, " rail="+w.rail+" ") != (w.rail != "") || strings.Contains(all, " cause=") != (w.cause != "") {
			t.Errorf("record %d: %s, want rail %q and cause %q", i, lines[i], w.rail, w.cause)
		}
	}
}

// A Session whose peer is lost logs the failure and its cause, and the cause again when it is closed.
func TestLogOfFailure(t *testing.T) {
	var text safeBuffer
	n := newNetwork(1)
	cfg := config(n.open(1))
	quiet := cfg
	cfg.QP = ibverbx.Config{Lanes: 2, Log: slog.New(slog.NewTextHandler(&text, nil))}
	d, l := mustMeet(t, cfg, quiet)
	if err := l.Close(); err != nil {
		t.Fatalf("Close: got %v, want no error", err)
	}
	if _, err := d.CQ.Wait(soon(t), make([]ibverbx.WC, 1)); !errors.Is(err, ibverbx.ErrPeerGone) {
		t.Fatalf("Wait: got %v, want %v", err, ibverbx.ErrPeerGone)
	}
	if err := d.Close(); err != nil {
		t.Fatalf("Close: got %v, want no error", err)
	}
	for _, want := range []string{"level=ERROR msg=failed", "level=INFO msg=closed"} {
		_, record, ok := strings.Cut(text.String(), want)
		record, _, _ = strings.Cut(record, "\n")
		if !ok || !strings.Contains(record, "peer=") || !strings.Contains(record, "cause=") {
			t.Errorf("no record %s with peer and cause:\n%s", want, &text)
		}
	}
}

// safeBuffer is a buffer that several goroutines may use.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
