package tidy_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rule is a property of the whole tree.
type rule struct {
	name  string
	check func(*tree) []string // returns findings, with file and line
}

var rules = []rule{
	{"module", checkModule},
	{"package comments", checkPackageComments},
	{"arrows", checkArrows},
	{"groups", checkGroups},
	{"names", checkNames},
	{"cgo", checkCgo},
	{"unsafe", checkUnsafe},
	{"prometheus", checkPrometheus},
	{"file length", checkFileLength},
	{"function length", checkFunctionLength},
	{"type size", checkTypeSize},
	{"state", checkState},
	{"clock and goroutines", checkClock},
	{"skips", checkSkips},
	{"markers", checkMarkers},
	{"promises", checkPromises},
}

func checkModule(tr *tree) []string {
	first, _, _ := strings.Cut(tr.texts["go.mod"], "\n")
	if want := "module " + module; first != want {
		return []string{fmt.Sprintf("go.mod:1: %q, want %q", first, want)}
	}
	return nil
}

// checkPackageComments requires one package comment per package, in the usual form.
func checkPackageComments(tr *tree) (findings []string) {
	comments := map[string][]*goFile{}
	for _, f := range tr.files {
		if f.isTest() {
			continue
		}
		with := comments[f.dir()]
		if f.ast.Doc != nil {
			with = append(with, f)
		}
		comments[f.dir()] = with
	}
	for _, dir := range slices.Sorted(maps.Keys(comments)) {
		with := comments[dir]
		if len(with) != 1 {
			findings = append(findings, fmt.Sprintf("%s: %d package comments, want 1", dir, len(with)))
			continue
		}
		f := with[0]
		want := []string{"Package " + f.ast.Name.Name + " "}
		if f.ast.Name.Name == "main" {
			name := path.Base(dir)
			want = []string{"Command " + name + " ", strings.ToUpper(name[:1]) + name[1:] + " "}
		}
		text := f.ast.Doc.Text()
		if !slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(text, w) }) {
			findings = append(findings, tr.at(f.ast.Package, "the package comment starts with none of %q", want))
		}
	}
	return findings
}

// arrows lists the packages of ours that the packages in a directory may import. Unlisted directories follow
// the nearest listed parent. "pure" stands for unlisted packages below internal: algorithms that do not
// import other packages of ours. "all" is for packages that wire others together.
var arrows = map[string][]string{
	".":                  {"verbs", "pure"},
	"verbs":              {"pure"},
	"verbs/verbstest":    {"verbs", "pure"},
	"softnic":            {"verbs", "pure"},
	"rdmacore":           {"verbs", "pure"},
	"cuda":               {"verbs", "pure"},
	"bootstrap":          {"pure"},
	"reliable":           {"verbs", "pure"},
	"settings":           {".", "verbs", "peer"},
	"internal":           {},
	perfDir + "/measure": {".", "verbs", "peer", "settings", "pure"},
	perfDir + "/report":  {"peer", "settings", perfDir + "/measure", "pure"},
	"internal/nullnic":   {"verbs", "pure"},
	"internal/opaque":    {},
	"internal/service":   {".", "verbs", "bootstrap", "internal/opaque", "pure"},
	"internal/rpc":       {"internal/service", "pure"},
	"internal/mutant":    {"internal/testslice"},
	"internal/property":  {"internal/testslice"},
	nodeRigDir:           {"all"},
	rigDir:               {".", "verbs", "softnic", "internal/nullnic", "internal/property", "pure"},
	"sim":                {"all"},
	"test":               {"all"},
	"peer":               {"all"},
	"node":               {".", "verbs", "bootstrap", "peer", "internal/opaque", "internal/service", "pure"},
	"transfer":           {".", "verbs", "node", "internal/service", "internal/rpc", "pure"},
	"files":              {".", "verbs", "node", "transfer", "internal/service", "internal/rpc", "pure"},
	"stream":             {".", "verbs", "bootstrap", "node", "internal/service", "pure"},
	"metrics":            {".", "verbs", "softnic", "reliable", "reliable/core", "bootstrap", "peer", "node", "stream", "transfer", "files"},
	"dropin":             {"softnic", "verbs", "pure"},
	"dropin/core":        {"all"},
	"nccl":               {"all"},
	"cmd":                {"all"},
	"examples":           {"all"},
	"docs":               {"all"},
}

// rigDir holds the setup shared by tests. Only test files, and packages below test, import it.
const rigDir = "internal/enginetest"

// perfDir holds the packages behind "ibverbx perf".
const perfDir = "internal/perf"

// nodeRigDir is the same for Nodes.
const nodeRigDir = rigDir + "/nodetest"

// place returns the entry of arrows that applies to a directory.
func place(dir string) (string, bool) {
	for d := dir; ; d = path.Dir(d) {
		if _, ok := arrows[d]; ok && (d != "." || dir == ".") {
			return d, true
		}
		if d == "." {
			return "", false
		}
	}
}

// checkArrows enforces the order of the packages. Tests may import any package.
func checkArrows(tr *tree) (findings []string) {
	for _, f := range tr.files {
		from, ok := place(f.dir())
		if !ok {
			findings = append(findings, tr.at(f.ast.Package, "directory %s has no place in the order of packages", f.dir()))
			continue
		}
		if f.isTest() {
			continue
		}
		for dir, spec := range f.ownImports() {
			to, ok := place(dir)
			if ok && !mayImport(from, dir, to) {
				findings = append(findings, tr.at(spec.Pos(), "%s may not import %s", f.dir(), dir))
			}
		}
	}
	return findings
}

func mayImport(from, dir, to string) bool {
	if to == rigDir || to == nodeRigDir {
		return from == "test" || from == rigDir || from == nodeRigDir
	}
	for _, allowed := range arrows[from] {
		if allowed == "all" || allowed == dir || (allowed == "pure" && to == "internal") {
			return true
		}
	}
	return from == to && from != "internal" // a package and its subpackages
}

// ownImports returns the imports that are of this module, by directory.
func (f *goFile) ownImports() map[string]*ast.ImportSpec {
	own := map[string]*ast.ImportSpec{}
	for _, spec := range f.ast.Imports {
		switch p := importPath(spec); {
		case p == module:
			own["."] = spec
		case strings.HasPrefix(p, module+"/"):
			own[strings.TrimPrefix(p, module+"/")] = spec
		}
	}
	return own
}

func importPath(spec *ast.ImportSpec) string {
	p, _ := strconv.Unquote(spec.Path.Value)
	return p
}

// vague lists uninformative package names.
var vague = []string{"util", "utils", "common", "helper", "helpers", "misc", "types"}

func checkNames(tr *tree) (findings []string) {
	for _, f := range tr.files {
		stem := strings.TrimSuffix(strings.TrimSuffix(path.Base(f.path), ".go"), "_test")
		if slices.Contains(vague, stem) {
			findings = append(findings, fmt.Sprintf("%s: a file is not called %s", f.path, stem))
		}
		for _, part := range strings.Split(f.dir(), "/") {
			if slices.Contains(vague, part) {
				findings = append(findings, fmt.Sprintf("%s: a directory is not called %s", f.path, part))
			}
		}
		if name := strings.TrimSuffix(f.ast.Name.Name, "_test"); slices.Contains(vague, name) {
			findings = append(findings, tr.at(f.ast.Package, "a package is not called %s", name))
		}
	}
	return findings
}

// cgoFiles are the files with cgo: real NICs, GPUs, and the libraries for programs in C.
var cgoFiles = []string{"rdmacore/cgo.go", "cuda/cgo.go", "dropin/core/cgo.go", "nccl/core/cgo.go"}

// checkCgo confines cgo to one file of each package that calls C.
func checkCgo(tr *tree) []string {
	return tr.importers("C", func(f *goFile) bool { return slices.Contains(cgoFiles, f.path) })
}

// checkUnsafe confines unsafe to files marked as such, and to packages that deal with memory or C.
func checkUnsafe(tr *tree) []string {
	return tr.importers("unsafe", func(f *goFile) bool {
		return f.isTest() || strings.HasSuffix(f.path, "_unsafe.go") || strings.HasPrefix(f.path, "verbs/memory") ||
			f.dir() == "internal/ntcopy" || f.dir() == "rdmacore" || slices.Contains(cgoFiles, f.path)
	})
}

// checkPrometheus keeps the modules of Prometheus, and of histograms, away from programs that import another package of ours.
func checkPrometheus(tr *tree) []string {
	return append(
		tr.importers("github.com/prometheus", func(f *goFile) bool { return f.dir() == "metrics" || f.dir() == "cmd/ibverbx" }),
		tr.importers("github.com/HdrHistogram", func(f *goFile) bool {
			return slices.Contains([]string{perfDir + "/measure", "internal/compare", "cmd/ibverbx"}, f.dir())
		})...)
}

// importers returns a finding for each file that imports p, or a package below it, and may not.
func (tr *tree) importers(p string, allowed func(*goFile) bool) (findings []string) {
	for _, f := range tr.files {
		for _, spec := range f.ast.Imports {
			got := importPath(spec)
			if (got == p || strings.HasPrefix(got, p+"/")) && !allowed(f) {
				findings = append(findings, tr.at(spec.Pos(), "import %q has no place in this file", got))
			}
		}
	}
	return findings
}

const (
	maxFileLines     = 500
	maxFunctionLines = 70
)

func checkFileLength(tr *tree) (findings []string) {
	for _, f := range tr.files {
		if n := strings.Count(f.text, "\n"); n > maxFileLines {
			findings = append(findings, fmt.Sprintf("%s: %d lines, at most %d", f.path, n, maxFileLines))
		}
	}
	return findings
}

// checkFunctionLength requires short functions, or a line //tidy:long with the reason in the comment above
// them.
func checkFunctionLength(tr *tree) (findings []string) {
	for _, f := range tr.files {
		for _, decl := range f.ast.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok {
				continue
			}
			lines := tr.fset.Position(fn.End()).Line - tr.fset.Position(fn.Pos()).Line + 1
			if lines > maxFunctionLines && !hasReason(fn.Doc) {
				findings = append(findings, tr.at(fn.Pos(), "%s has %d lines, at most %d without //tidy:long and a reason",
					fn.Name.Name, lines, maxFunctionLines))
			}
		}
	}
	return findings
}

func hasReason(doc *ast.CommentGroup) bool {
	if doc == nil {
		return false
	}
	for _, c := range doc.List {
		if reason, ok := strings.CutPrefix(c.Text, "//tidy:long "); ok && strings.TrimSpace(reason) != "" {
			return true
		}
	}
	return false
}

// clockFiles are the softnic files that may use real time and goroutines. The rest is driven from outside, so
// that a simulation can drive it in virtual time.
var clockFiles = []string{"softnic/nic_clock.go", "softnic/nic_reader.go", "softnic/udp_reader.go", "softnic/shm_reader.go", "softnic/dev_copier.go"}

var clockFunctions = []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "NewTimer", "NewTicker", "Tick"}

func checkClock(tr *tree) (findings []string) {
	for _, f := range tr.files {
		if f.dir() != "softnic" || f.isTest() || slices.Contains(clockFiles, f.path) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				findings = append(findings, tr.at(n.Pos(), "a goroutine outside of %v", clockFiles))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && x.Obj == nil && slices.Contains(clockFunctions, n.Sel.Name) {
					findings = append(findings, tr.at(n.Pos(), "time.%s outside of %v", n.Sel.Name, clockFiles))
				}
			}
			return true
		})
	}
	return findings
}

// checkSkips requires a reason for every skipped test.
func checkSkips(tr *tree) (findings []string) {
	for _, f := range tr.files {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || len(call.Args) > 0 && !isEmptyString(call.Args[0]) {
				return true
			}
			if name := sel.Sel.Name; name == "SkipNow" || name == "Skip" || name == "Skipf" {
				if x, ok := sel.X.(*ast.Ident); ok && slices.Contains([]string{"t", "b", "f", "tb"}, x.Name) {
					findings = append(findings, tr.at(call.Pos(), "%s without a reason", name))
				}
			}
			return true
		})
	}
	return findings
}

func isEmptyString(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING && (lit.Value == `""` || lit.Value == "``")
}

// markers is split, so that this file does not match it.
var markers = regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|XX` + `X)\b`)

// checkMarkers requires that remaining work is in the issue tracker.
func checkMarkers(tr *tree) (findings []string) {
	check := func(name, text string) {
		for i, line := range strings.Split(text, "\n") {
			if m := markers.FindString(line); m != "" {
				findings = append(findings, fmt.Sprintf("%s:%d: %s", name, i+1, m))
			}
		}
	}
	for _, f := range tr.files {
		check(f.path, f.text)
	}
	for _, name := range slices.Sorted(maps.Keys(tr.texts)) {
		check(name, tr.texts[name])
	}
	return findings
}

// promises are the documents whose guarantees name their tests.
var promises = []string{"SECURITY.md", "docs/wire.md"}

// namedTest finds the name of a test, fuzz target or benchmark in a text.
var namedTest = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`")

// checkPromises requires that every test named by a guarantee exists.
func checkPromises(tr *tree) (findings []string) {
	tests := map[string]bool{}
	for _, f := range tr.files {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.isTest() && fn.Recv == nil {
				tests[fn.Name.Name] = true
			}
		}
	}
	for _, p := range promises {
		for i, line := range strings.Split(tr.texts[p], "\n") {
			for _, m := range namedTest.FindAllStringSubmatch(line, -1) {
				if !tests[m[1]] {
					findings = append(findings, fmt.Sprintf("%s:%d: there is no test %s", p, i+1, m[1]))
				}
			}
		}
	}
	return findings
}
