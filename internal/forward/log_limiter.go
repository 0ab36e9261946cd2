package forward

import (
	"sync"
	"time"
)

const (
	// maxLines is the maximum number of lines a Client or Server prints per period.
	maxLines = 20
	period   = time.Minute
)

// limiter passes maxLines lines per period. After the period it prints the number of suppressed
// lines.
type limiter struct {
	to     Logf
	period time.Duration

	mu sync.Mutex
	// lines counts the lines of this period, which starts with its first line.
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

// end closes the period.
func (l *limiter) end() {
	l.mu.Lock()
	more := l.lines - maxLines
	l.lines = 0
	l.mu.Unlock()
	if more > 0 {
		l.to("%d more lines were left out in the last %v", more, l.period)
	}
}
