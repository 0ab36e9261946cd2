package files

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/node"
)

// Stats counts the files moved by an Engine since New, in both directions and with all peers.
type Stats struct {
	// FilesReceived counts files received completely, by Get or from a peer's Put. FilesResumed counts the ones that reused existing
	// data. FilesFailed counts files that could not be received.
	FilesReceived, FilesResumed, FilesFailed uint64
	// FilesSent counts files that peers have read completely.
	FilesSent uint64
	// BytesReceived and BytesSent count moved bytes, BytesReused the bytes of chunks that already
	// existed at the receiver.
	BytesReceived, BytesSent, BytesReused uint64
	// DigestErrors counts received chunks whose digest was wrong. They are requested once more.
	DigestErrors uint64
}

// engineCounters are an Engine's part of Stats.
type engineCounters struct {
	filesReceived, filesResumed, filesFailed, filesSent atomic.Uint64
	bytesReceived, bytesSent, bytesReused, digestErrors atomic.Uint64
}

// Stats returns the current counters. They are kept after Close.
func (f *Engine) Stats() Stats {
	if f == nil {
		return Stats{}
	}
	c := &f.counters
	return Stats{
		FilesReceived: c.filesReceived.Load(), FilesResumed: c.filesResumed.Load(), FilesFailed: c.filesFailed.Load(), FilesSent: c.filesSent.Load(),
		BytesReceived: c.bytesReceived.Load(), BytesSent: c.bytesSent.Load(), BytesReused: c.bytesReused.Load(), DigestErrors: c.digestErrors.Load(),
	}
}

// Operation describes a file that a peer has read or written, for an access log.
type Operation struct {
	// Peer is the peer.
	Peer *node.Peer
	// Op is "get" if the peer has read the file, and "put" if it has written it.
	Op string
	// Name is the name that the peer requested. It is not escaped.
	Name string
	// Start is the time of the request.
	Start time.Time
	// Duration is the time until the peer released the file, or this side stored it.
	Duration time.Duration
	// Bytes is the number of bytes moved, without existing data.
	Bytes int64
	// Err is nil if the file was moved completely. It wraps ErrNotFound, ErrDenied, ErrChanged, ErrDigest or another cause.
	Err error
}

// errUnread is the Operation.Err of a file that a peer has not read completely.
var errUnread = errors.New("the peer has not read all of the file")

// report passes an operation of a peer to Config.OnOperation.
func (p *Peer) report(op string, name string, start time.Time, bytes int64, err error) {
	if f := p.engine.cfg.OnOperation; f != nil {
		if err = translate(err); errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrNotFound) {
			err = fmt.Errorf("%w: %w", ErrNotFound, err)
		}
		f(Operation{Peer: p.Node(), Op: op, Name: name, Start: start, Duration: time.Since(start), Bytes: bytes, Err: err})
	}
}

// sent counts and reports a file released by a peer, or left open by its process, unless the peer has only compared its size and time.
func (p *Peer) sent(o *openFile) {
	o.mu.Lock()
	opened, complete, err, bytes, start := o.source != nil, o.answer != nil && o.answer.hasSum, o.err, o.sent, o.opened
	offered := opened && o.export.upload != nil
	compared := !complete && !o.requested
	o.mu.Unlock()
	if !opened || compared {
		return
	}
	switch {
	case err != nil:
	case complete:
		p.engine.counters.filesSent.Add(1)
	default:
		err = errUnread
	}
	if !offered {
		p.report("get", o.name, start, bytes, err)
	}
}

// fileReport is a file being received.
type fileReport struct {
	download *download
	name     string
	start    time.Time
	// chunks holds the chunk states, nil until known; size is the file size.
	chunks *chunk.Table[cachedChunk]
	size   int64
}

// newFileReport starts the report of a remote file.
func (l *download) newFileReport(name string, size int64) *fileReport {
	return &fileReport{download: l, name: name, start: time.Now(), size: size}
}

// end counts and reports the file.
func (r *fileReport) end(err error) {
	moved, reused := int64(0), false
	for k := int64(0); r.chunks != nil && k < r.chunks.Len(); k++ {
		switch c := r.chunks.Get(k); {
		case c.reused:
			reused = true
		case c.counted:
			moved += int64(chunk.Len(r.size, k))
		}
	}
	r.download.received(r.name, r.start, moved, reused, err)
}

// received counts and reports a received remote file, or one that failed with err. bytes were
// moved; reused is set if other bytes already existed.
func (l *download) received(name string, start time.Time, bytes int64, reused bool, err error) {
	c := &l.peer.engine.counters
	if err != nil {
		c.filesFailed.Add(1)
	} else {
		c.filesReceived.Add(1)
		if reused {
			c.filesResumed.Add(1)
		}
	}
	if l.storedAs != "" {
		l.reported.Store(true)
		l.peer.report("put", l.storedAs+strings.TrimPrefix(name, l.storedFrom), start, bytes, err)
	}
}
