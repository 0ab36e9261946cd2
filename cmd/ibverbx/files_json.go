package main

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"

	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
)

// Types of the lines that serve, get, put, ls and forward print with --json. The last line is a result.
const (
	lineProgress   = "progress"   // get, put
	lineEntry      = "entry"      // ls
	lineServing    = "serving"    // serve: an export
	lineForwarding = "forwarding" // serve: a target of --forward
	lineListening  = "listening"  // serve, forward
	lineResult     = "result"     // all
	lineLog        = "log"        // all, on standard error
)

// resultLine is the result of serve, ls and forward.
type resultLine struct {
	Type string `json:"type"`
	// Entries is the number of entries that ls printed, nil for other commands.
	Entries *int `json:"entries,omitempty"`
	carried
	// Error is the text on standard error, empty on success.
	Error string `json:"error,omitempty"`
}

// servedLine is an export, a target or the address of serve, or an -L of forward.
type servedLine struct {
	Type   string `json:"type"`
	Event  string `json:"event,omitempty"` // listening, forward only
	Name   string `json:"name,omitempty"`
	Path   string `json:"path,omitempty"`
	Access string `json:"access,omitempty"`
	Listen string `json:"listen,omitempty"`
	Target string `json:"target,omitempty"`
	Host   string `json:"host,omitempty"`
}

// conclude prints the result line of --json and returns err. line builds it from the error text, which is empty on success.
// A rejected command line never starts an operation, so conclude prints no line for it.
func (f *fileFlags) conclude(s streams, err error, line func(failure string) any) error {
	if !f.json || invalid(err) {
		return err
	}
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	return errors.Join(err, json.NewEncoder(s.out).Encode(line(failure)))
}

// logWriter logs each line as a message.
type logWriter struct{ *slog.Logger }

func (w logWriter) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		w.Info(strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "ibverbx: "))
	}
	return len(b), nil
}

// logged turns messages on standard error into JSON objects of type log, if asJSON is set.
func (s streams) logged(asJSON bool) streams {
	if asJSON {
		s.err = logWriter{slog.New(slog.NewJSONHandler(s.err, nil)).With("type", lineLog)}
	}
	return s
}

// log returns the log of --verbose.
func (s streams) log() *slog.Logger {
	if w, ok := s.err.(logWriter); ok {
		return w.Logger
	}
	return slog.New(slog.NewTextHandler(s.err, nil))
}

// plainResult is the result of serve and forward.
func (f *fileFlags) plainResult(failure string) any {
	return resultLine{Type: lineResult, carried: f.carried, Error: failure}
}

// invalid reports whether err rejects the command line.
func invalid(err error) bool {
	var usage *usageError
	var config *measure.ConfigError
	var fabric *peer.FabricError
	return errors.As(err, &usage) || errors.As(err, &config) || errors.As(err, &fabric) && fabric.Cause == nil
}
