//go:build !plant

package ibverbx

// plants is nothing in ordinary builds, and what it guards is not compiled; see plant_on.go.
type plants struct{}

func (plants) has(plant) bool { return false }
