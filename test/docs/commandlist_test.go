package docs

import (
	"os"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
)

// entry is a command of testdata/commands.txt: one that no scenario runs.
type entry struct{ class, reason, line string }

// listed returns the commands that no scenario runs.
func listed(t *testing.T) []entry {
	t.Helper()
	text, err := os.ReadFile("testdata/commands.txt")
	enginetest.Must(t, err)
	list, problem := parseList(string(text))
	if problem != "" {
		t.Fatalf("testdata/commands.txt: %s", problem)
	}
	return list
}

// parseList reads a list of commands. A line "CLASS: REASON" starts a group, and the indented lines after it are its commands.
func parseList(text string) (list []entry, problem string) {
	var group entry
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		indented := strings.HasPrefix(line, "\t")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case indented && group.class == "":
			return nil, "a command before the first class: " + line
		case indented:
			group.line = strings.TrimSpace(line)
			list = append(list, group)
		default:
			class, reason, _ := strings.Cut(line, ": ")
			if !slices.Contains([]string{"parsed", "elsewhere", "foreign"}, class) || reason == "" {
				return nil, "want parsed, elsewhere or foreign, and a reason: " + line
			}
			group = entry{class: class, reason: reason}
		}
	}
	return list, ""
}

// TestCommandList: every group has a known class and a reason.
func TestCommandList(t *testing.T) {
	list, problem := parseList("# words\n\nparsed: needs a NIC\n\tibverbx perf\n\tibverbx ls\nforeign: of the system\n\tip link\n")
	if want := (entry{"foreign", "of the system", "ip link"}); problem != "" || len(list) != 3 || list[2] != want {
		t.Errorf("got %q, %q", list, problem)
	}
	for _, bad := range []string{"\tibverbx perf\n", "parsed:\n", "parsed\n", "skipped: too long\n"} {
		if _, problem := parseList(bad); problem == "" {
			t.Errorf("%q is accepted", bad)
		}
	}
}
