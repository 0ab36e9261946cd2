package perf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"ibverbx"
)

// noteKind says what one end tells the other during a row.
type noteKind string

const (
	noteStart    noteKind = "start"    // its receives are posted
	noteProgress noteKind = "progress" // it is still at it
	noteFill     noteKind = "fill"     // make N messages from First on recognisable
	noteCompare  noteKind = "compare"  // compare N messages from First on
	noteAnswer   noteKind = "answer"   // to fill or compare: Text is empty, or what is wrong
	noteDone     noteKind = "done"     // it has sent N messages, and will send no more
	noteOver     noteKind = "over"     // nothing is left to do in this row
)

// note is what one end tells the other during a row.
type note struct {
	Kind  noteKind `json:"kind"`
	First int64    `json:"first,omitempty"`
	N     int64    `json:"n,omitempty"`
	Text  string   `json:"text,omitempty"`
	Over  *over    `json:"over,omitempty"`
}

// over is what one end measured in a row.
type over struct {
	// Messages were sent in Elapsed, without warm-up, Peak of them per second at the best.
	Messages int64         `json:"messages"`
	Elapsed  time.Duration `json:"elapsed_ns"`
	Peak     float64       `json:"peak"`
	// Latency is there if this end measured it.
	Latency *LatencyResult `json:"latency,omitempty"`
	// Lanes is what the lanes did, if this end has sent anything.
	Lanes       []Lane `json:"lanes"`
	Interrupted bool   `json:"interrupted"`
}

// check says what in a note of a partner cannot be.
func (n *note) check() error {
	switch {
	case n.First < 0 || n.N < 0 || n.First > math.MaxInt64-n.N || len(n.Text) > maxTextBytes:
		return fmt.Errorf("a note %q of the partner makes no sense", n.Kind)
	case (n.Over != nil) != (n.Kind == noteOver):
		return fmt.Errorf("a note %q of the partner lacks what it must say", n.Kind)
	case n.Over != nil && (n.Over.Messages < 0 || n.Over.Elapsed < 0 || n.Over.Peak < 0 || len(n.Over.Lanes) > maxLanes+2):
		return errors.New("the partner's result makes no sense")
	}
	if n.Over != nil {
		for i := range n.Over.Lanes {
			if err := n.Over.Lanes[i].check(i); err != nil {
				return err
			}
		}
	}
	switch n.Kind {
	case noteStart, noteProgress, noteFill, noteCompare, noteAnswer, noteDone, noteOver:
		return nil
	}
	return fmt.Errorf("there is no note %.32q", n.Kind)
}

// check says what in a lane of a partner cannot be: it is printed.
func (l *Lane) check(i int) error {
	if l.Lane != i || l.Rail < 0 || l.Rail >= ibverbx.MaxRails || l.QPN >= 1<<24 || (l.Role != "data" && l.Role != "message" && l.Role != "notify") {
		return fmt.Errorf("the partner's result has a lane %d that cannot be", i)
	}
	return nil
}

// heard is a note of the partner, or why none will come.
type heard struct {
	note
	err error
}

// notes takes what the partner says during a row. Its goroutine ends with the partner's
// last note of the row, or with ctx.
type notes struct {
	partner Partner
	ch      chan heard
	ended   chan struct{}
}

func newNotes(ctx context.Context, p Partner) *notes {
	n := &notes{partner: p, ch: make(chan heard, 64), ended: make(chan struct{})}
	go n.listen(ctx)
	return n
}

func (n *notes) listen(ctx context.Context) {
	defer close(n.ended)
	for {
		var h heard
		b, err := n.partner.Recv(ctx)
		if err == nil {
			err = decodeNote(b, &h.note)
		}
		if err == nil {
			err = h.check()
		}
		h.err = err
		select {
		case n.ch <- h:
		case <-ctx.Done():
			return
		}
		if h.err != nil || h.Kind == noteOver {
			return
		}
	}
}

// say tells the partner something.
func say(ctx context.Context, p Partner, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return p.Send(ctx, b)
}

// brief cuts a text to what a note may hold. JSON holds UTF-8 only: what is none, or no
// longer whole, is left out.
func brief(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxTextBytes)], "") }
