package tidy_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goodTree is a small tree that satisfies every rule.
var goodTree = map[string]string{
	"go.mod": "module ibverbx\n",
	"doc.go": "// Package ibverbx is the engine.\npackage ibverbx\n\nimport (\n\t_ \"ibverbx/internal/ring\"\n\t_ \"ibverbx/verbs\"\n)\n",
	"verbs/verbs.go": "// Package verbs is the seam.\npackage verbs\n\nimport \"errors\"\n\n" +
		"var ErrClosed = errors.New(\"closed\")\n\nvar names = [...]string{\"a\"}\n\nfunc f() { names := 1; names++; _ = names }\n",
	"verbs/memory_unix.go":          "package verbs\n\nimport _ \"unsafe\"\n",
	"verbs/verbstest/verbstest.go":  "// Package verbstest is the suite.\npackage verbstest\n\nimport _ \"ibverbx/verbs\"\n",
	"internal/ring/ring.go":         "// Package ring is an algorithm.\npackage ring\n",
	"internal/perf/measure/perf.go": "// Package perf measures.\npackage perf\n\nimport _ \"ibverbx/verbs\"\n",
	"internal/enginetest/rig.go":    "// Package enginetest is for tests.\npackage enginetest\n\nimport (\n\t_ \"ibverbx\"\n\t_ \"ibverbx/softnic\"\n)\n",
	"test/engine/doc.go":            "// Package engine is a suite.\npackage engine\n\nimport _ \"ibverbx/internal/enginetest\"\n",
	"softnic/nic.go":                "// Package softnic is a NIC.\npackage softnic\n\nimport (\n\t_ \"ibverbx/internal/ring\"\n\t_ \"ibverbx/verbs\"\n)\n",
	"softnic/nic_clock.go":          "package softnic\n\nimport \"time\"\n\nfunc now() time.Time { return time.Now() }\n\nfunc help() { go func() {}() }\n",
	"softnic/shm_port.go":           "package softnic\n\ntype shmPort struct{ nic *int }\n",
	"softnic/mem_unsafe.go":         "package softnic\n\nimport _ \"unsafe\"\n",
	"softnic/nic_test.go": "package softnic_test\n\nimport (\n\t\"testing\"\n\n\t_ \"ibverbx/internal/perf\"\n\t_ \"ibverbx/internal/enginetest\"\n\t_ \"unsafe\"\n)\n\n" +
		"var n int\n\nfunc TestX(t *testing.T) { n++; go func() {}(); t.Skip(\"no hardware\") }\n",
	"rdmacore/cgo.go":         "// Package rdmacore is real.\npackage rdmacore\n\nimport \"C\"\n",
	"cuda/cgo.go":             "// Package cuda is for GPUs.\npackage cuda\n\nimport (\n\t\"C\"\n\t_ \"unsafe\"\n)\n",
	"cmd/ibverbx/main.go":     "// Ibverbx is the tool.\npackage main\n\nimport (\n\t_ \"ibverbx/internal/perf\"\n\t_ \"ibverbx/softnic\"\n)\n",
	"examples/pingpong/go.go": "// Command pingpong shows one thing.\npackage main\n",
	"testdata/util.go":        "this is not looked at",
	"README.md":               "all is well\n",
	"SECURITY.md":             "all is safe (`TestX`)\n",
}

// plant writes files to an empty directory and loads them.
func plant(t *testing.T, files map[string]string) *tree {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tr, err := loadTree(root)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestTidyAcceptsAGoodTree(t *testing.T) {
	tr := plant(t, goodTree)
	for _, r := range rules {
		for _, finding := range r.check(tr) {
			t.Errorf("%s: %s", r.name, finding)
		}
	}
}

// repeat returns a line n times, with the numbers from 0.
func repeat(line string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, line, i)
	}
	return b.String()
}

// lines returns a Go function of n lines.
func lines(n int) string { return "func f() {\n" + strings.Repeat("\t_ = 0\n", n-2) + "}\n" }

// A blemish is one change to goodTree, the rule that must object, and the expected finding.
var blemishes = []struct{ rule, file, text, want string }{
	{"module", "go.mod", "module example.com/other\n", "want \"module ibverbx\""},

	{"package comments", "internal/ring/ring.go", "package ring\n", "internal/ring: 0 package comments"},
	{"package comments", "internal/ring/more.go", "// Package ring again.\npackage ring\n", "internal/ring: 2 package comments"},
	{"package comments", "internal/ring/ring.go", "// This is a ring.\npackage ring\n", "ring.go:2: the package comment starts with"},
	{"package comments", "cmd/ibverbx/main.go", "// Package main is the tool.\npackage main\n", "main.go:2: the package comment starts with"},

	{"arrows", "doc.go", "package ibverbx\n\nimport _ \"ibverbx/softnic\"\n", "doc.go:3: . may not import softnic"},
	{"arrows", "doc.go", "package ibverbx\n\nimport _ \"ibverbx/internal/perf/measure\"\n", ". may not import internal/perf/measure"},
	{"arrows", "verbs/verbs.go", "package verbs\n\nimport _ \"ibverbx\"\n", "verbs may not import ."},
	{"arrows", "verbs/verbs.go", "package verbs\n\nimport _ \"ibverbx/softnic\"\n", "verbs may not import softnic"},
	{"arrows", "verbs/verbstest/verbstest.go", "package verbstest\n\nimport _ \"ibverbx/softnic\"\n", "verbs/verbstest may not import softnic"},
	{"arrows", "softnic/nic.go", "package softnic\n\nimport _ \"ibverbx/rdmacore\"\n", "softnic may not import rdmacore"},
	{"arrows", "softnic/nic.go", "package softnic\n\nimport _ \"ibverbx\"\n", "softnic may not import ."},
	{"arrows", "cuda/gpu.go", "package cuda\n\nimport _ \"ibverbx/softnic\"\n", "cuda may not import softnic"},
	{"arrows", "internal/ring/ring.go", "package ring\n\nimport _ \"ibverbx/verbs\"\n", "internal/ring may not import verbs"},
	{"arrows", "internal/ring/ring.go", "package ring\n\nimport _ \"ibverbx/internal/other\"\n", "internal/ring may not import internal/other"},
	{"arrows", "internal/perf/measure/perf.go", "package perf\n\nimport _ \"ibverbx/softnic\"\n", "internal/perf/measure may not import softnic"},
	{"arrows", "reliable/wrap.go", "package reliable\n\nimport _ \"ibverbx/softnic\"\n", "reliable may not import softnic"},
	{"arrows", "cmd/ibverbx/rig.go", "package main\n\nimport _ \"ibverbx/internal/enginetest\"\n", "cmd/ibverbx may not import internal/enginetest"},
	{"arrows", "internal/perf/measure/perf.go", "package perf\n\nimport _ \"ibverbx/internal/enginetest\"\n", "internal/perf/measure may not import internal/enginetest"},
	{"arrows", "shed/shed.go", "package shed\n", "directory shed has no place"},

	{"names", "verbs/utils.go", "package verbs\n", "a file is not called utils"},
	{"names", "verbs/helper.go", "package verbs\n", "a file is not called helper"},
	{"names", "verbs/common_test.go", "package verbs\n", "a file is not called common"},
	{"names", "internal/misc/ring.go", "package ring\n", "a directory is not called misc"},
	{"names", "internal/ring/ring.go", "package types\n", "ring.go:1: a package is not called types"},

	{"cgo", "rdmacore/device.go", "package rdmacore\n\nimport \"C\"\n", "device.go:3: import \"C\" has no place"},
	{"cgo", "cuda/gpu.go", "package cuda\n\nimport \"C\"\n", "gpu.go:3: import \"C\" has no place"},
	{"groups", "softnic/direct_run.go", "package softnic\n\ntype run struct{ to *shmPort }\n", "direct_run.go:3: group direct may not name shmPort of group shm"},
	{"groups", "softnic/speed.go", "package softnic\n", "speed.go: the name has no prefix of a group"},
	{"cgo", "softnic/nic_test.go", "package softnic\n\nimport \"C\"\n", "nic_test.go:3: import \"C\" has no place"},
	{"unsafe", "softnic/nic.go", "package softnic\n\nimport _ \"unsafe\"\n", "nic.go:3: import \"unsafe\" has no place"},
	{"unsafe", "cuda/gpu.go", "package cuda\n\nimport _ \"unsafe\"\n", "gpu.go:3: import \"unsafe\" has no place"},
	{"unsafe", "verbs/verbs.go", "package verbs\n\nimport _ \"unsafe\"\n", "verbs.go:3: import \"unsafe\" has no place"},
	{
		"prometheus", "verbs/verbs.go", "package verbs\n\nimport _ \"github.com/prometheus/client_golang/prometheus\"\n",
		"verbs.go:3: import \"github.com/prometheus/client_golang/prometheus\" has no place",
	},
	{
		"prometheus", "vqp.go", "package ibverbx\n\nimport _ \"github.com/HdrHistogram/hdrhistogram-go\"\n",
		"vqp.go:3: import \"github.com/HdrHistogram/hdrhistogram-go\" has no place",
	},

	{"file length", "verbs/long.go", "package verbs\n" + strings.Repeat("\n", 500), "verbs/long.go: 501 lines"},
	{"function length", "verbs/long.go", "package verbs\n\n" + lines(71), "long.go:3: f has 71 lines"},
	{"function length", "verbs/long.go", "package verbs\n\n//tidy:long\n" + lines(71), "f has 71 lines"},

	{"type size", "verbs/wide.go", "package verbs\n\ntype wide struct {\n" + repeat("\tf%d int\n", 31) + "}\n", "wide.go:3: verbs.wide has 31 fields"},
	{"type size", "verbs/wide.go", "package verbs\n\ntype part struct {\n" + repeat("\tf%d int\n", 16) + "}\n\ntype wide struct {\n\t*part\n" + repeat("\tg%d int\n", 15) + "}\n", "wide.go:22: verbs.wide has 31 fields"},
	{"type size", "verbs/wide.go", "package verbs\n\ntype wide int\n\n" + repeat("func (w *wide) m%d() {}\n", 61), "wide.go:3: verbs.wide has 61 methods"},
	{"type size", "verbs/wide.go", "package verbs\n\ntype part interface {\n" + repeat("\tm%d()\n", 40) + "}\n\ntype wide struct{ part }\n\n" + repeat("func (wide) n%d() {}\n", 21), "wide.go:46: verbs.wide has 61 methods"},

	{"state", "verbs/verbs.go", "package verbs\n\nfunc init() {}\n", "verbs.go:3: func init"},
	{"state", "verbs/state.go", "package verbs\n\nvar count int\n\nfunc f() { count++ }\n", "state.go:5: count is a package-level variable"},
	{"state", "verbs/state.go", "package verbs\n\nfunc g() { names[0] = \"b\" }\n", "state.go:3: names is a package-level variable"},
	{"state", "verbs/state.go", "package verbs\n\nimport \"sync\"\n\nvar mu sync.Mutex\n", "state.go:5: mu is package-level state"},
	{"state", "verbs/state.go", "package verbs\n\nvar c chan int\n", "state.go:3: c is package-level state"},
	{"state", "verbs/state.go", "package verbs\n\nimport \"sync/atomic\"\n\nvar p atomic.Pointer[int]\n", "p is package-level state"},

	{"clock and goroutines", "softnic/nic.go", "package softnic\n\nfunc f() { go f() }\n", "nic.go:3: a goroutine outside of"},
	{"clock and goroutines", "softnic/nic.go", "package softnic\n\nimport \"time\"\n\nvar f = time.Now\n", "nic.go:5: time.Now outside of"},
	{"clock and goroutines", "softnic/nic.go", "package softnic\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n", "time.Sleep outside of"},

	{"skips", "verbs/a_test.go", "package verbs\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { t.Skip() }\n", "a_test.go:5: Skip without a reason"},
	{"skips", "verbs/a_test.go", "package verbs\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { t.Skip(\"\") }\n", "Skip without a reason"},
	{"skips", "verbs/a_test.go", "package verbs\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { t.SkipNow() }\n", "SkipNow without a reason"},

	{"markers", "verbs/a.go", "package verbs\n\n// TO" + "DO: later.\n", "verbs/a.go:3: TO" + "DO"},
	{"promises", "SECURITY.md", "all is safe\n(`TestX`, `TestY`)\n", "SECURITY.md:2: there is no test TestY"},
	{"promises", "docs/wire.md", "`TestX` `FuzzX`\n", "docs/wire.md:1: there is no test FuzzX"},

	{"markers", "README.md", "all is well\n\nXX" + "X not quite\n", "README.md:3: XX" + "X"},
}

// Every rule can fail: the right rule finds each blemish on the good tree.
func TestTidyFindsBlemishes(t *testing.T) {
	tried := map[string]bool{}
	for _, b := range blemishes {
		tried[b.rule] = true
		t.Run(b.rule+"/"+b.file, func(t *testing.T) {
			files := maps.Clone(goodTree)
			files[b.file] = b.text
			i := slices.IndexFunc(rules, func(r rule) bool { return r.name == b.rule })
			if i < 0 {
				t.Fatalf("no rule is called %q", b.rule)
			}
			findings := rules[i].check(plant(t, files))
			if len(findings) != 1 || !strings.Contains(findings[0], b.want) {
				t.Errorf("found %q, want one finding with %q", findings, b.want)
			}
		})
	}
	for _, r := range rules {
		if !tried[r.name] {
			t.Errorf("nothing shows that the rule %q can fail", r.name)
		}
	}
}

func TestTidyLimits(t *testing.T) {
	files := maps.Clone(goodTree)
	files["verbs/a.go"] = "package verbs\n\n" + lines(70)
	files["verbs/b.go"] = "package verbs\n\n//tidy:long a table\n" + lines(90)
	files["verbs/c.go"] = "package verbs\n" + strings.Repeat("\n", 499)
	files["verbs/d.go"] = "package verbs\n\ntype d struct {\n" + repeat("\tf%d int\n", 30) + "}\n\n" + repeat("func (*d) m%d() {}\n", 60)
	tr := plant(t, files)
	for _, r := range rules {
		for _, finding := range r.check(tr) {
			t.Errorf("%s: %s", r.name, finding)
		}
	}
}
