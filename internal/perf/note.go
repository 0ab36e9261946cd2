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

// noteKind is the kind of a note.
type noteKind string

// Kinds of notes.
const (
	noteStart    noteKind = "start"    // the receives are posted
	noteProgress noteKind = "progress" // the sender is alive
	noteFill     noteKind = "fill"     // fill N messages from First on with their patterns
	noteCompare  noteKind = "compare"  // compare N messages from First on
	noteAnswer   noteKind = "answer"   // to fill or compare: Text is empty, or what is wrong
	noteDone     noteKind = "done"     // N messages were sent, and no more will be
	noteOver     noteKind = "over"     // the last note of a row
)

// note is what one half tells the other during a row.
type note struct {
	Kind  noteKind `json:"kind"`
	First int64    `json:"first,omitempty"`
	N     int64    `json:"n,omitempty"`
	Text  string   `json:"text,omitempty"`
	// Stop, in a done of a client, says that the user has ended the test: the server stops sending too.
	Stop bool     `json:"stop,omitempty"`
	Over *outcome `json:"over,omitempty"`
}

// outcome is what one half found in a row.
type outcome struct {
	// Messages is how many were measured, without warm-up.
	Messages int64 `json:"messages"`
	// Elapsed is the time in which they were sent; 0 if this half measured latency.
	Elapsed time.Duration `json:"elapsed_ns"`
	// Peak is the best rate, in messages per second.
	Peak float64 `json:"peak"`
	// Latency is nil unless this half measured it.
	Latency *LatencyResult `json:"latency,omitempty"`
	// Lanes is what the lanes carried, empty if this half has sent nothing.
	Lanes []Lane `json:"lanes"`
	// Vitals are the counters of the NICs.
	Vitals vitals `json:"vitals"`
	// Interrupted means that the user has ended the test.
	Interrupted bool `json:"interrupted"`

	lost      int64 // messages that did not arrive
	histogram []Bucket
	hdr       string  // Result.HDR
	copyRate  float64 // of Go's copy in bytes per second, 0 if it was not measured
}

// check refuses a note of a partner that makes no sense.
func (n *note) check() error {
	switch {
	case n.First < 0 || n.N < 0 || n.First > math.MaxInt64-n.N || len(n.Text) > maxTextBytes:
		return fmt.Errorf("a note %q of the partner makes no sense", n.Kind)
	case (n.Over != nil) != (n.Kind == noteOver):
		return fmt.Errorf("a note %q of the partner lacks its result, or has one too early", n.Kind)
	case n.Stop && n.Kind != noteDone:
		return fmt.Errorf("a note %q of the partner cannot end the test", n.Kind)
	case n.Over != nil && (n.Over.Messages < 0 || n.Over.Elapsed < 0 || n.Over.Peak < 0 || len(n.Over.Lanes) > maxLanes+2):
		return errors.New("the partner's result makes no sense")
	}
	if n.Over != nil {
		if err := n.Over.Vitals.check(); err != nil {
			return err
		}
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

// check refuses a lane of a partner that makes no sense. Lanes are printed. Paths and health are not sent
// with them.
func (l *Lane) check(i int) error {
	if l.Lane != i || l.Rail < 0 || l.Rail >= ibverbx.MaxRails || l.QPN >= 1<<24 || len(l.Paths) > 0 || l.Health != nil || (l.Role != "data" && l.Role != "message" && l.Role != "notify") {
		return fmt.Errorf("the partner's result has an impossible lane %d", i)
	}
	return nil
}

// say sends a value to the partner.
func say(ctx context.Context, p Partner, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return p.Send(ctx, b)
}

// brief cuts a text to what a note may hold. JSON holds UTF-8 only, so anything else is left
// out, as is a letter that was cut in two.
func brief(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxTextBytes)], "") }
