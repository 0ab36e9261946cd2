package docs

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
)

// standardMethods implement interfaces of the standard library. docs/api.md does not list them.
var standardMethods = map[string]bool{
	"Error": true, "Format": true, "MarshalBinary": true, "MarshalJSON": true, "MarshalText": true, "Network": true,
	"String": true, "UnmarshalText": true, "Unwrap": true,
}

// api is the part of docs/api.md about one package. Both sets hold names such as Peer and Peer.Open.
type api struct {
	lasting, unstable map[string]bool
}

var quoted = regexp.MustCompile("`([^`]+)`")

func names(text string) (list []string) {
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		list = append(list, m[1])
	}
	return list
}

// parseAPI returns the sections of packages, and the packages listed as unstable as a whole.
func parseAPI(page string) (sections map[string]api, whole []string) {
	sections = map[string]api{}
	var now api
	inUnstable := false
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "## ibverbx"); ok {
			now = api{lasting: map[string]bool{}, unstable: map[string]bool{}}
			sections[strings.TrimPrefix(name, "/")] = now
		}
		inUnstable = strings.HasPrefix(line, "Unstable: ") || inUnstable && line != ""
		switch cells := strings.Split(strings.Trim(line, "|"), " | "); {
		case inUnstable:
			for _, name := range names(line) {
				now.unstable[name] = true
			}
		case !strings.HasPrefix(line, "| `"):
		case now.lasting == nil:
			whole = append(whole, names(cells[0])...)
		default:
			types := names(cells[0])
			for _, name := range types {
				now.lasting[name] = true
			}
			for _, method := range names(strings.Join(cells[2:], " ")) {
				now.lasting[types[0]+"."+method] = true
			}
		}
	}
	return sections, whole
}

// exported returns the exported names of a package in all files, whatever their build tags:
// functions, types, methods, and the constants and variables whose type is not from the package.
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	set := token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	enginetest.Must(t, err)
	var files []*ast.File
	for _, path := range paths {
		if !strings.HasSuffix(path, "_test.go") {
			f, err := parser.ParseFile(set, path, nil, parser.ParseComments)
			enginetest.Must(t, err)
			files = append(files, f)
		}
	}
	if len(files) == 0 || files[0].Name.Name == "main" {
		return nil
	}
	pkg, err := doc.NewFromFiles(set, files, "ibverbx/"+dir)
	enginetest.Must(t, err)
	found := map[string]bool{}
	for _, v := range slices.Concat(pkg.Consts, pkg.Vars) {
		for _, name := range v.Names {
			found[name] = token.IsExported(name)
		}
	}
	for _, f := range pkg.Funcs {
		found[f.Name] = true
	}
	for _, typ := range pkg.Types {
		found[typ.Name] = true
		for _, f := range typ.Funcs {
			found[f.Name] = true
		}
		for _, method := range methods(typ) {
			found[typ.Name+"."+method] = !standardMethods[method]
		}
	}
	maps.DeleteFunc(found, func(_ string, listed bool) bool { return !listed })
	return found
}

// methods returns the exported methods of a type, which may be an interface.
func methods(typ *doc.Type) (list []string) {
	for _, m := range typ.Methods {
		list = append(list, m.Name)
	}
	ast.Inspect(typ.Decl, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if i, ok := spec.Type.(*ast.InterfaceType); ok && spec.Name.Name == typ.Name {
			for _, m := range i.Methods.List {
				for _, name := range m.Names {
					if name.IsExported() {
						list = append(list, name.Name)
					}
				}
			}
		}
		return false
	})
	return list
}

// checkAPI returns the differences between a section and a package. A type that is unstable includes its methods.
func checkAPI(listed api, found map[string]bool) (wrong []string) {
	for _, name := range slices.Sorted(maps.Keys(found)) {
		typ, _, isMethod := strings.Cut(name, ".")
		switch n := listed.lasting[name]; {
		case n && listed.unstable[name]:
			wrong = append(wrong, name+" is listed twice")
		case !n && !listed.unstable[name] && (!isMethod || !listed.unstable[typ]):
			wrong = append(wrong, name+" is not listed")
		}
	}
	for _, list := range []map[string]bool{listed.lasting, listed.unstable} {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			if !found[name] {
				wrong = append(wrong, name+" does not exist")
			}
		}
	}
	return wrong
}

// TestAPI: docs/api.md lists every exported identifier of a public package once, as lasting or as
// unstable.
func TestAPI(t *testing.T) {
	page, err := os.ReadFile("../../docs/api.md")
	enginetest.Must(t, err)
	sections, whole := parseAPI(string(page))
	seen := 0
	enginetest.Must(t, fs.WalkDir(os.DirFS("../.."), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		switch base := d.Name(); {
		case path == ".":
		case base == "internal" || base == "testdata" || strings.HasPrefix(base, "."), slices.Contains([]string{"cmd", "docs", "examples", "test"}, path):
			return fs.SkipDir
		}
		found := exported(t, filepath.Join("../..", path))
		section, ok := sections[strings.TrimPrefix(path, ".")]
		isWhole := slices.Contains(whole, path)
		switch {
		case found == nil && !isWhole && !ok:
			return nil
		case isWhole == ok:
			t.Errorf("docs/api.md: package %s needs either a section or a place among the unstable packages", path)
		case ok:
			for _, w := range checkAPI(section, found) {
				t.Errorf("docs/api.md, package %s: %s", path, w)
			}
		}
		seen++
		return nil
	}))
	if seen != len(sections)+len(whole) {
		t.Errorf("docs/api.md has %d packages, and %d of them exist", len(sections)+len(whole), seen)
	}
}

// TestAPIRule: TestAPI reports identifiers that are missing, listed twice or obsolete.
func TestAPIRule(t *testing.T) {
	sections, whole := parseAPI("| `a/b`, `c` | purpose |\n\n## ibverbx/x\n\n| `New` | makes one |\n| `T` | a type | `Run`, `Old` |\n\nUnstable: `T.Step`, `U`,\n`New`.\n")
	if !slices.Equal(whole, []string{"a/b", "c"}) || len(sections) != 1 {
		t.Fatalf("got %v and %v, want the packages a/b and c, and one section", whole, sections)
	}
	found := map[string]bool{"New": true, "T": true, "T.Run": true, "T.Step": true, "T.Extra": true, "U": true, "U.Any": true}
	want := []string{"New is listed twice", "T.Extra is not listed", "T.Old does not exist"}
	if got := checkAPI(sections["x"], found); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
