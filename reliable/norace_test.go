//go:build !race

package reliable_test

const raceEnabled = false
