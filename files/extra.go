package files

import (
	"path"

	"ibverbx/internal/chunk"
)

// push makes a directory the innermost open one.
func (t *treePull) push(d *chunk.Dir, path string) (err error) {
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

// pass records that the peer has an entry. Entries arrive sorted by name.
func (o *openedDir) pass(name string) {
	for len(o.local) > 0 && o.local[0] <= name {
		if o.local[0] != name {
			o.extra = append(o.extra, o.local[0])
		}
		o.local = o.local[1:]
	}
}

// leaveExtra records the local names in a completely listed directory that the peer lacks.
func (t *treePull) leaveExtra(o *openedDir) {
	if names := append(o.extra, o.local...); len(names) > 0 {
		t.extra = append(t.extra, chunk.Extra{Path: o.path, Entry: o.Attributes(), Names: names})
	}
}

// remove removes the local entries that the peer lacks, except excluded ones.
func (t *treePull) remove() {
	for i := range t.extra {
		x := &t.extra[i]
		n, err := t.tree.Remove(x, t.filter.Excludes)
		t.counts.deleted.Add(n)
		if err != nil {
			t.fail(path.Join(x.Path), err)
		}
	}
}
