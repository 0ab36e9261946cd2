package measure

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"ibverbx"
)

// decode decodes a message like recvMessage.
func decode(b []byte, v any) error { return recvMessage(context.Background(), sentMessage{b: b}, v) }

// sentMessage is a Peer that has sent one message.
type sentMessage struct {
	Peer
	b []byte
}

func (s sentMessage) Recv(context.Context) ([]byte, error) { return s.b, nil }

// A text is truncated between characters: half a character would be rejected.
func TestBriefText(t *testing.T) {
	for _, text := range []string{"short", strings.Repeat("x", maxText-1) + "é and more", "\xff broken"} {
		b, err := json.Marshal(&controlMessage{Kind: kindAnswer, Text: brief(errors.New(text))})
		if err != nil {
			t.Fatalf("Marshal: got %v, want no error", err)
		}
		var n controlMessage
		if err := decode(b, &n); err != nil || n.check() != nil || n.Text == "" {
			t.Errorf("%.20q: got %q, %v and %v, want a message that the remote side accepts", text, n.Text, err, n.check())
		}
	}
}

// Any input from the remote side is either rejected or valid.
func FuzzControlMessage(f *testing.F) {
	for _, v := range []any{
		&controlMessage{Kind: kindStart}, &controlMessage{Kind: kindCompare, First: 3, N: 4}, &controlMessage{Kind: kindDone, N: 4, Stop: true}, &controlMessage{Kind: kindOver, Over: &Outcome{Messages: 5, Lanes: []Lane{{Role: "data"}}}},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatalf("Marshal: got %v, want no error", err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var n controlMessage
		if decode(b, &n) == nil && n.check() == nil && (n.First < 0 || n.N < 0 || n.First+n.N < 0) {
			t.Errorf("%s is taken, and makes no sense", b)
		}
	})
}

// The remote side's result is printed, so it must be harmless.
func TestControlMessagesRefused(t *testing.T) {
	good := controlMessage{Kind: kindOver, Over: &Outcome{Messages: 5, Lanes: []Lane{{Role: "data"}, {Lane: 1, Role: "message"}}}}
	if err := good.check(); err != nil {
		t.Errorf("a good message: got %v, want no error", err)
	}
	for name, n := range map[string]controlMessage{
		"an unknown kind":     {Kind: "jump"},
		"over without result": {Kind: kindOver},
		"a result too early":  {Kind: kindDone, Over: &Outcome{}},
		"less than nothing":   {Kind: kindDone, N: -1},
		"more than there is":  {Kind: kindCompare, First: 1 << 62, N: 1 << 62},
		"an end too early":    {Kind: kindStart, Stop: true},
		"a role":              {Kind: kindOver, Over: &Outcome{Lanes: []Lane{{Role: "\x1b[2J"}}}},
		"a lane":              {Kind: kindOver, Over: &Outcome{Lanes: []Lane{{Lane: 7, Role: "data"}}}},
		"paths":               {Kind: kindOver, Over: &Outcome{Lanes: []Lane{{Role: "data", Paths: make([]Path, 1)}}}},
		"a rail":              {Kind: kindOver, Over: &Outcome{Lanes: []Lane{{Rail: 8, Role: "data"}}}},
		"a time":              {Kind: kindOver, Over: &Outcome{Elapsed: -1}},
	} {
		if err := n.check(); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}

// TestHealthRefused: the remote side cannot send counters for more rails or lanes than possible.
func TestHealthRefused(t *testing.T) {
	for _, o := range []Outcome{{Rails: make([]Rail, ibverbx.MaxRails+1)}, {Lanes: make([]Lane, MaxLanes+3)}} {
		m := controlMessage{Kind: kindOver, Over: &o}
		if err := m.check(); err == nil {
			t.Errorf("counters of %d rails and %d lanes are accepted, want an error", len(o.Rails), len(o.Lanes))
		}
	}
}
