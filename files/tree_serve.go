package files

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"ibverbx/internal/chunk"
	"ibverbx/internal/rpc"
	"ibverbx/transfer"
)

// treeWalk is a tree being listed. It continues after cursor.
type treeWalk struct {
	export *Export
	// dir is the top of the tree in the Export's root.
	dir, cursor string
	// number is fileTree.walk.
	number uint32
	rules  rules
	want   chunk.Want
	*chunk.Walk
}

// maxWalks limits the trees being listed per process. To continue another one, its directories are read again.
const maxWalks = 8

// freshTime is the minimum age of a modification time that proves a file unchanged. Some file systems store even seconds only.
const freshTime = 2 * time.Second

// isFresh reports whether a file listed now may still be modified without a change of its
// modification time.
func isFresh(modified, now time.Time) bool { return modified.After(now.Add(-freshTime)) }

// position is a position in the listing of a tree.
type position struct {
	// parts is the path of the last entry.
	parts []string
	// open is set if the contents of the last entry, a directory, may follow.
	open bool
}

// positionAt returns the position for a cursor.
func positionAt(cursor string) position {
	p := position{open: cursor == "" || strings.HasSuffix(cursor, "/")}
	if cursor != "" {
		p.parts = strings.Split(strings.TrimSuffix(cursor, "/"), "/")
	}
	return p
}

// next advances to an entry, and reports whether it may follow the last one.
func (p *position) next(s *step) bool {
	deepest := len(p.parts) - 1
	if p.open {
		deepest++
	}
	if s.depth > deepest || s.depth < len(p.parts) && s.Name <= p.parts[s.depth] {
		return false
	}
	p.parts = append(p.parts[:s.depth], s.Name)
	p.open = s.Mode.IsDir() && s.failed == ""
	return true
}

// path returns the path of the last entry.
func (p *position) path() string { return strings.Join(p.parts, "/") }

// cursor returns the position for a request.
func (p *position) cursor() string {
	if p.open && len(p.parts) > 0 {
		return p.path() + "/"
	}
	return p.path()
}

// answerTree returns the response to a request for a page of a tree.
func (v *process) answerTree(ctx context.Context, m *fileTree) []byte {
	x, inside, err := v.resolve(ctx, m.name, Read)
	if err != nil {
		return refuse(m.id, err)
	}
	if x.upload != nil && (inside != "." || m.rules != x.upload.rules) { // excluded entries must not be listed
		return refuse(m.id, ErrNotFound)
	}
	if err := v.state.listing.Take(ctx); err != nil {
		return refuse(m.id, err)
	}
	defer v.state.listing.Give()
	w, err := v.takeWalk(x, inside, m)
	if err != nil {
		return refuse(m.id, err)
	}
	answer := &fileTreed{id: m.id, steps: make([]step, 0, maxEntries)}
	if w.cursor, answer.more, err = w.page(ctx, answer, m.after); err != nil {
		w.Close()
		return refuse(m.id, err) // not sent: the session is lost
	}
	if x.upload != nil {
		x.upload.count(m.after, w.cursor, answer)
	}
	if answer.more {
		v.keepWalk(w)
	} else {
		w.Close()
	}
	return answer.encode()
}

// page adds the next entries of a tree to a response.
func (w *treeWalk) page(ctx context.Context, m *fileTreed, after string) (cursor string, more bool, err error) {
	at, now := positionAt(after), time.Now()
	for size := 0; size < maxPage && len(m.steps) < maxSteps; {
		s, err := w.Next(ctx)
		if errors.Is(err, io.EOF) {
			return at.cursor(), false, nil
		}
		if err != nil {
			return "", false, err
		}
		e := step{Entry: s.Entry, depth: s.Depth, fresh: isFresh(s.ModTime, now)}
		if s.Err != nil {
			_, e.failed = explain(s.Err)
		}
		at.next(&e)
		m.steps = append(m.steps, e)
		size += len(e.Name) + len(e.Link) + len(e.failed) + 64
		for _, x := range e.Xattrs {
			size += len(x.Name) + len(x.Value) + 4
		}
	}
	return at.cursor(), true, nil
}

// takeWalk returns the walk that continues behind a cursor, an earlier one or a new one.
func (v *process) takeWalk(x *Export, dir string, m *fileTree) (*treeWalk, error) {
	f, o := v.peer.engine, &v.state
	f.mu.Lock()
	i := slices.IndexFunc(o.walks, func(w *treeWalk) bool {
		return w.number == m.walk && w.export == x && w.dir == dir && w.cursor == m.after && w.rules == m.rules && w.want == m.want
	})
	if i >= 0 {
		w := o.walks[i]
		o.walks = slices.Delete(o.walks, i, i+1)
		f.mu.Unlock()
		return w, nil
	}
	f.mu.Unlock()
	rules, err := m.rules.filter()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDenied, err)
	}
	exclude := rules.Excludes
	if rules.Empty() {
		exclude = nil
	}
	w, err := chunk.NewWalk(x.root, dir, m.after, maxNames, exclude, x.upload.attributes(m.want))
	if err != nil {
		return nil, err
	}
	return &treeWalk{export: x, dir: dir, number: m.walk, rules: m.rules, want: m.want, Walk: w}, nil
}

// keepWalk keeps a walk for the next request. It closes walks of closed Exports, and the oldest one if there are too many.
func (v *process) keepWalk(w *treeWalk) {
	f, o := v.peer.engine, &v.state
	f.mu.Lock()
	defer f.mu.Unlock()
	o.walks = append(o.walks, w)
	if v.Over() {
		o.closeWalks(func(*treeWalk) bool { return true })
		return
	}
	o.closeWalks(func(w *treeWalk) bool { return w.export.closed.Load() })
	if len(o.walks) > maxWalks {
		o.walks[0].Close()
		o.walks = slices.Delete(o.walks, 0, 1)
	}
}

// closeWalks closes the walks selected by drop. Engine.mu is held.
func (o *openFiles) closeWalks(drop func(*treeWalk) bool) {
	o.walks = slices.DeleteFunc(o.walks, func(w *treeWalk) bool {
		if drop(w) {
			w.Close()
			return true
		}
		return false
	})
}

// answerBatch returns the response to a request for small files: it reads the files, and writes the contents that the peer lacks to its memory.
func (v *process) answerBatch(ctx context.Context, r *transfer.Remote, m *fileBatch) []byte {
	f := v.peer.engine
	x, inside, err := v.resolve(ctx, m.name, Read)
	if err != nil {
		return refuse(m.id, err)
	}
	release, err := v.claimGrant(ctx, m.grant)
	if err != nil {
		return refuse(m.id, err)
	}
	defer release()
	slot, err := f.reading.take(ctx, f.cfg.Transfer, v.state.reading)
	if err != nil {
		return refuse(m.id, err)
	}
	defer f.reading.release(slot, v.state.reading)
	answer := fileBatched{id: m.id, results: make([]batchResult, len(m.files))}
	start := time.Now()
	files := chunk.NewFileReader(x.root)
	defer files.Close()
	n, read := 0, int64(0)
	for i := range m.files {
		want := &m.files[i]
		if x.closed.Load() {
			return refuse(m.id, fmt.Errorf("%w: the export is closed", transfer.ErrRevoked))
		}
		b := slot.bytes()[n:][:want.size]
		res := &answer.results[i]
		if !x.upload.allows(x.root, path.Join(inside, want.name)) {
			*res = batchResult{outcome: batchRefused + batchOutcome(rpc.NotFound)}
			continue
		}
		if *res = want.read(files, inside, b); res.outcome == batchWritten {
			n += len(b)
		}
		if res.outcome < batchRefused {
			read += int64(len(b))
		}
	}
	if n > 0 && x.upload != nil {
		if err := x.upload.limiter.wait(ctx, int64(n)); err != nil {
			return refuse(m.id, err)
		}
	}
	if n > 0 {
		if err := v.peer.transfer.Batch().Put(r.At(0), slot.view(n)).Do(ctx); err != nil {
			return refuse(m.id, err)
		}
	}
	v.sentBatch(m, &answer, start, x.upload != nil)
	if x.upload != nil {
		x.upload.served.Add(read)
	}
	answer.rails = v.peer.writtenByRail()
	return answer.encode()
}

// sentBatch counts and reports the files of a batch.
func (v *process) sentBatch(m *fileBatch, answer *fileBatched, start time.Time, offered bool) {
	c := &v.peer.engine.counters
	for i, r := range answer.results {
		f, bytes, err := &m.files[i], int64(0), error(nil)
		switch {
		case r.outcome >= batchRefused:
			err = rpc.Code(r.outcome - batchRefused).Err()
		case r.outcome == batchWritten:
			bytes = int64(f.size)
			c.bytesSent.Add(uint64(bytes))
			fallthrough
		default:
			c.filesSent.Add(1)
		}
		if !offered {
			v.peer.report("get", path.Join(m.name, f.name), start, bytes, err)
		}
	}
}

// read reads a file of a tree into b and returns its result.
func (w *batchFile) read(files *chunk.FileReader, top string, b []byte) (r batchResult) {
	if checkPath(w.name) != nil {
		return batchResult{outcome: batchRefused + batchOutcome(rpc.NotFound)}
	}
	var err error
	r.digest, err = files.Read(path.Join(top, w.name), &chunk.Entry{Name: w.name, ModTime: w.modified}, b)
	switch {
	case err != nil:
		code, _ := explain(err)
		return batchResult{outcome: batchRefused + batchOutcome(code)}
	case w.has && w.print == chunk.FingerprintOf(b, r.digest):
		r.outcome = batchSame
	}
	return r
}
