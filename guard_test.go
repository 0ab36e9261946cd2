//go:build race || ibverbxdebug

package ibverbx

import "testing"

// TestGuard: a call while another is under way on the same VirtualCQ panics.
func TestGuard(t *testing.T) {
	c := &VirtualCQ{}
	c.guard.enter("Poll")
	defer func() {
		if recover() == nil {
			t.Error("a second call was let in")
		}
		c.guard.leave()
		c.guard.enter("Poll") // and one after it is fine
		c.guard.leave()
	}()
	_, _ = c.Poll(nil)
}
