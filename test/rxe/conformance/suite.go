package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// family is a group of items, and item a test of the suite.
type (
	family struct {
		name  string
		items []item
	}
	item struct{ name, promise string }
)

// suite holds the test names and comments from the source of package verbstest.
type suite struct {
	lists    map[string][]ast.Expr // elements of package-level slices, by variable
	comments map[string]string     // of functions and methods, by name
}

// readSuite finds the families in the source of the suite: the elements of the variable families name the
// lists of tests, and the comment of a test's function is its guarantee.
func readSuite(dir string) ([]family, error) {
	s := suite{lists: map[string][]ast.Expr{}, comments: map[string]string{}}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			s.learn(decl)
		}
	}
	return s.families()
}

func (s *suite) learn(decl ast.Decl) {
	switch d := decl.(type) {
	case *ast.FuncDecl:
		s.comments[d.Name.Name] = firstSentence(d.Doc.Text())
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			v, ok := spec.(*ast.ValueSpec)
			if !ok || len(v.Values) != 1 {
				continue
			}
			if lit, ok := v.Values[0].(*ast.CompositeLit); ok {
				s.lists[v.Names[0].Name] = lit.Elts
			}
		}
	}
}

func (s *suite) families() ([]family, error) {
	var families []family
	for _, e := range s.lists["families"] {
		var (
			f    family
			list string
		)
		for _, field := range fields(e) {
			kv, ok := field.(*ast.KeyValueExpr)
			if !ok {
				return nil, fmt.Errorf("an element of families has a field without a name")
			}
			switch kv.Key.(*ast.Ident).Name {
			case "name":
				f.name = text(kv.Value)
			case "tests":
				if id, ok := kv.Value.(*ast.Ident); ok {
					list = id.Name
				}
			}
		}
		for _, e := range s.lists[list] {
			if parts := fields(e); len(parts) == 2 {
				f.items = append(f.items, item{name: f.name + "/" + text(parts[0]), promise: s.comments[callee(parts[1])]})
			}
		}
		if f.name == "" || len(f.items) == 0 {
			return nil, fmt.Errorf("family %q with the list %q has no tests", f.name, list)
		}
		families = append(families, f)
	}
	if len(families) == 0 {
		return nil, fmt.Errorf("there is no variable families")
	}
	return families, nil
}

// fields returns the elements of a composite literal.
func fields(e ast.Expr) []ast.Expr {
	if lit, ok := e.(*ast.CompositeLit); ok {
		return lit.Elts
	}
	return nil
}

// text returns the value of a string literal.
func text(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok {
		return ""
	}
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return s
}

// callee returns the function that a test runs: itself, or the function called by a function
// literal.
func callee(e ast.Expr) (name string) {
	if id, ok := e.(*ast.Ident); ok {
		return id.Name
	}
	ast.Inspect(e, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && name == "" {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok {
				name = sel.Sel.Name
			}
		}
		return name == ""
	})
	return name
}

// firstSentence returns the first sentence of a comment, on one line. A full stop within a number or a
// reference does not count.
func firstSentence(comment string) string {
	line := strings.Join(strings.Fields(comment), " ")
	if before, _, ok := strings.Cut(line, ". "); ok {
		return before + "."
	}
	return line
}
