package verbs_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ibverbx/verbs"
)

// scriptedCQ plays one step of its script per call of Poll and records the calls.
type scriptedCQ struct {
	polls  []poll
	onArm  func()
	armErr error
	calls  []string
}

type poll struct {
	n   int
	err error
}

func (c *scriptedCQ) Poll([]verbs.WC) (int, error) {
	c.calls = append(c.calls, "poll")
	if len(c.polls) == 0 {
		return 0, nil
	}
	p := c.polls[0]
	c.polls = c.polls[1:]
	return p.n, p.err
}

func (c *scriptedCQ) Arm(bool) error {
	c.calls = append(c.calls, "arm")
	if c.onArm != nil {
		c.onArm()
	}
	return c.armErr
}

func (c *scriptedCQ) Depth() int   { return 1 }
func (c *scriptedCQ) Close() error { return nil }

func TestWait(t *testing.T) {
	w := verbs.NewWaker()
	tests := []struct {
		name  string
		cq    scriptedCQ
		dst   int
		n     int
		err   error
		calls []string
	}{
		{"there already", scriptedCQ{polls: []poll{{2, nil}}}, 4, 2, nil, []string{"poll"}},
		{"between poll and arm", scriptedCQ{polls: []poll{{0, nil}, {1, nil}}}, 4, 1, nil, []string{"poll", "arm", "poll"}},
		{
			"after a wake-up for another CQ",
			scriptedCQ{polls: []poll{{}, {}, {}, {}, {3, nil}}, onArm: w.Wake},
			4, 3, nil,
			[]string{"poll", "arm", "poll", "poll", "arm", "poll", "poll"},
		},
		{"no room", scriptedCQ{}, 0, 0, nil, []string{"poll"}},
		{"overrun", scriptedCQ{polls: []poll{{1, verbs.ErrCQOverrun}}}, 4, 1, verbs.ErrCQOverrun, []string{"poll"}},
		{"overrun after arm", scriptedCQ{polls: []poll{{}, {0, verbs.ErrCQOverrun}}}, 4, 0, verbs.ErrCQOverrun, []string{"poll", "arm", "poll"}},
		{"cannot be armed", scriptedCQ{armErr: verbs.ErrNotSupported}, 4, 0, verbs.ErrNotSupported, []string{"poll", "arm"}},
	}
	for i := range tests {
		tt := &tests[i]
		t.Run(tt.name, func(t *testing.T) {
			n, err := verbs.Wait(t.Context(), &tt.cq, w, make([]verbs.WC, tt.dst))
			if n != tt.n || !errors.Is(err, tt.err) {
				t.Errorf("Wait = %d, %v, want %d, %v", n, err, tt.n, tt.err)
			}
			if !slices.Equal(tt.cq.calls, tt.calls) {
				t.Errorf("called %v, want %v", tt.cq.calls, tt.calls)
			}
		})
	}
}

func TestWaitContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		n, err := verbs.Wait(ctx, &scriptedCQ{}, verbs.NewWaker(), make([]verbs.WC, 1))
		if n != 0 || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait = %d, %v, want 0, %v", n, err, context.DeadlineExceeded)
		}
	})
}
