//go:build plant

package ibverbx

// plants are the mistakes that a VirtualQP makes on purpose. They are there with the build
// tag plant only: the tests of package sim show that its checkers find each of them.
type plants struct{ made plant }

func (p plants) has(one plant) bool { return p.made&one != 0 }

// Plants returns the names of the mistakes that Plant knows.
func Plants() []string {
	return []string{"replay before Down", "replay an atomic", "complete before the data", "lose a number", "drop a refused fragment"}
}

// Plant makes a VirtualQP make a mistake from now on: the one at that place of Plants.
func (q *VirtualQP) Plant(place int) { q.planted.made |= 1 << place }
