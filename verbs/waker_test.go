package verbs_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx/verbs"
)

func TestWakerToken(t *testing.T) {
	w := verbs.NewWaker()
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.Wait(done); !errors.Is(err, context.Canceled) {
		t.Fatalf("Wait without a token on a finished context = %v, want %v", err, context.Canceled)
	}
	// A Wake before a Wait is kept, and several count as one. Wait consumes a token even if the
	// context is done: the wake-up was first.
	w.Wake()
	w.Wake()
	w.Wake()
	if err := w.Wait(done); err != nil {
		t.Fatalf("Wait after three Wakes = %v, want nil", err)
	}
	if err := w.Wait(done); !errors.Is(err, context.Canceled) {
		t.Fatalf("second Wait after three Wakes = %v, want %v", err, context.Canceled)
	}
}

func TestWakerSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := verbs.NewWaker()
		var woken atomic.Bool
		go func() {
			if err := w.Wait(t.Context()); err != nil {
				t.Errorf("Wait = %v", err)
			}
			woken.Store(true)
		}()
		synctest.Wait()
		if woken.Load() {
			t.Fatal("Wait returned without a Wake")
		}
		w.Wake()
		synctest.Wait()
		if !woken.Load() {
			t.Fatal("Wait still sleeps after Wake")
		}
	})
}

func TestWakerContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := verbs.NewWaker()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := w.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait = %v, want %v", err, context.DeadlineExceeded)
		}
		if slept := time.Since(start); slept != time.Second {
			t.Errorf("Wait slept %v, want 1s", slept)
		}
		// A late token is consumed by the next Wait.
		w.Wake()
		if err := w.Wait(t.Context()); err != nil {
			t.Errorf("Wait = %v", err)
		}
	})
}

// No wake-up is lost: a waiter that reads a counter after each Wait sees every
// increment that preceded a Wake.
func TestWakerLosesNothing(t *testing.T) {
	const wakers, rounds = 16, 500
	w := verbs.NewWaker()
	var count atomic.Int64
	var wg sync.WaitGroup
	for range wakers {
		wg.Go(func() {
			for range rounds {
				count.Add(1)
				w.Wake()
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for count.Load() < wakers*rounds {
		if err := w.Wait(ctx); err != nil {
			t.Fatalf("slept with %d of %d counted: %v", count.Load(), wakers*rounds, err)
		}
	}
	wg.Wait()
}

// Wake happens before the return of the Wait that consumes its token. Otherwise the race detector
// would report the plain variable.
func TestWakerOrders(t *testing.T) {
	ping, pong := verbs.NewWaker(), verbs.NewWaker()
	shared := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 100 {
			if err := ping.Wait(context.Background()); err != nil {
				t.Errorf("Wait = %v", err)
			}
			shared++
			pong.Wake()
		}
	})
	for i := range 100 {
		shared++
		ping.Wake()
		if err := pong.Wait(context.Background()); err != nil {
			t.Fatalf("Wait = %v", err)
		}
		if want := 2 * (i + 1); shared != want {
			t.Fatalf("shared = %d, want %d", shared, want)
		}
	}
	wg.Wait()
}

func TestWakerAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := verbs.NewWaker()
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() { w.Wake(); _ = w.Wait(ctx) }); n != 0 {
		t.Errorf("Wake and Wait allocate %v times", n)
	}
}

// TestWakerFunc: Wake calls the function instead of adding a token.
func TestWakerFunc(t *testing.T) {
	calls := 0
	w := verbs.NewWakerFunc(func() { calls++ })
	w.Wake()
	w.Wake()
	if calls != 2 {
		t.Errorf("two Wakes called the function %d times", calls)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Wait(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait = %v, want %v: there is no token", err, context.Canceled)
	}
}

// TestWakerSleep: Sleep returns after a Wake, after its limit, and with the error of a finished context.
func TestWakerSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := verbs.NewWaker()
		for _, limit := range []time.Duration{time.Second, time.Minute} { // the second one reuses the timer
			start := time.Now()
			if err := w.Sleep(t.Context(), limit); err != nil || time.Since(start) != limit {
				t.Errorf("Sleep(%v) = %v after %v", limit, err, time.Since(start))
			}
			w.Wake()
			start = time.Now()
			if err := w.Sleep(t.Context(), limit); err != nil || time.Since(start) != 0 {
				t.Errorf("Sleep(%v) after a Wake = %v after %v", limit, err, time.Since(start))
			}
		}
		time.AfterFunc(time.Second, w.Wake)
		start := time.Now()
		if err := w.Sleep(t.Context(), math.MaxInt64); err != nil || time.Since(start) != time.Second {
			t.Errorf("Sleep without a limit = %v after %v, want nil after 1s", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Sleep(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Sleep = %v, want %v", err, context.DeadlineExceeded)
		}
	})
}
