package files

import (
	"context"
	"path"
	"time"

	"ibverbx/internal/chunk"
)

// maxLinkBytes limits the memory for files with several hard links. Further names become copies.
const maxLinkBytes = 128 << 20

// linkCost is the memory for one name, without its characters.
const linkCost = 256

// isHardLink reports whether an entry is another name of an already listed file, and records it.
func (t *treeDownload) isHardLink(e *treeEntry) bool {
	if e.Same == (chunk.Identity{}) {
		return false
	}
	first, ok := t.first[e.Same]
	d := &t.dirs[e.depth]
	cost := linkCost + len(e.path)
	if ok && len(d.links) == 0 { // recordLinks keeps the attributes of the directory
		cost += linkCost + len(d.path)
		for _, x := range d.Attributes().Xattrs {
			cost += len(x.Name) + len(x.Value)
		}
	}
	if t.linkBytes += cost; t.linkBytes > maxLinkBytes {
		t.linkBytes -= cost
		return false
	}
	if !ok {
		t.first[e.Same] = e.path
		return false
	}
	at := chunk.Entry{Name: e.Name, Mode: e.Mode, Size: e.Size, ModTime: e.ModTime} // the file has the other attributes
	d.links = append(d.links, chunk.HardLink{Entry: at, Target: first})
	return true
}

// recordLinks records the hard links of a completely listed directory. They are created after all files.
func (t *treeDownload) recordLinks(o *openedDir) {
	if len(o.links) > 0 {
		t.linked = append(t.linked, chunk.DirLinks{Path: o.path, Entry: o.Attributes(), Links: o.links})
	}
}

// links creates the hard links. If the file at a first name has changed by now, the link is
// reported as failed.
func (t *treeDownload) links(ctx context.Context) {
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
				t.omit(name, err)
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
			t.omit(x.Path, err)
		}
	}
}
