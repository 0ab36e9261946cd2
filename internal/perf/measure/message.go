package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"ibverbx"
	"ibverbx/internal/strictjson"
)

// Message limits.
const (
	maxWire = 1 << 20 // bytes
	// maxText limits the text of an error, in bytes.
	maxText = 512
	// maxHealthLanes is the maximum number of lanes with transmitted counters. More would not fit
	// in a message.
	maxHealthLanes = 512
)

// messageKind is the kind of a control message.
type messageKind string

// Kinds of control messages.
const (
	kindStart   messageKind = "start"   // the receives are posted
	kindFill    messageKind = "fill"    // fill N messages from First on with their patterns
	kindCompare messageKind = "compare" // compare N messages from First on
	kindAnswer  messageKind = "answer"  // to fill or compare: Text is empty, or the error
	kindDone    messageKind = "done"    // N messages were sent; sending is finished
	kindOver    messageKind = "over"    // the last message of a run
)

// controlMessage is a message between the sides of a run.
type controlMessage struct {
	Kind  messageKind `json:"kind"`
	First int64       `json:"first,omitempty"`
	N     int64       `json:"n,omitempty"`
	Text  string      `json:"text,omitempty"`
	// Stop, in a client's done, means that the user has stopped the test: the server stops sending too.
	Stop bool     `json:"stop,omitempty"`
	Over *Outcome `json:"over,omitempty"`
}

// check rejects an invalid message from the remote side.
func (m *controlMessage) check() error {
	switch m.Kind {
	case kindStart, kindFill, kindCompare, kindAnswer, kindDone, kindOver:
	default:
		return fmt.Errorf("unknown control message %.32q", m.Kind)
	}
	switch {
	case m.First < 0 || m.N < 0 || m.First > math.MaxInt64-m.N || len(m.Text) > maxText:
		return fmt.Errorf("control message %q has invalid values", m.Kind)
	case (m.Over != nil) != (m.Kind == kindOver):
		return fmt.Errorf("control message %q lacks its result, or has one too early", m.Kind)
	case m.Stop && m.Kind != kindDone:
		return fmt.Errorf("control message %q cannot stop the test", m.Kind)
	case m.Over != nil:
		return checkOutcome(m.Over)
	}
	return nil
}

// checkOutcome rejects an invalid result from the remote side. Lanes are checked because they are
// printed; they must not include paths.
func checkOutcome(o *Outcome) error {
	if o.Messages < 0 || o.Elapsed < 0 || o.Peak < 0 || len(o.Lanes) > MaxLanes+2 {
		return errors.New("the remote side's result has invalid values")
	}
	if len(o.Rails) > ibverbx.MaxRails {
		return fmt.Errorf("the remote side's result has counters of %d rails", len(o.Rails))
	}
	for i := range o.Lanes {
		l := &o.Lanes[i]
		role := l.Role == "data" || l.Role == "message" || l.Role == "notify"
		if l.Lane != i || l.Rail < 0 || l.Rail >= ibverbx.MaxRails || l.QPN >= 1<<24 || len(l.Paths) > 0 || !role {
			return fmt.Errorf("the remote side's result has an impossible lane %d", i)
		}
	}
	return nil
}

// sendMessage sends a value to the remote side.
func sendMessage(ctx context.Context, to Peer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return to.Send(ctx, b)
}

// recvMessage receives a value and decodes it strictly.
func recvMessage(ctx context.Context, from Peer, v any) error {
	b, err := from.Recv(ctx)
	if err != nil {
		return err
	}
	if err := strictjson.Decode(b, maxWire, v); err != nil {
		return fmt.Errorf("from the remote side: %w", err)
	}
	return nil
}

// Brief returns the text of err, empty for nil, truncated to maxText bytes. Invalid UTF-8,
// including a truncated last character, is removed because JSON requires UTF-8.
func brief(err error) string {
	if err == nil {
		return ""
	}
	s := err.Error()
	return strings.ToValidUTF8(s[:min(len(s), maxText)], "")
}
