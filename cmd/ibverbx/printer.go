package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"

	"golang.org/x/term"

	"ibverbx/bootstrap"
	"ibverbx/internal/printable"
)

// printer writes text and keeps the first error, so that callers check for a full disk or a closed pipe once, at the
// end. The zero value with a writer is ready to use.
type printer struct {
	w      io.Writer
	colour bool // the writer is a terminal with colours
	err    error
}

// Text attributes on a terminal (ECMA-48).
const (
	bold   = "1"
	green  = "32"
	yellow = "33"
)

// paint applies a text attribute if the writer supports it.
func (p *printer) paint(look, text string) string {
	if !p.colour {
		return text
	}
	return "\x1b[" + look + "m" + text + "\x1b[0m"
}

// columns is the maximum line width.
const columns = 80

// wrap prints words in lines that start with indent and fit in columns. A word that is too long gets its own line.
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

// hang wraps text like wrap, indented to column. The first line starts with head, which must be shorter.
func (p *printer) hang(head string, column int, text string) {
	indent := strings.Repeat(" ", column)
	var b strings.Builder
	lines := printer{w: &b}
	lines.wrap(indent, text)
	p.printf("%-*s%s", column, head, strings.TrimPrefix(b.String(), indent))
}

// colours reports whether the output is a colour terminal and the environment allows colours.
func (s *streams) colours() bool {
	f, ok := s.out.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && wantsColours(s.lookup)
}

// lookup returns an environment variable.
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

// json prints a value on one line.
func (p *printer) json(v any) {
	if p.err == nil {
		p.err = json.NewEncoder(p.w).Encode(v)
	}
}

// printJSON writes one indented value.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// messageLog prints messages of a server to stderr, a line each. It is safe for concurrent use.
type messageLog struct {
	mu sync.Mutex
	s  streams
}

// watch logs rejected clients and reloaded credential files.
func (t *messageLog) watch(auth *bootstrap.Config) {
	auth.Rejected = func(from net.Addr, err error) { t.printf("turned away %v: %v", from, err) }
	auth.Reloaded = func(err error) {
		if err != nil {
			t.printf("a changed file is not used: %v", err)
			return
		}
		t.printf("using the changed files of --token-file, --token-dir, --ca, --cert or --key")
	}
}

func (t *messageLog) printf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.s.err, "ibverbx: %s\n", printable.Text(fmt.Sprintf(format, args...)))
}
