package reliable

import (
	"context"
	"sync"
	"time"

	"ibverbx/verbs"
)

// keeper is the goroutine of a wrapped context. It runs Step while the program neither posts nor
// polls. It sleeps until a completion arrives or a timer is due.
type keeper struct {
	ctx    *pathContext       // the context that the keeper steps
	waker  *verbs.Waker       // woken by completions, events, the timer and kick
	timer  *time.Timer        // wakes the waker when a timer of the context is due
	ending context.Context    // ends when stop is called
	end    context.CancelFunc // cancels ending
	done   sync.WaitGroup     // waits for the goroutine
}

// startKeeper starts the keeper of the context. waker wakes it.
func (ctx *pathContext) startKeeper(waker *verbs.Waker) {
	k := &keeper{ctx: ctx, waker: waker, timer: time.AfterFunc(time.Hour, waker.Wake)}
	k.ending, k.end = context.WithCancel(context.Background())
	ctx.keeper = k
	k.done.Go(k.run)
}

func (k *keeper) run() {
	for {
		next, pending := k.ctx.Step()
		if pending {
			k.timer.Reset(time.Duration(max(next-k.ctx.clock(), 0)))
		}
		if k.waker.Wait(k.ending) != nil {
			return
		}
	}
}

// stop ends the goroutine and waits for it. The caller must not hold the lock of the context.
func (k *keeper) stop() {
	k.end()
	k.done.Wait()
	k.timer.Stop()
}

// kick makes the goroutine run Step.
func (k *keeper) kick() {
	if k != nil {
		k.waker.Wake()
	}
}
