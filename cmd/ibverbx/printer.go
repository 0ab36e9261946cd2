package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// printer writes text and remembers the first error, so that a full disk or a closed
// pipe is noticed once, at the end. The zero value with a writer is ready.
type printer struct {
	w      io.Writer
	colour bool // the writer is a terminal that shows colours
	err    error
}

// Looks of text on a terminal (ECMA-48).
const (
	bold   = "1"
	green  = "32"
	yellow = "33"
)

// paint gives text a look, if the writer shows it.
func (p *printer) paint(look, text string) string {
	if !p.colour {
		return text
	}
	return "\x1b[" + look + "m" + text + "\x1b[0m"
}

// printable returns text that cannot control a terminal: what is not printable is escaped as in Go. Names and messages of a peer may have
// any bytes.
func printable(text string) string {
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

// printableLines is printable for text that may have several lines.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

// columns is how wide text is at most.
const columns = 80

// wrap prints words in lines that begin with indent and fit the columns. A longer word has a line of its own.
func (p *printer) wrap(indent, text string) {
	line := indent
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == indent:
			line += word
		case len(line)+1+len(word) > columns:
			p.println(line)
			line = indent + word
		default:
			line += " " + word
		}
	}
	p.println(line)
}

// hang prints words as wrap does, in lines that begin at a column. The first one begins with head, which is shorter.
func (p *printer) hang(head string, column int, text string) {
	indent := strings.Repeat(" ", column)
	var b strings.Builder
	lines := printer{w: &b}
	lines.wrap(indent, text)
	p.printf("%-*s%s", column, head, strings.TrimPrefix(b.String(), indent))
}

// colours reports whether the output is a terminal that shows colours, and nobody asked for none.
func (s *streams) colours() bool {
	f, ok := s.out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && wantsColours(s.lookup)
}

// lookup returns a variable of the environment.
func (s *streams) lookup(name string) (value string, set bool) {
	if s.env == nil {
		return os.LookupEnv(name)
	}
	return s.env(name)
}

// wantsColours reports whether the environment allows colours (https://no-color.org).
func wantsColours(lookup func(string) (string, bool)) bool {
	none, _ := lookup("NO_COLOR")
	kind, _ := lookup("TERM")
	return none == "" && kind != "dumb"
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) println(s string) { p.printf("%s\n", s) }

// json prints a value in one line.
func (p *printer) json(v any) {
	if p.err == nil {
		p.err = json.NewEncoder(p.w).Encode(v)
	}
}

// printJSON writes one value, indented for people.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
