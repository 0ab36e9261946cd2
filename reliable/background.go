package reliable

import (
	"context"
	"sync"
	"time"

	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// backgroundLoop is the goroutine of an engine. It steps the engine while the program neither posts nor
// polls. It sleeps until a completion arrives or a timer is due.
type backgroundLoop struct {
	engine *engine            // the engine to step
	waker  *verbs.Waker       // woken by completions, events, the timer and kick
	timer  *time.Timer        // wakes the waker when a timer of the engine expires
	ctx    context.Context    // canceled by stop
	cancel context.CancelFunc // cancels ctx
	done   sync.WaitGroup     // waits for the goroutine
}

// startBackground starts the background loop of the engine. waker wakes it.
func (e *engine) startBackground(waker *verbs.Waker) {
	b := &backgroundLoop{engine: e, waker: waker, timer: time.AfterFunc(time.Hour, waker.Wake)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	e.background = b
	b.done.Go(b.run)
}

func (b *backgroundLoop) run() {
	for {
		if next := b.engine.step(); next != core.Never {
			b.timer.Reset(time.Duration(max(next-b.engine.ctx.clock(), 0)))
		}
		if b.waker.Wait(b.ctx) != nil {
			return
		}
	}
}

// stop stops the goroutine and waits for it. The caller must not hold the engine's lock.
func (b *backgroundLoop) stop() {
	b.cancel()
	b.done.Wait()
	b.timer.Stop()
}

// wake makes the goroutine step the engine.
func (b *backgroundLoop) wake() {
	if b != nil {
		b.waker.Wake()
	}
}
