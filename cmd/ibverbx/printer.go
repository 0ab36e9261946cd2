package main

import (
	"encoding/json"
	"fmt"
	"io"
)

// printer writes text and remembers the first error, so that a full disk or a closed
// pipe is noticed once, at the end. The zero value with a writer is ready.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *printer) println(s string) { p.printf("%s\n", s) }

// printJSON writes one value, indented for people.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
