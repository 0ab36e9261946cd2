//go:build linux

package dropin_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ran holds a program's results in this run of the tests.
type ran struct {
	program       string
	with, without []string // options of its passed tests, and of its failed or skipped ones
	note          string
	// pkg is the package of a program that dpkg cannot find by name.
	pkg string
}

// report lists programs in the order of their tests. Tests that add to it do not run in parallel.
type report []*ran

// programsRan is the report of this run, for the table of docs/dropin.md.
var programsRan report

// add records the result of a test that runs a program with some options.
func (r *report) add(t *testing.T, program, options string) *ran {
	i := slices.IndexFunc(*r, func(p *ran) bool { return p.program == program })
	if i < 0 {
		i = len(*r)
		*r = append(*r, &ran{program: program})
	}
	p := (*r)[i]
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() {
			p.without = append(p.without, options)
		} else {
			p.with = append(p.with, options)
		}
	})
	return p
}

// versionOf returns the version of a program's package. program may be a package name.
func versionOf(program string) string {
	name := program
	if path, err := exec.LookPath(program); err == nil {
		path, _ = filepath.EvalSymlinks(path) // /etc/alternatives belongs to no package
		owner, _ := exec.Command("dpkg-query", "-S", path).Output()
		name, _, _ = strings.Cut(string(owner), ":")
	}
	version, err := exec.Command("dpkg-query", "-W", "-f", "${source:Upstream-Version}", name).Output()
	if err != nil {
		return "unknown"
	}
	return name + " " + string(version)
}

// String returns the report as the rows of a table.
func (r report) String() string {
	var b strings.Builder
	b.WriteString("| Program | Package | With | Result |\n|---|---|---|---|\n")
	for _, p := range r {
		options := make([]string, len(p.with))
		for i, o := range p.with {
			options[i] = "plain"
			if o != "" {
				options[i] = "`" + o + "`"
			}
		}
		result := "yes"
		if len(p.without) > 0 {
			result = "not with " + strings.Join(p.without, ", ")
		}
		if p.note != "" {
			result += "; " + p.note
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", p.program, versionOf(cmp.Or(p.pkg, p.program)), strings.Join(options, ", "), result)
	}
	return b.String()
}

// The lines before and after the table in the document.
const tableBegins, tableEnds = "<!-- make dropin-table writes this table -->\n", "<!-- end of the table -->\n"

// write replaces the table in a document.
func (r report) write(document string) error {
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	before, rest, begins := strings.Cut(string(text), tableBegins)
	_, after, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		return fmt.Errorf("%s has no place for a table", document)
	}
	return os.WriteFile(document, []byte(before+tableBegins+r.String()+tableEnds+after), 0o644)
}
