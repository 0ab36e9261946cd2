package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/files"
	"ibverbx/internal/forward"
	"ibverbx/stream"
)

// accessLine is a line of --access-log.
type accessLine struct {
	Time time.Time `json:"time"` // of the request
	// Peer is the client's address, User its authenticated name: CN=NAME of a certificate, or the file name of its token.
	Peer string `json:"peer"`
	User string `json:"user,omitempty"`
	// Operation is get, put or forward.
	Operation string `json:"operation"`
	Name      string `json:"name"` // of the file or the target
	// Bytes counts the bytes moved: of a file without existing data, of a connection in both directions.
	Bytes    int64   `json:"bytes"`
	Duration float64 `json:"duration"` // in seconds
	Result   string  `json:"result"`   // ok, or the error
}

// accessLog appends lines to a file. If the file cannot be written, it reports that once, until it can be written again; records are lost
// meanwhile. A nil accessLog writes nothing. All methods are safe for concurrent use.
type accessLog struct {
	path string
	logf func(format string, args ...any)

	mu sync.Mutex
	// file is nil after close.
	file *os.File
	// failed is set after a failed write. The last line may be incomplete then.
	failed bool
}

// openAccessLog opens a log, or returns nil for an empty path.
func openAccessLog(path string, logf func(format string, args ...any)) (*accessLog, error) {
	if path == "" {
		return nil, nil //nolint:nilnil // a nil log is valid
	}
	l := &accessLog{path: path, logf: logf}
	if err := l.reopen(); err != nil {
		return nil, err
	}
	return l, nil
}

// reopen opens the file again, for example after it was renamed. After an error, the old one stays in use.
func (l *accessLog) reopen() error {
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("--access-log: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		_ = l.file.Close() // its records were written
	}
	l.file = file
	return nil
}

// write appends a line.
func (l *accessLog) write(line *accessLine) {
	b, err := json.Marshal(line)
	if err != nil {
		panic(err) // accessLine can always be encoded
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return
	}
	if l.failed {
		b = append([]byte{'\n'}, b...)
	}
	switch _, err := l.file.Write(append(b, '\n')); {
	case err != nil && !l.failed:
		l.failed = true
		l.logf("--access-log: %v; records are lost until it can be written again", err)
	case err == nil && l.failed:
		l.failed = false
		l.logf("--access-log: %s can be written again", l.path)
	}
}

// close closes the file.
func (l *accessLog) close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	file := l.file
	l.file = nil
	return file.Close()
}

// reopening reopens the file on each SIGHUP, until the returned function is called.
func (l *accessLog) reopening(ctx context.Context) (stop func()) {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-hangups:
				if err := l.reopen(); err != nil {
					l.logf("%v; still writing to the old file", err)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		signal.Stop(hangups)
		cancel()
		<-done
	}
}

// files returns the function that records files, nil without a log.
func (l *accessLog) files() func(files.Operation) {
	if l == nil {
		return nil
	}
	return l.operation
}

// resultText returns accessLine.Result.
func resultText(err error) string {
	if err == nil {
		return "ok"
	}
	return err.Error()
}

// userOf returns accessLine.User.
func userOf(p bootstrap.Peer) string {
	if p.Certificate != nil {
		return "CN=" + p.Certificate.Subject.CommonName
	}
	return p.Token
}

// operation records a file.
func (l *accessLog) operation(o files.Operation) {
	id := o.Peer.Identity()
	l.write(&accessLine{
		Time: o.Start, Peer: id.Addr.String(), User: userOf(id), Operation: o.Op, Name: o.Name, Bytes: o.Bytes,
		Duration: o.Duration.Seconds(), Result: resultText(o.Err),
	})
}

// connection records a forwarded connection.
func (l *accessLog) connection(c forward.Served) {
	line := accessLine{
		Time: c.Start, Peer: c.Stream.RemoteAddr().String(), Operation: "forward", Name: string(c.Target), Bytes: c.Received + c.Sent,
		Duration: c.Duration.Seconds(), Result: resultText(c.Err),
	}
	if s, ok := c.Stream.(*stream.Conn); ok {
		id := s.Info().Identity
		line.Peer, line.User = id.Addr.String(), userOf(id)
	}
	l.write(&line)
}
