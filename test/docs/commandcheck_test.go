package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
)

// checkDocumented checks that the flags, packages, tests, scripts and make targets of printed commands exist.
func checkDocumented(t *testing.T, tool string) {
	t.Helper()
	foreign := map[string]bool{}
	for _, e := range listed(t) {
		foreign[e.line] = e.class == "foreign"
	}
	done := map[string]bool{}
	for _, c := range documented(t) {
		if foreign[c.line] || done[c.line] {
			continue
		}
		done[c.line] = true
		if err := checkCommand(t.Context(), tool, c); err != nil {
			t.Errorf("%s prints %q: %v", c.page, c.line, err)
		}
	}
}

var (
	separator = regexp.MustCompile(` (?:&&|\|) `)
	word      = regexp.MustCompile(`'[^']*'|\S+`)
	testFunc  = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz|Example)\w*)\(`)
)

// checkCommand checks the programs of this repository in a command.
func checkCommand(ctx context.Context, tool string, c command) error {
	dir := "."
	for _, part := range separator.Split(c.line, -1) {
		words := word.FindAllString(withoutAssignments(part), -1)
		for i := range words {
			words[i] = strings.Trim(words[i], "'")
		}
		var err error
		switch {
		case words[0] == "cd" && len(words) == 2:
			dir = words[1]
		case words[0] == "ibverbx" || words[0] == "./ibverbx":
			err = checkFlags(ctx, tool, words[1:], c.inText)
		case words[0] == "make":
			err = checkTargets(words[1:])
		case words[0] == "go":
			err = checkGo(ctx, tool, dir, words[1:], c.inText)
		case strings.HasPrefix(words[0], "test/") || strings.HasPrefix(words[0], ".ci/"):
			err = checkScript(words)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkFlags lets ibverbx parse a command. With --help it parses all flags and their values, then
// prints its help. A sentence may mention a flag without its value.
func checkFlags(ctx context.Context, tool string, words []string, inText bool) error {
	if words[0] == "COMMAND" {
		return nil // stands for any flag
	}
	first := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "-") })
	if first < 0 {
		first = len(words)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, tool, slices.Insert(slices.Clone(words), first, "--help")...).CombinedOutput()
	switch {
	case err == nil && !strings.Contains(string(out), "\n  ibverbx "+words[0]+" "):
		return fmt.Errorf("ibverbx has no command %q", words[0])
	case err == nil, inText && strings.Contains(string(out), "flag needs an argument: "):
		return nil
	}
	return fmt.Errorf("ibverbx rejects it: %s", out)
}

// checkTargets checks the targets and variables of a make command.
func checkTargets(words []string) error {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		return err
	}
	for _, w := range words {
		name, _, variable := strings.Cut(w, "=")
		switch {
		case variable && !strings.Contains(string(makefile), "$("+name+")"):
			return fmt.Errorf("the Makefile has no variable %s", name)
		case !variable && !strings.Contains(string(makefile), "\n"+name+":"):
			return fmt.Errorf("the Makefile has no target %s", name)
		}
	}
	return nil
}

// checkGo checks a go command in a directory: its packages, and for go test also the tests and benchmarks.
func checkGo(ctx context.Context, tool, dir string, words []string, inText bool) error {
	verb, words := words[0], words[1:]
	if verb == "mod" || len(words) == 0 {
		return nil // a scenario runs it, or the sentence only mentions it
	}
	if words[0] == "-C" {
		dir, words = words[1], words[2:]
	}
	if verb == "run" {
		if err := checkPackage(dir, words[0]); err != nil || words[0] != "./cmd/ibverbx" {
			return err
		}
		return checkFlags(ctx, tool, words[1:], inText)
	}
	var packages []string
	for i, w := range words {
		if (w == "." || strings.HasPrefix(w, "./")) && (i == 0 || words[i-1] != "-o") {
			packages = append(packages, w)
			if err := checkPackage(dir, w); err != nil {
				return err
			}
		}
	}
	if len(packages) == 0 {
		packages = []string{"."}
	}
	return checkPatterns(dir, words, packages, "-bench", "-run")
}

// checkPackage checks that a directory with Go files exists. PACKAGE stands for any.
func checkPackage(dir, name string) error {
	files, err := goFiles(dir, name)
	if err == nil && len(files) == 0 && name != "./PACKAGE" {
		err = fmt.Errorf("there is no package %s in %s", name, dir)
	}
	return err
}

// goFiles returns the Go files of a package, or of all packages below it if its suffix is /...
func goFiles(dir, name string) ([]string, error) {
	base, deep := strings.CutSuffix(name, "/...")
	base = filepath.Join("../..", dir, base)
	if !deep {
		return filepath.Glob(filepath.Join(base, "*.go"))
	}
	return filepath.Glob(filepath.Join(base, "*/*.go")) // deep enough for all printed patterns
}

// checkPatterns checks that the first of the given flags that a command has selects a test or a benchmark of its packages.
func checkPatterns(dir string, words, packages []string, flags ...string) error {
	for _, flag := range flags {
		i := slices.Index(words, flag)
		if i < 0 {
			continue
		}
		top, _, _ := strings.Cut(words[i+1], "/") // the rest selects subtests
		pattern, err := regexp.Compile(top)
		if err != nil {
			return err
		}
		kinds := regexp.MustCompile("^(Test|Fuzz|Example)")
		if flag == "-bench" {
			kinds = regexp.MustCompile("^Benchmark")
		}
		for _, name := range packages {
			files, err := goFiles(dir, name)
			if err != nil {
				return err
			}
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				for _, m := range testFunc.FindAllSubmatch(text, -1) {
					if kinds.Match(m[1]) && pattern.Match(m[1]) {
						return nil
					}
				}
			}
		}
		return fmt.Errorf("%s %s selects nothing in %v", flag, words[i+1], packages)
	}
	return nil
}

// checkScript checks a script and the packages and tests in its arguments.
func checkScript(words []string) error {
	if info, err := os.Stat(filepath.Join("../..", words[0])); err != nil {
		return err
	} else if info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not executable", words[0])
	}
	var packages []string
	for _, w := range words[1:] {
		if w == "." || strings.HasPrefix(w, "./") {
			packages = append(packages, w)
			if err := checkPackage(".", w); err != nil {
				return err
			}
		}
	}
	return checkPatterns(".", words, packages, "-test.run")
}

// checkChecks checks that each check can fail.
func checkChecks(t *testing.T, tool string) {
	t.Helper()
	for line, want := range map[string]bool{
		"ibverbx perf write HOST -D 5 --json":       true,
		"ibverbx perf --no-such-flag":               false,
		"ibverbx perf -D":                           false,
		"ibverbx perf -D soon":                      false,
		"ibverbx nothing":                           false,
		"go run ./cmd/ibverbx serve --token-file t": true,
		"go run ./cmd/ibverbx serve --none":         false,
		"go run ./examples/none":                    false,
		"make race RACE=./node":                     true,
		"make none":                                 false,
		"make race NONE=1":                          false,
		"IBVERBX_TEST_LONG=1 go test ./node -run '^$' -bench IdlePeers": true,
		"go test ./node -bench None":                                    false,
		"go test ./node -run TestNone":                                  false,
		"go test ./none":                                                false,
		"go test -C test/stream -bench GRPC .":                          true,
		"test/rxe/all ./test/rxe/reliable -- -test.run TestConformance": true,
		"test/rxe/all . -- -test.run TestNone":                          false,
		"test/rxe/none":                                                 false,
		"ls && ibverbx ls HOST --none":                                  false,
	} {
		if err := checkCommand(t.Context(), tool, command{line: line}); (err == nil) != want {
			t.Errorf("%q: %v, want an error: %v", line, err, !want)
		}
	}
	enginetest.Must(t, checkCommand(t.Context(), tool, command{line: "ibverbx perf -D", inText: true}))
}
