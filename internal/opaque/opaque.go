// Package opaque restricts access to fields of an exported struct. The fields are in a [Box], which only
// importers of this package can open; test/tidy lists the packages that may import it.
package opaque

// Box holds a value. The zero Box holds the zero value. A Box must not be copied if its value must not.
type Box[T any] struct{ value T }

// Open returns the value in a box.
func Open[T any](b *Box[T]) *T { return &b.value }
