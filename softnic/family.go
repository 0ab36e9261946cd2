package softnic

import (
	"maps"
	"slices"
)

// family is the set of objects that depend on another one. It remembers the order in which they were
// made. They are destroyed in that order, so that the same calls leave the same state.
type family[T comparable] struct {
	// born numbers the objects in the order in which they were made.
	born  map[T]uint64
	count uint64
}

func (f *family[T]) add(v T) {
	if f.born == nil {
		f.born = make(map[T]uint64)
	}
	f.count++
	f.born[v] = f.count
}

func (f *family[T]) remove(v T) { delete(f.born, v) }

func (f *family[T]) len() int { return len(f.born) }

// inOrder returns the objects in the order in which they were made.
func (f *family[T]) inOrder() []T {
	return slices.SortedFunc(maps.Keys(f.born), func(a, b T) int { return int(f.born[a]) - int(f.born[b]) })
}
