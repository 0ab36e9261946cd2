package files

import (
	"context"

	"ibverbx/internal/chunk"
)

// push opens a directory below the open ones.
func (t *treeDownload) push(d *chunk.Dir, path string) (err error) {
	o := openedDir{Dir: d, path: path}
	if t.cfg.Delete {
		if o.local, err = d.Names(maxNames); err != nil {
			t.release(d)
			return err
		}
	}
	t.dirs = append(t.dirs, o)
	return nil
}

// skipTo records that the peer has an entry. Entries arrive sorted by name.
func (o *openedDir) skipTo(name string) {
	for len(o.local) > 0 && o.local[0] <= name {
		if o.local[0] != name {
			o.extra = append(o.extra, o.local[0])
		}
		o.local = o.local[1:]
	}
}

// recordExtra records the local names in a completely listed directory that the peer lacks.
func (t *treeDownload) recordExtra(o *openedDir) {
	if names := append(o.extra, o.local...); len(names) > 0 {
		t.extra = append(t.extra, chunk.ExtraNames{Path: o.path, Entry: o.Attributes(), Names: names})
	}
}

// remove removes the local entries that the peer lacks, except excluded ones. It stops once ctx is done, and returns the cause.
func (t *treeDownload) remove(ctx context.Context) error {
	for i := range t.extra {
		x := &t.extra[i]
		n, err := t.tree.Remove(ctx, x, t.filter.Excludes)
		t.counts.deleted.Add(n)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			t.omit(x.Path, err)
		}
	}
	return nil
}
