package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"ibverbx/internal/htmldoc"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
)

// writable reports now, before a long test, if the file of --html cannot be written. tidy removes the file if writable
// has made it and nothing was written.
func (o *outputFlags) writable() (tidy func(), err error) {
	tidy = func() {}
	if o.html == "" {
		return tidy, nil
	}
	f, err := os.OpenFile(o.html, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err == nil {
		tidy = func() {
			if info, err := os.Stat(o.html); err == nil && info.Size() == 0 {
				_ = os.Remove(o.html)
			}
		}
	} else if errors.Is(err, fs.ErrExist) {
		f, err = os.OpenFile(o.html, os.O_WRONLY, 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("--html: %w", err)
	}
	return tidy, f.Close()
}

// save writes the file of --html.
func (o *outputFlags) save(r *measure.Report) error {
	if o.html == "" {
		return nil
	}
	var b bytes.Buffer
	if err := htmldoc.Write(&b, report.Document(r)); err != nil {
		return err
	}
	if err := os.WriteFile(o.html, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	return nil
}
