package forward

import (
	"sync"
	"time"
)

const (
	// maxLines is how many lines a Client or Server prints in a period.
	maxLines = 20
	period   = time.Minute
)

// limiter passes on maxLines lines in a period. At the end of the period it says how many more there were.
type limiter struct {
	to     Say
	period time.Duration

	mu sync.Mutex
	// lines is how many there were in this period. It begins with the first one.
	lines int
}

func (l *limiter) say(format string, args ...any) {
	l.mu.Lock()
	if l.lines == 0 {
		time.AfterFunc(l.period, l.end)
	}
	l.lines++
	pass := l.lines <= maxLines
	l.mu.Unlock()
	if pass {
		l.to(format, args...)
	}
}

// end ends the period.
func (l *limiter) end() {
	l.mu.Lock()
	more := l.lines - maxLines
	l.lines = 0
	l.mu.Unlock()
	if more > 0 {
		l.to("%d more lines were left out in the last %v", more, l.period)
	}
}
