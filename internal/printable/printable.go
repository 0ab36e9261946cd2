// Package printable escapes untrusted text, such as a peer's names and reasons. The results of [Text] and
// [Error] are safe for a terminal and fit on one line of a log; [Lines] keeps line breaks.
package printable

import (
	"strconv"
	"strings"
	"unicode/utf8"
)

// Text returns fully printable text unchanged. Otherwise it escapes non-printable characters, including newlines, and backslashes as in Go.
func Text(text string) string {
	if utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return text
	}
	var b strings.Builder
	for len(text) > 0 {
		r, n := utf8.DecodeRuneInString(text)
		if part := text[:n]; strconv.IsPrint(r) && part != "\\" && (r != utf8.RuneError || n > 1) {
			b.WriteString(part)
		} else {
			quoted := strconv.Quote(part)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
		text = text[n:]
	}
	return b.String()
}

// Lines is Text for each line of a text.
func Lines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Text(lines[i])
	}
	return strings.Join(lines, "\n")
}

// Error returns an error with the Text of err's message. It wraps err, and is err itself if that is printable or nil.
func Error(err error) error {
	if err == nil || Text(err.Error()) == err.Error() {
		return err
	}
	return &escaped{err}
}

// escaped is an error with a printable message.
type escaped struct{ err error }

func (e *escaped) Error() string { return Text(e.err.Error()) }
func (e *escaped) Unwrap() error { return e.err }
