package transfer

import (
	"context"
	"testing"
)

// TestNoAllocations: a transfer allocates only its handle.
func TestNoAllocations(t *testing.T) {
	if testing.CoverMode() != "" || raceEnabled {
		t.Skip("instrumented code allocates")
	}
	p := newPair(t, memoryNetwork(1), 1<<20)
	ctx := context.Background()
	body := make([]byte, 100)
	batch := p.peer.Batch()
	check := func(name string, want float64, f func() *Transfer) {
		t.Helper()
		run := func() {
			if err := f().Wait(ctx); err != nil {
				t.Fatalf("%s: got %v, want no error", name, err)
			}
		}
		for range 1000 {
			run()
		}
		if got := testing.AllocsPerRun(1000, run); got > want {
			t.Errorf("%s: %v allocations, want at most %v", name, got, want)
		}
	}
	check("Put", 1, func() *Transfer { return p.peer.Put(ctx, p.remote.At(0), p.local.Slice(0, 8)) })
	check("Get", 1, func() *Transfer { return p.peer.Get(ctx, p.local.Slice(0, 4096), p.remote.At(0)) })
	check("Batch", 1, func() *Transfer {
		for i := range int64(64) {
			batch.Put(p.remote.At(i*8192), p.local.Slice(i*8192, 4096))
		}
		return batch.Submit(ctx)
	})
	done := make(chan struct{})
	go func() { // the receiver allocates the body
		defer close(done)
		for range p.there.Notifications(ctx) {
		}
	}()
	check("Notify", 2, func() *Transfer {
		return batch.Put(p.remote.At(0), p.local.Slice(0, 8)).Notify(body).Submit(ctx)
	})
	p.there.stop()
	<-done
}
