package measure_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
	"ibverbx/softnic"
)

// stopped runs a client, and a server for the same time. The server's result is ignored.
func stopped(ctx context.Context, t *testing.T, ends [2]*partner, cfg measure.Config, o measure.Observer) (rep measure.Report, err error) {
	t.Helper()
	serving, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if r, err := measure.NewServer(serving, ends[1], measure.Config{}); err == nil {
			_, _ = r.Run(serving, measure.Observer{})
		}
	}()
	cfg.Timing.Drain = 300 * time.Millisecond
	r, err := measure.NewClient(t.Context(), ends[0], cfg)
	if err == nil {
		rep, err = r.Run(ctx, o)
	}
	stop()
	_ = ends[0].conn.Close()
	<-done
	return rep, err
}

// TestRemoteInterruptedDeadPath: an interrupted client does not wait for requests on a dead path.
// Earlier measurements count.
func TestRemoteInterruptedDeadPath(t *testing.T) {
	for name, cfg := range map[string]measure.Config{
		"bandwidth": {},
		"latency":   {Mode: measure.Latency},
		"ping-pong": {Mode: measure.Latency, Op: measure.Send},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			links := enginetest.FaultLinks(t, 1, softnic.Impairment{})
			nics, ends := enginetest.OpenEnds(t, links)
			link := links[0].(*softnic.FaultLink)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cfg.Rails, cfg.QPs, cfg.Sizes, cfg.Duration = 1, 2, []int{64, 128}, time.Hour
			rep, err := stopped(ctx, t, partnersOn(t, ends), cfg, measure.Observer{Progress: func(p measure.Progress) {
				if p.Messages > 0 && ctx.Err() == nil {
					link.Cut(nics[0][0], nics[1][0])
					link.Cut(nics[1][0], nics[0][0])
					cancel()
				}
			}})
			if err != nil || !rep.Interrupted || len(rep.Results) != 1 {
				t.Errorf("got %d rows, interrupted %t, and %v, want one row, interrupted", len(rep.Results), rep.Interrupted, err)
			}
		})
	}
}

// TestRemoteInterruptedMeeting: interrupting a client before its server is ready is not an error.
func TestRemoteInterruptedMeeting(t *testing.T) {
	t.Parallel()
	ends := partners(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ends[0].received = func(text string) string {
		if strings.Contains(text, `"kind":"start"`) {
			return ""
		}
		return text
	}
	cfg := measure.Config{Rails: 1, QPs: 2, Sizes: []int{64, 128}, Duration: time.Hour}
	rep, err := stopped(ctx, t, ends, cfg, measure.Observer{Progress: func(measure.Progress) { cancel() }})
	if err != nil || !rep.Interrupted || len(rep.Results) != 0 {
		t.Errorf("got %d rows, interrupted %t, and %v, want none, interrupted", len(rep.Results), rep.Interrupted, err)
	}
}

// TestRemoteInterruptedConnecting: an interrupted client does not wait until the next row is
// connected, and reports the rows before it.
func TestRemoteInterruptedConnecting(t *testing.T) {
	t.Parallel()
	ends := partners(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ends[0].connect = func(connecting context.Context, row int) error {
		if row == 0 {
			return nil
		}
		cancel()
		select {
		case <-connecting.Done():
			return connecting.Err()
		case <-time.After(time.Minute):
			return errors.New("nobody has ended this for a minute")
		}
	}
	rep, err := stopped(ctx, t, ends, measure.Config{Rails: 1, QPs: 2, Sizes: []int{64, 128}, Iterations: 100}, measure.Observer{})
	if err != nil || !rep.Interrupted || len(rep.Results) != 1 {
		t.Errorf("got %d rows, interrupted %t, and %v, want one row, interrupted", len(rep.Results), rep.Interrupted, err)
	}
}

// TestRemoteServerCannotInterrupt: a client measures all rows even if the server claims an
// interrupt.
func TestRemoteServerCannotInterrupt(t *testing.T) {
	ends := partners(t, 1)
	ends[0].received = strings.NewReplacer(
		`"kind":"done"`, `"kind":"done","stop":true`, `"interrupted":false`, `"interrupted":true`,
	).Replace
	cfg := measure.Config{Rails: 1, QPs: 2, Sizes: []int{64, 128, 256}, Iterations: 100}
	rep, err := stopped(t.Context(), t, ends, cfg, measure.Observer{})
	if err != nil || rep.Interrupted || len(rep.Results) != 3 {
		t.Errorf("got %d rows, interrupted %t, and %v, want 3 rows and no interruption", len(rep.Results), rep.Interrupted, err)
	}
}

// TestInterruptedSlowPath: an interrupted test does not wait until a slow path has delivered all
// messages in flight, although it makes progress. Delivered messages count; with Check, verified
// ones.
func TestInterruptedSlowPath(t *testing.T) {
	for name, tt := range map[string]struct{ remote, check bool }{
		"one process": {}, "one process, check": {check: true}, "two processes": {remote: true}, "two processes, check": {remote: true, check: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			links := enginetest.FaultLinks(t, 1, softnic.Impairment{})
			nics, ends := enginetest.OpenEnds(t, links)
			link := links[0].(*softnic.FaultLink)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			cfg := measure.Config{Rails: 1, QPs: 1, Sizes: []int{32 << 10}, TxDepth: 2048, CQMod: 1, Duration: time.Hour, Check: tt.check, Timing: measure.Timing{Drain: 20 * time.Millisecond}}
			slow, before := false, int64(0)
			o := measure.Observer{Progress: func(p measure.Progress) {
				switch {
				case p.Messages == 0 || ctx.Err() != nil:
				case slow: // the queue is full, and takes 2 s to drain
					before = p.Messages
					cancel()
				default:
					slow = true
					if err := link.Impair(nics[0][0], nics[1][0], softnic.Impairment{Rate: 32e6}); err != nil {
						t.Errorf("Impair: got %v, want no error", err)
					}
				}
			}}
			var rep measure.Report
			var err error
			if tt.remote {
				rep, err = stopped(ctx, t, partnersOn(t, ends), cfg, o)
			} else if test, bad := measure.New(ends[0], ends[1], cfg); bad != nil {
				t.Fatalf("New: got %v, want no error", bad)
			} else {
				rep, err = test.Run(ctx, o)
			}
			if err != nil || !rep.Interrupted || len(rep.Results) != 1 && !tt.check { // a row without verified messages is omitted
				t.Fatalf("got %d rows, interrupted %t, and %v, want one row, interrupted", len(rep.Results), rep.Interrupted, err)
			}
			most := int64(cfg.TxDepth / 2) // allows for messages after the last progress report and until the slow path is given up
			for _, r := range rep.Results {
				if after := r.Iterations - before; after > most {
					t.Errorf("%d messages count that came through after the end, want at most %d of %d in flight", after, most, cfg.TxDepth)
				}
			}
		})
	}
}
