package debugcheck

import "testing"

// TestGuard: with checks built in, a second call before Leave panics; after Leave it does not.
func TestGuard(t *testing.T) {
	var g Guard
	g.Enter("first", "misuse")
	func() {
		defer func() {
			if got := recover() != nil; got != On {
				t.Errorf("a second call panics: %v, want %v", got, On)
			}
		}()
		g.Enter("second", "misuse")
	}()
	g.Leave()
	g.Enter("third", "misuse")
	g.Leave()
}
