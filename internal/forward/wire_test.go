package forward

import (
	"bytes"
	"strings"
	"testing"
)

func TestParseTarget(t *testing.T) {
	for text, want := range map[string]Target{
		"127.0.0.1:5432": "127.0.0.1:5432", "DB:05432": "db:5432", "[::1]:80": "[::1]:80", "/run/x.sock": "/run/x.sock",
	} {
		if got, err := ParseTarget(text); got != want || err != nil {
			t.Errorf("ParseTarget(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"", "db", ":5432", "db:", "db:0", "db:65536", "db:x", "::1:80", "d\nb:1", "db:-1", "/" + strings.Repeat("x", 255), strings.Repeat("Ⱥ", 125) + ":1"} {
		if got, err := ParseTarget(text); err == nil {
			t.Errorf("ParseTarget(%q) = %q, want an error", text, got)
		}
	}
}

// TestPrintable: system error texts fit in a reply and cannot control a terminal.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"connection refused":       "connection refused",
		"a\x1b[2J\n\xff":           "a?[2J??",
		strings.Repeat("é", 200):   strings.Repeat("é", 127),
		strings.Repeat("x", 255):   strings.Repeat("x", 255),
		"no such host \u202efdp.x": "no such host ?fdp.x",
	} {
		if got := printable(text); got != want {
			t.Errorf("printable(%q) = %q, want %q", text, got, want)
		}
	}
}

// FuzzDecode: decoded input is encoded to the same bytes.
func FuzzDecode(f *testing.F) {
	f.Add(request{wantConnection, "127.0.0.1:5432"}.encode())
	f.Add(request{wantCheck, ""}.encode())
	f.Add(reply{statusFailed, "connection refused"}.encode())
	f.Add(reply{}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if q, err := readRequest(bytes.NewReader(b)); err == nil && !bytes.HasPrefix(b, q.encode()) {
			t.Errorf("request %q is encoded as %q", b, q.encode())
		}
		if r, err := readReply(bytes.NewReader(b)); err == nil && !bytes.HasPrefix(b, r.encode()) {
			t.Errorf("reply %q is encoded as %q", b, r.encode())
		}
	})
}
