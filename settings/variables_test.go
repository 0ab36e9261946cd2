package settings

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
)

// TestDistance: the edit distance of some words.
func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"kitten", "sitting", 3}, {"ab", "ba", 2}, {"flaw", "lawn", 2}} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

// TestUnknown: only variables with the prefix, a value and no reader are unknown. Each has the nearest name.
func TestUnknown(t *testing.T) {
	got := fmt.Sprint(Unknown([]string{
		"HOME=/", "IBVERBX_TCLAS=8", "IBVERBX_TCLASS=8", "IBVERBX_NONE=", "IBVERBX_TEST_ANY=1", "IBVERBX_CI=1", "IBVERB=1", "IBVERBX_TOKENFILE=t", "IBVERBX_LIB=/x",
	}))
	want := "[IBVERBX_TCLAS is set, but ibverbx has no such variable: did you mean IBVERBX_TCLASS?" +
		" IBVERBX_TOKENFILE is set, but ibverbx has no such variable: did you mean IBVERBX_TOKEN_FILE?]"
	if got != want {
		t.Errorf("Unknown: got %s, want %s", got, want)
	}
}

// TestReadEnvWarns: ReadEnv logs one WARN for an unknown variable of the process, and none if lookup has another environment.
func TestReadEnvWarns(t *testing.T) {
	var log bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(old)
	t.Setenv("IBVERBX_TCLAS", "8")
	t.Setenv("IBVERBX_TEST_X", "8")
	for _, tt := range []struct {
		lookup func(string) (string, bool)
		want   int
	}{{func(string) (string, bool) { return "", false }, 0}, {os.LookupEnv, 1}} {
		log.Reset()
		if err := new(Settings).ReadEnv(tt.lookup); err != nil {
			t.Fatalf("ReadEnv: got %v, want no error", err)
		}
		lines := strings.Count(log.String(), "level=WARN msg=\"unknown environment variable\" variable=IBVERBX_TCLAS nearest=IBVERBX_TCLASS")
		if lines != tt.want || strings.Count(log.String(), "\n") != tt.want {
			t.Errorf("ReadEnv logged %q, want %d WARN", log.String(), tt.want)
		}
	}
}
