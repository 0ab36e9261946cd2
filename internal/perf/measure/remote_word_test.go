package measure_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/perf/measure"
)

// A client interrupted between two rows notifies the server, and both reports show it.
func TestRemoteInterruptedBetweenRows(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := measure.Config{Rails: 1, QPs: 2, Sizes: []int{64, 128, 256}, Iterations: 100}
	client, server := observed(ctx, partners(t, 1), cfg, measure.Config{}, measure.Observer{Result: func(measure.Result) { cancel() }})
	for _, o := range []outcome{client, server} {
		if o.err != nil || !o.report.Interrupted || len(o.report.Results) == 3 {
			t.Errorf("%s: got %d rows, interrupted %t, and %v, want fewer than 3, interrupted", o.report.Role, len(o.report.Results), o.report.Interrupted, o.err)
		}
	}
}

// An accepted client that never sends a request does not block the others forever.
func TestRemoteSilentClient(t *testing.T) {
	ends := partners(t, 1)
	_, err := measure.NewServer(t.Context(), ends[1], measure.Config{Timing: measure.Timing{Request: 50 * time.Millisecond}})
	if err == nil || !strings.Contains(err.Error(), "timed out after 50ms waiting") {
		t.Errorf("got %v, want that the client is not waited for", err)
	}
}

// If the server gives up, the client reports the server's reason, whether it first notices the
// closed VirtualQP or the closed connection.
func TestRemoteSaysWhy(t *testing.T) {
	ends := partners(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		r, err := measure.NewServer(ctx, ends[1], measure.Config{})
		if err == nil {
			_, err = r.Run(ctx, measure.Observer{})
		}
		_ = ends[1].conn.CloseWith("no more today")
		done <- err
	}()
	r, err := measure.NewClient(t.Context(), ends[0], measure.Config{Rails: 1, QPs: 2, Sizes: []int{4096}, Duration: time.Hour})
	if err == nil {
		_, err = r.Run(t.Context(), measure.Observer{Progress: func(p measure.Progress) {
			if p.Done > 0 {
				cancel()
			}
		}})
	}
	if served := <-done; served == nil || err == nil || !strings.Contains(err.Error(), "no more today") {
		t.Errorf("the server ended in %v and the client in %v, want what the server said in both", served, err)
	}
}
