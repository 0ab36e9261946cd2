package settings_test

import (
	"strings"
	"testing"
	"time"

	"ibverbx/peer"
	"ibverbx/settings"
)

// TestParseImpair: String returns text that parses to the same value; invalid input is rejected
// with a reason.
func TestParseImpair(t *testing.T) {
	for text, want := range map[string]peer.Impair{
		"rail=1,loss=1%,delay=1ms":          {Rail: 1, Loss: 0.01, Delay: time.Millisecond},
		"loss=0.005":                        {Rail: -1, Loss: 0.005},
		" rail=0, jitter=2s ,rate=100MiB":   {Rail: 0, Jitter: 2 * time.Second, Rate: 100 << 20},
		"duplicate=1%,reorder=2%,corrupt=1": {Rail: -1, Duplicate: 0.01, Reorder: 0.02, Corrupt: 1},
	} {
		got, err := settings.ParseImpair(text)
		if err != nil || got != want {
			t.Errorf("ParseImpair(%q) = %+v, %v, want %+v", text, got, err, want)
		}
		if again, err := settings.ParseImpair(got.String()); err != nil || again != want {
			t.Errorf("ParseImpair(%q) = %+v, %v, want %+v", got.String(), again, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "use rail, loss", "rail=1": "does nothing", "rail=x,loss=1%": "number of a rail", "rail=-1,loss=1%": "number of a rail",
		"loss=101%": "part of the packets", "loss=-1": "part of the packets", "loss=NaN": "part of the packets", "loss": "part of the packets",
		"delay=1": "such as 1ms", "delay=-1ms": "such as 1ms", "jitter=11s": "up to 10s", "rate=x": "bytes per second",
		"loss=1%,loss=2%": "twice", "lose=1%": "use rail, loss",
	} {
		if got, err := settings.ParseImpair(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseImpair(%q) = %+v, %v, want an error that says %q", text, got, err, want)
		}
	}
}

// TestParseSize: sizes have binary suffixes; ambiguous and non-positive ones are rejected.
func TestParseSize(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int
	}{
		{"1", 1}, {"65536", 65536}, {"64K", 65536}, {"64KiB", 65536}, {"64kib", 65536}, {"1M", 1 << 20}, {"16 MiB", 16 << 20}, {"1g", 1 << 30}, {"8B", 8},
	} {
		if got, err := settings.ParseSize(tt.in); err != nil || got != tt.want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", tt.in, got, err, tt.want)
		}
	}
	for _, in := range []string{"", "0", "-1", "K", "64KB", "1MB", "1.5M", "0x10", "9999999999G", "12Q", "99999999999999999999", "ɐɐKB"} {
		if got, err := settings.ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", in, got)
		}
	}
}
