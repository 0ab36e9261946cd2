package measure

import (
	"strings"
	"testing"
	"time"
)

// TestParseImpair: String returns text that parses to the same value; invalid input is rejected
// with a reason.
func TestParseImpair(t *testing.T) {
	for text, want := range map[string]Impair{
		"rail=1,loss=1%,delay=1ms":          {Rail: 1, Loss: 0.01, Delay: time.Millisecond},
		"loss=0.005":                        {Rail: -1, Loss: 0.005},
		" rail=0, jitter=2s ,rate=100MiB":   {Rail: 0, Jitter: 2 * time.Second, Rate: 100 << 20},
		"duplicate=1%,reorder=2%,corrupt=1": {Rail: -1, Duplicate: 0.01, Reorder: 0.02, Corrupt: 1},
	} {
		got, err := ParseImpair(text)
		if err != nil || got != want {
			t.Errorf("ParseImpair(%q) = %+v, %v, want %+v", text, got, err, want)
		}
		if again, err := ParseImpair(got.String()); err != nil || again != want {
			t.Errorf("ParseImpair(%q) = %+v, %v, want %+v", got.String(), again, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "use rail, loss", "rail=1": "does nothing", "rail=x,loss=1%": "number of a rail", "rail=-1,loss=1%": "number of a rail",
		"loss=101%": "part of the packets", "loss=-1": "part of the packets", "loss=NaN": "part of the packets", "loss": "part of the packets",
		"delay=1": "such as 1ms", "delay=-1ms": "such as 1ms", "jitter=11s": "up to 10s", "rate=x": "bytes per second",
		"loss=1%,loss=2%": "twice", "lose=1%": "use rail, loss",
	} {
		if got, err := ParseImpair(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseImpair(%q) = %+v, %v, want an error that says %q", text, got, err, want)
		}
	}
}

// TestImpairRefused: a server rejects impairments that an honest client cannot send.
func TestImpairRefused(t *testing.T) {
	for name, list := range map[string][]Impair{
		"no such rail": {{Rail: 2, Loss: 0.1}}, "a negative rail": {{Rail: -2, Loss: 0.1}}, "a probability": {{Rail: 0, Corrupt: 2}},
		"a long time": {{Rail: 0, Delay: time.Hour}}, "a negative time": {{Rail: 0, Jitter: -1}}, "a rate": {{Rail: 0, Rate: -1}},
		"twice": {{Rail: 0, Loss: 0.1}, {Rail: 0, Delay: 1}}, "too many": make([]Impair, 100),
	} {
		if _, err := (Config{Rails: 2, Impair: list}).Complete(); err == nil || !strings.Contains(err.Error(), "--impair") {
			t.Errorf("%s: got %v, want it refused", name, err)
		}
	}
	if _, err := (Config{Rails: 2, Impair: []Impair{{Rail: -1, Loss: 0.1}, {Rail: 1, Rate: 1 << 20}}}).Complete(); err != nil {
		t.Errorf("a good one: got %v, want no error", err)
	}
}
