package reliable

import (
	"context"
	"sync"
	"time"

	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// keeper is the goroutine of an engine. It steps the engine while the program neither posts nor
// polls. It sleeps until a completion arrives or a timer is due.
type keeper struct {
	engine *engine            // the engine that the keeper steps
	waker  *verbs.Waker       // woken by completions, events, the timer and kick
	timer  *time.Timer        // wakes the waker when a timer of the engine is due
	ending context.Context    // ends when stop is called
	end    context.CancelFunc // cancels ending
	done   sync.WaitGroup     // waits for the goroutine
}

// startKeeper starts the keeper of the engine. waker wakes it.
func (e *engine) startKeeper(waker *verbs.Waker) {
	k := &keeper{engine: e, waker: waker, timer: time.AfterFunc(time.Hour, waker.Wake)}
	k.ending, k.end = context.WithCancel(context.Background())
	e.keeper = k
	k.done.Go(k.run)
}

func (k *keeper) run() {
	for {
		if next := k.engine.step(); next != core.Never {
			k.timer.Reset(time.Duration(max(next-k.engine.ctx.clock(), 0)))
		}
		if k.waker.Wait(k.ending) != nil {
			return
		}
	}
}

// stop ends the goroutine and waits for it. The caller must not hold the lock of the engine.
func (k *keeper) stop() {
	k.end()
	k.done.Wait()
	k.timer.Stop()
}

// kick makes the goroutine step the engine.
func (k *keeper) kick() {
	if k != nil {
		k.waker.Wake()
	}
}
