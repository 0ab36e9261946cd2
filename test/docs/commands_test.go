package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
)

// command is a command line in the documentation.
type command struct {
	page, line string
	inText     bool // in a sentence or a table, not in a block
}

var (
	prompt     = regexp.MustCompile(`^[a-z0-9]*\$ +`)
	comment    = regexp.MustCompile(`\s+# .*$`)
	hereDoc    = regexp.MustCompile(`<<'?([A-Z]+)'?$`)
	codeSpan   = regexp.MustCompile("``?([^`]+)``?")
	assignment = regexp.MustCompile(`^([A-Z_]+=\S+ )+`)
	// ours matches the programs of this repository, and the tools that build it.
	ours = regexp.MustCompile(`^(\./)?ibverbx( |$)|^go (build|mod|run|test|tool|vet) |^make |^test/\S+/all( |$)|^\.ci/run$`)
	// others matches programs of the system that the documentation calls. Such a line marks its block as shell commands.
	others = regexp.MustCompile(`^(apt-get|cat|cd|curl|dcb|dnf|docker|echo|git|ib_\w+|ibv_\w+|ip|kubectl|modprobe|ping|psql|rdma|scp|ssh|sudo|systemctl|tcpdump) `)
)

// withoutAssignments removes the variables before a command.
func withoutAssignments(line string) string { return assignment.ReplaceAllString(line, "") }

// isCommandLine reports whether a line starts with a known program.
func isCommandLine(line string) bool {
	line = withoutAssignments(line)
	return ours.MatchString(line) || others.MatchString(line)
}

// commandsOf returns the commands of a page: all lines of its shell blocks, and code spans that start with a program of this repository.
func commandsOf(page, text string) (all []command) {
	for _, b := range blocksOf(text) {
		for _, line := range commandLines(b) {
			all = append(all, command{page: page, line: line})
		}
	}
	for _, m := range codeSpan.FindAllStringSubmatch(withoutBlocks(text), -1) {
		line := strings.Join(strings.Fields(m[1]), " ")
		bare := withoutAssignments(line)
		if ours.MatchString(bare) && strings.Contains(bare, " ") {
			all = append(all, command{page: page, line: line, inText: true})
		}
	}
	return all
}

// block is a fenced block that may contain commands: it is labeled as shell, or unlabeled.
type block struct {
	labeled bool
	lines   []string
}

// blocksOf returns the blocks of a page.
func blocksOf(text string) (blocks []block) {
	inside, take := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		label, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && !inside:
			inside, take = true, slices.Contains([]string{"", "sh", "bash", "shell", "console"}, label)
			if take {
				blocks = append(blocks, block{labeled: label != ""})
			}
		case fence:
			inside = false
		case inside && take:
			last := &blocks[len(blocks)-1]
			last.lines = append(last.lines, line)
		}
	}
	return blocks
}

// commandLines returns the commands in a block: only lines with a prompt if the block has prompts; otherwise all lines, if the block is
// labeled or one of them starts with a known program. Continued lines are joined, and the text of a here-document is skipped.
func commandLines(b block) (lines []string) {
	prompted := slices.ContainsFunc(b.lines, prompt.MatchString)
	if !prompted && !b.labeled && !slices.ContainsFunc(b.lines, isCommandLine) {
		return nil
	}
	end, continued := "", ""
	for _, line := range b.lines {
		switch {
		case end != "":
			if line == end {
				end = ""
			}
			continue
		case prompted && !prompt.MatchString(line):
			continue
		}
		line = comment.ReplaceAllString(prompt.ReplaceAllString(line, ""), "")
		line = strings.TrimSpace(continued + " " + strings.TrimSpace(line))
		continued = ""
		if before, ok := strings.CutSuffix(line, `\`); ok {
			continued = strings.TrimSpace(before)
			continue
		}
		if m := hereDoc.FindStringSubmatch(line); m != nil {
			end = m[1]
		}
		if line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// documented returns the commands in README.md, CONTRIBUTING.md, SECURITY.md, docs and the examples.
func documented(t *testing.T) (all []command) {
	t.Helper()
	for _, page := range markdown(t) {
		dir := filepath.Dir(page)
		if dir != "." && dir != "docs" && !strings.HasPrefix(dir, "examples/") || page == "CHANGELOG.md" { // the changelog names old commands too
			continue
		}
		text, err := os.ReadFile(filepath.Join("../..", page))
		enginetest.Must(t, err)
		all = append(all, commandsOf(page, string(text))...)
	}
	return all
}

// TestCommandLines: commands are found in blocks and sentences.
func TestCommandLines(t *testing.T) {
	const page = "Run `make test`, `ibverbx` or `ibverbx\nperf`; `x = 1` is none.\n" +
		"```\nA=1 go test ./...   # all\ndocker run \\\n    IMAGE\ncat > f <<'END'\ntext\nEND\nmine --flag\n```\n" +
		"```\nhost1$ ibverbx ls host1\nmodels\n```\n```go\ngo run ./none\n```\n```\nlevel 1   go\n```\n" +
		"```sh\nnew-program\n```\n"
	var got []string
	for _, c := range commandsOf("page.md", page) {
		got = append(got, c.line)
	}
	want := []string{"A=1 go test ./...", "docker run IMAGE", "cat > f <<'END'", "mine --flag", "ibverbx ls host1", "new-program", "make test", "ibverbx perf"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestCommandClasses: every command in a block has one class, and every command with a class is printed.
func TestCommandClasses(t *testing.T) {
	classes := map[string][]string{}
	for _, e := range listed(t) {
		classes[e.line] = append(classes[e.line], e.class)
		if bare := withoutAssignments(e.line); e.class == "foreign" && ours.MatchString(bare) || e.class == "parsed" && !strings.Contains(bare, "ibverbx ") {
			t.Errorf("%q is listed as %s", e.line, e.class)
		}
	}
	for _, s := range scenarios() {
		for _, line := range s.commands {
			classes[line] = append(classes[line], "run")
		}
	}
	printed := map[string]bool{}
	for _, c := range documented(t) {
		printed[c.line] = true
		if len(classes[c.line]) == 0 && !c.inText {
			t.Errorf("%s prints %q, which has no class. Add it to a scenario in scenarios_test.go, which runs it, or to testdata/commands.txt with the reason why no scenario does.", c.page, c.line)
		}
	}
	for line, of := range classes {
		if len(of) > 1 {
			t.Errorf("%q has %d classes, want one: %q", line, len(of), of)
		}
		if !printed[line] {
			t.Errorf("%q is listed as %q, but no page prints it. Remove it, or follow the change of the page.", line, of)
		}
	}
}
