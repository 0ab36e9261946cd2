package main

import (
	"strings"
	"testing"
)

// TestPerfSealed: packets between processes are sealed, and the report shows it. With --unsealed on both sides they
// are not sealed; on one side only, both sides fail.
func TestPerfSealed(t *testing.T) {
	token := newToken(t, "a secret of this test, long enough")
	for _, tt := range []struct {
		server, client []string
		want           []string
	}{
		{nil, []string{"--check"}, []string{"over udp, sealed\n", "data check: 40 messages"}},
		{nil, []string{"--json"}, []string{`"sealed": true`}},
		{nil, []string{"--transport", "uc", "--check", "--json"}, []string{`"sealed": true`, `"transport": "uc"`}},
		{[]string{"--unsealed"}, []string{"--unsealed"}, []string{"over udp, plain\n"}},
		{[]string{"--unsealed"}, nil, []string{"sealing", "the dialer seals packets, the listener has turned sealing off"}},
		{nil, []string{"--unsealed"}, []string{"sealing", "the dialer has turned sealing off"}},
	} {
		_, addr := serve(t, append([]string{"--token-file", token, "--link", "udp"}, tt.server...)...)
		args := append([]string{"perf", "write", addr, "--token-file", token, "-s", "8,100000", "-n", "20", "--rails", "1", "-q", "2", "--link", "udp"}, tt.client...)
		status, stdout, stderr := command(t.Context(), args...)
		if (status == exitOK) == (tt.want[0] == "sealing") {
			t.Errorf("server %v, client %v: status %d, %s", tt.server, tt.client, status, stderr)
		}
		for _, want := range tt.want {
			if !strings.Contains(stdout+stderr, want) {
				t.Errorf("server %v, client %v: %s%s, want %q", tt.server, tt.client, stdout, stderr, want)
			}
		}
	}
	if status, _, stderr := command(t.Context(), "perf", "--unsealed"); status == exitOK || !strings.Contains(stderr, "--unsealed, --require-sealed and the authentication flags need a HOST") {
		t.Errorf("perf --unsealed in one process: status %d, %q, want an error", status, stderr)
	}
}
