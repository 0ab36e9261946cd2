//go:build race

package measure

// raced is true under the race detector, which makes tests ten times slower.
const raced = true
