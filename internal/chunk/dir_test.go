package chunk

import (
	"errors"
	"fmt"
	"sync"
	"testing"
)

// TestTreesStartTogether: several Trees begin to write to one directory at the same time. Each can lock its new lock file, although
// others look for the lock files of killed processes, and removes it.
func TestTreesStartTogether(t *testing.T) {
	root, _ := newRoot(t)
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() {
			for range 300 {
				x, err := NewTree(root, TreeConfig{Sync: SyncNever, KeepTop: true})
				if err == nil {
					err = writeOne(x, fmt.Sprint(i))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	if left, err := partialNames(root); err != nil || len(left) > 0 {
		t.Errorf("%q are left (%v), want none", left, err)
	}
}

// writeOne writes a small file with a Tree and closes it.
func writeOne(x *Tree, name string) error {
	top, err := x.Top(Entry{ModTime: someDay}, false)
	if err != nil {
		return errors.Join(err, x.Close(false))
	}
	s, err := top.Write(&Entry{Name: name, Mode: 0o600, ModTime: someDay}, []byte(name), Digest([]byte(name)))
	if err == nil {
		err = errors.Join(s.Flush(), s.Commit())
	}
	return errors.Join(err, top.Release(), x.Close(err == nil))
}
