// Package opaque hides fields of a struct that two packages share. A package that has such a struct cannot see into its boxes
// unless it imports this one, and test/tidy says which packages may.
package opaque

// Box holds a value. The zero Box holds the zero value. A Box must not be copied if its value must not.
type Box[T any] struct{ value T }

// Open returns the value in a box.
func Open[T any](b *Box[T]) *T { return &b.value }
