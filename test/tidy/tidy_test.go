package tidy_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// module is the path under which packages of this tree import one another.
const module = "ibverbx"

// TestTidy checks the house rules beyond the compiler's. Each rule is a subtest; blemishes_test.go shows that
// each of them can fail.
func TestTidy(t *testing.T) {
	tr, err := loadTree("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		t.Run(r.name, func(t *testing.T) {
			for _, finding := range r.check(tr) {
				t.Error(finding)
			}
		})
	}
}

// tree is the source checked by the rules.
type tree struct {
	fset  *token.FileSet
	files []*goFile
	texts map[string]string // every other file that people read, by path
}

// goFile is one parsed Go file. Paths have slashes and start at the root of the tree.
type goFile struct {
	path string
	text string
	ast  *ast.File
}

func (f *goFile) dir() string { return path.Dir(f.path) }

func (f *goFile) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// at returns a finding at a position, as compilers print it.
func (tr *tree) at(pos token.Pos, format string, args ...any) string {
	p := tr.fset.Position(pos)
	return fmt.Sprintf("%s:%d: %s", p.Filename, p.Line, fmt.Sprintf(format, args...))
}

// textExtensions are the name endings of non-Go files meant for readers.
var textExtensions = []string{".md", ".s", ".c", ".h", ".yml", ".yaml", ".sh", "Makefile", "go.mod", ".ci/run"}

func loadTree(root string) (*tree, error) {
	tr := &tree{fset: token.NewFileSet(), texts: map[string]string{}}
	err := fs.WalkDir(os.DirFS(root), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name := d.Name(); p != "." && name != ".ci" && (name[0] == '.' || name[0] == '_' || name == "testdata") {
				return fs.SkipDir // as the go command does
			}
			return nil
		}
		return tr.load(root, p)
	})
	return tr, err
}

func (tr *tree) load(root, p string) error {
	read := func() (string, error) {
		b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(p)))
		return string(b), err
	}
	if !strings.HasSuffix(p, ".go") {
		for _, end := range textExtensions {
			if strings.HasSuffix(p, end) {
				text, err := read()
				tr.texts[p] = text
				return err
			}
		}
		return nil
	}
	text, err := read()
	if err != nil {
		return err
	}
	// Objects are deprecated as a substitute for types, but they distinguish local variables from package
	// variables, which is all the rules need.
	file, err := parser.ParseFile(tr.fset, p, text, parser.ParseComments)
	if err != nil {
		return err
	}
	tr.files = append(tr.files, &goFile{path: p, text: text, ast: file})
	return nil
}
