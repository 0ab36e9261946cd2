package reliable

import (
	"context"
	"sync"
	"time"

	"ibverbx/verbs"
)

// keeper is the goroutine of a wrapped context: it does what is due while nobody posts or
// polls. It sleeps until a completion comes or a timer is due.
type keeper struct {
	d     *device
	waker *verbs.Waker
	timer *time.Timer
	ctx   context.Context
	stop  context.CancelFunc
	done  sync.WaitGroup
}

// monotonic returns a clock that counts from now, in nanoseconds.
func monotonic() func() int64 {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) + 1 }
}

func newKeeper(d *device, w *verbs.Waker) *keeper {
	k := &keeper{d: d, waker: w}
	k.ctx, k.stop = context.WithCancel(context.Background())
	return k
}

func (k *keeper) start() {
	k.timer = time.AfterFunc(time.Hour, k.waker.Wake)
	k.done.Add(1)
	go k.run()
}

func (k *keeper) run() {
	defer k.done.Done()
	for {
		next, pending := k.d.Step()
		if pending {
			k.timer.Reset(time.Duration(max(next-k.d.clock(), 0)))
		}
		if k.waker.Wait(k.ctx) != nil {
			return
		}
	}
}

// end stops the goroutine and waits for it. The lock of the device must not be held.
func (k *keeper) end() {
	k.stop()
	k.done.Wait()
	k.timer.Stop()
}

// kick makes the goroutine look at the timers again.
func (k *keeper) kick() {
	if k != nil {
		k.waker.Wake()
	}
}
