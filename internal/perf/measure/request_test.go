package measure

import (
	"encoding/json"
	"strings"
	"testing"

	"ibverbx/peer"
)

// FuzzRequest: any description of a test or a host is either rejected or valid.
func FuzzRequest(f *testing.F) {
	soft0 := host{Devices: []string{"soft0"}, Reads: 16}
	for _, v := range []any{
		requestOf(&Config{Op: Write, Mode: Bandwidth, Iterations: 5, Rails: 2, QPs: 8, Impair: []peer.Impair{{Rail: 1, Loss: 0.01}}}, []int{8, 64}, soft0),
		soft0,
	} {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatalf("Marshal: got %v, want no error", err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h host
		if decode(b, &h) == nil {
			_ = h.check()
		}
		var q request
		if decode(b, &q) != nil {
			return
		}
		c, err := q.config(&Config{})
		if err != nil {
			return
		}
		for _, size := range c.Sizes {
			p := newPlan(&c, size, MaxRequests)
			if n := max(p.sideBytes(0), p.sideBytes(1)); n > maxBytes || n < 0 || p.requests() > MaxRequests {
				t.Errorf("%s makes a side of %d bytes with %d requests in flight", b, n, p.requests())
			}
		}
	})
}

// A host's description is printed, so it must be harmless.
func TestHostRefused(t *testing.T) {
	for name, h := range map[string]host{
		"no device": {}, "a device in a note to wait": {Devices: []string{"a"}, Ahead: 1}, "less than nobody ahead": {Ahead: -1}, "too many ahead": {Ahead: maxAhead + 1}, "a device": {Devices: []string{"a\x1bb"}}, "a long device": {Devices: []string{string(make([]byte, 65))}}, "nine": {Devices: make([]string, 9)},
	} {
		if err := h.check(); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
}

// A client's request names the client's memory in its host. A server ignores a client's setting of the
// server's memory.
func TestRequestMemory(t *testing.T) {
	c, err := Config{Memory: [2]Memory{{Device: "cuda:0"}}}.Complete()
	if err != nil {
		t.Fatalf("Complete: got %v, want no error", err)
	}
	b, err := json.Marshal(requestOf(&c, []int{8}, host{}))
	if err != nil || strings.Contains(string(b), "memory") {
		t.Fatalf("the request is %s (%v), want no memory", b, err)
	}
	q := requestOf(&c, []int{8}, host{Devices: []string{"soft0"}, Memory: "cuda:0"})
	q.Op, q.Memory = Atomic, [2]Memory{{}, {Device: "cuda:0"}}
	if got, err := q.config(&Config{}); err != nil || got.Memory[0].Device != "cuda:0" || got.Memory[1].Device != "" {
		t.Errorf("the Config has memory %v (%v), want cuda:0 and that of the host", got.Memory, err)
	}
}
