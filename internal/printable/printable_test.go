package printable

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

// TestText: untrusted text cannot control the terminal.
func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                       "",
		"d/modèl-7 \"x\".bin":    "d/modèl-7 \"x\".bin",
		`a\b`:                    `a\b`,
		"d/\x1b]0;title\a":       `d/\x1b]0;title\a`,
		"line\r\nnext\t\\":       `line\r\nnext\t\\`,
		"\u202egpj.exe":          `\u202egpj.exe`,
		"bad \xff\xfe":           `bad \xff\xfe`,
		"the rune \ufffd itself": "the rune \ufffd itself",
	} {
		if got := Text(text); got != want {
			t.Errorf("Text(%q) = %q, want %q", text, got, want)
		}
	}
	if got, want := Lines("a\x1b\nb"), "a\\x1b\nb"; got != want {
		t.Errorf("Lines = %q, want %q", got, want)
	}
}

// TestError: an escaped error still wraps its cause, and other errors stay as they are.
func TestError(t *testing.T) {
	if err := Error(fmt.Errorf("a\nb: %w", io.EOF)); err.Error() != `a\nb: EOF` || !errors.Is(err, io.EOF) {
		t.Errorf("Error = %q, want one line that wraps EOF", err)
	}
	if err := Error(io.EOF); err != io.EOF { //nolint:errorlint // the same error
		t.Errorf("Error(EOF) = %v, want EOF", err)
	}
	if err := Error(nil); err != nil {
		t.Errorf("Error(nil) = %v, want nil", err)
	}
}
