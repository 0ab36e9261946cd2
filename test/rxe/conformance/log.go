package main

import (
	"bufio"
	"io"
	"regexp"
	"strings"
)

// testLog is the output of go test -v.
type testLog struct {
	verdicts map[string]string   // PASS, FAIL or SKIP, by full name of a test
	lines    map[string][]string // a test's log, without file and line
	order    []string            // tests in starting order
}

var (
	beganLine   = regexp.MustCompile(`^=== (RUN|NAME|CONT) +(\S+)$`)
	verdictLine = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \(`)
	loggedLine  = regexp.MustCompile(`^ +[\w.-]+\.go:\d+: (.*)$`)
)

// readLog parses the plain output of go test -v, where a test's log lines follow the line that
// announces the test.
func readLog(r io.Reader) (*testLog, error) {
	l := &testLog{verdicts: map[string]string{}, lines: map[string][]string{}}
	current := ""
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		line := strings.TrimSuffix(sc.Text(), "\r")
		if m := beganLine.FindStringSubmatch(line); m != nil {
			if current = m[2]; m[1] == "RUN" {
				l.order = append(l.order, current)
			}
		} else if m := verdictLine.FindStringSubmatch(line); m != nil {
			l.verdicts[m[2]] = m[1]
		} else if m := loggedLine.FindStringSubmatch(line); m != nil {
			l.lines[current] = append(l.lines[current], m[1])
		}
	}
	return l, sc.Err()
}

// below returns the tests under name, in order.
func (l *testLog) below(name string) []string {
	var names []string
	for _, n := range l.order {
		if strings.HasPrefix(n, name+"/") {
			names = append(names, n)
		}
	}
	return names
}

// find returns the text after a prefix in any test's log.
func (l *testLog) find(prefix string) []string {
	var found []string
	for _, name := range l.order {
		for _, line := range l.lines[name] {
			if rest, ok := strings.CutPrefix(line, prefix); ok {
				found = append(found, rest)
			}
		}
	}
	return found
}
