//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestABI compares abi.h with the headers of libibverbs: the size and offset of each structure
// and field, and each constant. A program compiled against both prints the comparison.
func TestABI(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		missing(t, "a C compiler")
	}
	bin := filepath.Join(t.TempDir(), "abi")
	out, err := exec.Command(cc, "-Wall", "-Werror", "-o", bin, "testdata/abi_test.c").CombinedOutput()
	if bytes.Contains(out, []byte("infiniband/")) && bytes.Contains(out, []byte("No such file")) {
		missing(t, "the headers of libibverbs (package libibverbs-dev)")
	}
	if err != nil {
		t.Fatalf("compile testdata/abi_test.c: %v, want success\n%s", err, out)
	}
	if out, err = exec.Command(bin).Output(); err != nil {
		t.Fatalf("run the comparison: %v, want success", err)
	}
	compared := map[string]bool{}
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		var (
			what         string
			ours, theirs int64
		)
		if _, err := fmt.Sscanf(sc.Text(), "%s %d %d", &what, &ours, &theirs); err != nil {
			t.Fatalf("line %q of the comparison: %v, want a name and two numbers", sc.Text(), err)
		}
		compared[what] = true
		if ours != theirs {
			t.Errorf("%s is %d in abi.h, want %d as in the library", what, ours, theirs)
		}
	}
	for _, what := range declared(t) {
		if !compared[what] {
			t.Errorf("%s is declared in abi.h and not compared in testdata/abi_test.c", what)
		}
	}
}

// missing skips the test, or fails it in CI, where everything must be installed.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("IBVERBX_CI") == "1" {
		t.Fatalf("needs %s, which CI must have", what)
	}
	t.Skipf("needs %s", what)
}

var (
	structBegin = regexp.MustCompile(`^struct (vb_\w+) \{$`)
	lastName    = regexp.MustCompile(`(\w+)(\[\w+\])?\)?(\([^;]*\))?;`)
	constant    = regexp.MustCompile(`^\t(VB_\w+) =`)
)

// declared lists the structures, fields and constants that abi.h declares. Reserved fields have
// no counterpart.
func declared(t *testing.T) (all []string) {
	t.Helper()
	text, err := os.ReadFile("abi.h")
	if err != nil {
		t.Fatalf("ReadFile = %v, want abi.h", err)
	}
	name, depth := "", 0
	for _, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, " //")
		if m := constant.FindStringSubmatch(line); m != nil && name == "" {
			all = append(all, m[1])
		}
		if m := structBegin.FindStringSubmatch(line); m != nil {
			name = m[1]
			all = append(all, name)
			continue
		}
		switch {
		case name == "":
		case line == "};":
			name = ""
		case strings.HasSuffix(line, "{"):
			depth++
		case strings.HasPrefix(strings.TrimSpace(line), "}"):
			depth--
		case depth == 0:
			field := line
			if i := strings.Index(line, "(*"); i >= 0 {
				field = line[i+2:]
				field = field[:strings.Index(field, ")")] + ";"
			}
			m := lastName.FindStringSubmatch(field)
			if m == nil {
				t.Fatalf("line %q of abi.h: no field found, want one", line)
			}
			if !strings.HasPrefix(m[1], "unused") && !strings.HasPrefix(m[1], "old") {
				all = append(all, name+"."+m[1])
			}
		}
	}
	if len(all) < 200 {
		t.Fatalf("abi.h declares %d things, want it read completely", len(all))
	}
	return all
}
