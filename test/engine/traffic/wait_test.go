package traffic_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/nullnic"
	"ibverbx/verbs"
)

// TestWaitAndServe: one side sleeps in Serve, the other sends and sleeps in Wait. Every message is
// notified once, and neither side sleeps forever.
func TestWaitAndServe(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		t.Run(scheme.String(), func(t *testing.T) {
			a, b := enginetest.NewPair(t, enginetest.MemoryLinks(2), ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 1000})
			local, remote := a.Region(5000), b.Region(5000)
			const messages = 300
			if n, err := b.QP.PostRecv(make([]ibverbx.RecvWR, 200)); n != 200 || err != nil {
				t.Fatal(n, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			delivered, ended := 0, make(chan error, 1)
			go func() {
				ended <- b.CQ.Serve(ctx, func(wc ibverbx.WC) {
					if err := wc.Err(); err != nil {
						t.Error(err)
					}
					if delivered++; delivered <= messages-200 {
						if _, err := b.QP.PostRecv([]ibverbx.RecvWR{{}}); err != nil {
							t.Error(err)
						}
					}
					if delivered == messages {
						cancel()
					}
				})
			}()
			wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote()}
			wr.SetSGE(local.SGE(0, 5000))
			wcs := make([]ibverbx.WC, 4)
			for range messages {
				if _, err := a.QP.PostSend([]ibverbx.SendWR{wr}); err != nil {
					t.Fatal(err)
				}
				if n, err := a.CQ.Wait(t.Context(), wcs); n != 1 || err != nil || wcs[0].Err() != nil {
					t.Fatal(n, err, wcs[0].Err())
				}
			}
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("Serve = %v after %d of %d messages, want %v", err, delivered, messages, context.Canceled)
			}
		})
	}
}

// TestWaitEnds: Wait without a Waker is refused, and Wait returns when its context is done.
func TestWaitEnds(t *testing.T) {
	rails, err := ibverbx.NewRails(ibverbx.RailConfig{Context: nullnic.New("null0", 0x11)})
	enginetest.Must(t, err)
	silent, err := rails.NewCQ(ibverbx.CQConfig{})
	enginetest.Must(t, err)
	if _, err := silent.Wait(t.Context(), make([]ibverbx.WC, 1)); !errors.Is(err, verbs.ErrNotSupported) {
		t.Errorf("Wait without a Waker = %v, want %v", err, verbs.ErrNotSupported)
	}
	cq, err := rails.NewCQ(ibverbx.CQConfig{Waker: verbs.NewWaker()})
	enginetest.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := cq.Wait(ctx, make([]ibverbx.WC, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait with an ended context = %v, want %v", err, context.Canceled)
	}
}
