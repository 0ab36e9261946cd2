package forward

import (
	"fmt"
	"testing"
	"time"
)

// TestFloodOfLines: of many lines some are printed, then the number of suppressed ones. The next
// period starts afresh.
func TestFloodOfLines(t *testing.T) {
	lines := make(chan string, 2*maxLines)
	l := &limiter{to: func(format string, args ...any) { lines <- fmt.Sprintf(format, args...) }, period: time.Hour}
	for i := range 1000 {
		l.say("line %d", i)
	}
	l.end()
	l.say("last")
	l.end()
	close(lines)
	var got []string
	for line := range lines {
		got = append(got, line)
	}
	want := fmt.Sprintf("%d more lines were left out in the last 1h0m0s", 1000-maxLines)
	if len(got) != maxLines+2 || got[0] != "line 0" || got[maxLines] != want || got[maxLines+1] != "last" {
		t.Errorf("got %q, want %d lines, %q and the last one", got, maxLines, want)
	}
}
