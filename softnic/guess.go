package softnic

import "time"

// Limits of wrong keys on UC. A wrong key costs the sender nothing there, so an attacker could try all. On
// RC a wrong key ends the QP, and a duplicate READ must repeat one that was served.
const (
	maxGuesses = 16
	guessTime  = int64(100 * time.Millisecond)
)

// guesses limits the wrong keys that peers may try on the UC QPs of a PD: 16 in 100 ms. After that all
// WRITEs are dropped until the time is over, also those with a right key: they cannot be told apart
// without telling which keys are right. No QP is closed.
type guesses struct {
	// wrong counts wrong keys since until-guessTime.
	wrong uint32
	until int64
}

// blocked reports whether WRITEs are dropped.
func (g *guesses) blocked(c *core) bool {
	if g.wrong < maxGuesses {
		return false
	}
	if c.clock() < g.until {
		return true
	}
	g.wrong = 0
	return false
}

// count counts a wrong key.
func (g *guesses) count(c *core) {
	if g.wrong == 0 {
		g.until = c.clock() + guessTime
	}
	g.wrong++
}
