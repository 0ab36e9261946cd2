package remote

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
)

// sentMessage is a Remote that has sent one message.
type sentMessage struct {
	Remote
	b []byte
}

func (s sentMessage) Recv(context.Context) ([]byte, error) { return s.b, nil }

// FuzzSpec: any description of a test or a host is either rejected or valid.
func FuzzSpec(f *testing.F) {
	for _, v := range []any{
		specOf(&measure.Config{Op: measure.Write, Mode: measure.Bandwidth, Iterations: 5, Rails: 2, QPs: 8, Impair: []peer.Impair{{Rail: 1, Loss: 0.01}}}, []int{8, 64}),
		measure.Host{Devices: []string{"soft0"}, Reads: 16},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatalf("Marshal: got %v, want no error", err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h measure.Host
		if measure.RecvMessage(t.Context(), sentMessage{b: b}, &h) == nil {
			_ = checkHost(&h)
		}
		var s spec
		if measure.RecvMessage(t.Context(), sentMessage{b: b}, &s) != nil {
			return
		}
		c, err := s.config([2]measure.Memory{})
		if err != nil {
			return
		}
		for _, size := range c.Sizes {
			client, requests := c.Footprint(0, size)
			server, _ := c.Footprint(1, size)
			if n := max(client, server); n > maxBytes || n < 0 || requests > measure.MaxRequests {
				t.Errorf("%s makes a side of %d bytes with %d requests in flight", b, n, requests)
			}
		}
	})
}

// A host's description is printed, so it must be harmless.
func TestHostRefused(t *testing.T) {
	for name, h := range map[string]measure.Host{
		"no device": {}, "a device in a note to wait": {Devices: []string{"a"}, Ahead: 1}, "less than nobody ahead": {Ahead: -1}, "too many ahead": {Ahead: maxAhead + 1}, "a device": {Devices: []string{"a\x1bb"}}, "a long device": {Devices: []string{string(make([]byte, 65))}}, "nine": {Devices: make([]string, 9)},
	} {
		if err := checkHost(&h); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}

// A client's request omits its memory, which older servers do not support. A server ignores a
// client's setting of the server's memory.
func TestSpecWithoutMemory(t *testing.T) {
	c, err := measure.Config{Memory: [2]measure.Memory{{Device: "cuda:0"}}}.Complete()
	if err != nil {
		t.Fatalf("Complete: got %v, want no error", err)
	}
	b, err := json.Marshal(specOf(&c, []int{8}))
	if err != nil || strings.Contains(string(b), "memory") {
		t.Fatalf("the spec is %s (%v), want no memory", b, err)
	}
	s := specOf(&c, []int{8})
	s.Op, s.Memory = measure.Atomic, [2]measure.Memory{{}, {Device: "cuda:0"}}
	if got, err := s.config([2]measure.Memory{}); err != nil || got.Memory[0].Device+got.Memory[1].Device != "" {
		t.Errorf("the Config has memory %v (%v), want that of the host", got.Memory, err)
	}
}
