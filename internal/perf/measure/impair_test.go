package measure

import (
	"strings"
	"testing"
	"time"

	"ibverbx/peer"
)

// TestImpairRefused: a server rejects impairments that an honest client cannot send.
func TestImpairRefused(t *testing.T) {
	for name, list := range map[string][]peer.Impair{
		"no such rail": {{Rail: 2, Loss: 0.1}}, "a negative rail": {{Rail: -2, Loss: 0.1}}, "a probability": {{Rail: 0, Corrupt: 2}},
		"a long time": {{Rail: 0, Delay: time.Hour}}, "a negative time": {{Rail: 0, Jitter: -1}}, "a rate": {{Rail: 0, Rate: -1}},
		"twice": {{Rail: 0, Loss: 0.1}, {Rail: 0, Delay: 1}}, "too many": make([]peer.Impair, 100),
	} {
		if _, err := (Config{Rails: 2, Impair: list}).Complete(); err == nil || !strings.Contains(err.Error(), "--impair") {
			t.Errorf("%s: got %v, want it refused", name, err)
		}
	}
	if _, err := (Config{Rails: 2, Impair: []peer.Impair{{Rail: -1, Loss: 0.1}, {Rail: 1, Rate: 1 << 20}}}).Complete(); err != nil {
		t.Errorf("a good one: got %v, want no error", err)
	}
}
