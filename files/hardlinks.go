package files

import (
	"context"
	"path"
	"time"

	"ibverbx/internal/chunk"
)

// maxFirst limits the remembered files with several hard links. Further ones become copies.
const maxFirst = 1 << 20

// further reports whether an entry is a further name of a file that was listed, and records it.
func (t *treePull) further(e *treeEntry) bool {
	if e.Same == (chunk.Identity{}) {
		return false
	}
	first, ok := t.first[e.Same]
	if !ok {
		if len(t.first) < maxFirst {
			t.first[e.Same] = e.path
		}
		return false
	}
	d := &t.dirs[e.depth]
	d.links = append(d.links, chunk.HardLink{Entry: e.Entry, Target: first})
	return true
}

// leaveLinks records the hard links of a completely listed directory. They are created after all files.
func (t *treePull) leaveLinks(o *openedDir) {
	if len(o.links) > 0 {
		t.linked = append(t.linked, chunk.Linked{Path: o.path, Entry: o.Attributes(), Links: o.links})
	}
}

// links creates the hard links. A file whose first name has another version by now is named.
func (t *treePull) links(ctx context.Context) {
	for i := range t.linked {
		if ctx.Err() != nil {
			return
		}
		x := &t.linked[i]
		start := time.Now()
		err := t.tree.Link(x, func(l *chunk.HardLink, made bool, err error) {
			name := path.Join(x.Path, l.Entry.Name)
			switch {
			case err != nil:
				t.fail(name, err)
			case made:
				t.counts.sent.Add(1)
			default:
				t.counts.unchanged.Add(1)
			}
			if err != nil || made && !t.cfg.DryRun {
				t.received(path.Join(t.name, name), start, 0, true, err)
			}
		})
		if err != nil {
			t.fail(x.Path, err)
		}
	}
}
