// Package opaque hides fields of a struct that two packages share. Only packages that import this
// one can access the fields, and test/tidy lists the packages that may.
package opaque

// Box holds a value. The zero Box holds the zero value. A Box must not be copied if its value must not.
type Box[T any] struct{ value T }

// Open returns the value in a box.
func Open[T any](b *Box[T]) *T { return &b.value }
