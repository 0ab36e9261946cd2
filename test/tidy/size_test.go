package tidy_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"
)

const (
	maxFields  = 30
	maxMethods = 60
	maxRoot    = 60 // entries of the root folder
)

// largeTypes are the types that may exceed the limits, with the reason.
var largeTypes = map[string]string{
	"verbstest.env": "every promise of the suite is a method, so that a test's name says what it holds",
	"softnic.qp":    "a queue pair is both requester and responder, and embeds the state of both",
	"sim.end":       "an end embeds what each checker has to remember of it",
}

// TestRootFolder limits the entries of the root folder, so that a reader can take it in at a glance.
func TestRootFolder(t *testing.T) {
	tr, err := loadTree("../..")
	if err != nil {
		t.Fatal(err)
	}
	if n := rootEntries(tr); n > maxRoot {
		t.Errorf("the root folder has %d entries, want at most %d: fold a file or folder into another", n, maxRoot)
	}
	files := maps.Clone(goodTree)
	for i := range maxRoot {
		files[fmt.Sprintf("send_%d.go", i)] = "package ibverbx\n"
	}
	if n := rootEntries(plant(t, files)); n <= maxRoot {
		t.Errorf("%d more files make %d entries", maxRoot, n)
	}
}

// rootEntries counts the entries of the root folder, with LICENSE, go.sum and .gitignore, which are not loaded.
func rootEntries(tr *tree) int {
	names := map[string]bool{"LICENSE": true, "go.sum": true, ".gitignore": true}
	add := func(p string) {
		first, _, _ := strings.Cut(p, "/")
		names[first] = true
	}
	for _, f := range tr.files {
		add(f.path)
	}
	for p := range tr.texts {
		add(p)
	}
	return len(names)
}

// typeSize counts the fields and methods of a type, including promoted ones.
type typeSize struct {
	pos      token.Pos
	name     string // package and name, for findings
	isStruct bool
	fields   int             // declared and not embedded
	methods  map[string]bool // declared, or an interface's
	embedded []string        // keys of embedded types of this tree
}

// sizes has every type of a tree by key: directory, package and name.
type sizes map[string]*typeSize

// checkTypeSize limits the size of types, so that a reader can keep one in mind. A composite type
// has its parts as named fields.
func checkTypeSize(tr *tree) (findings []string) {
	all := sizes{}
	for _, f := range tr.files {
		for _, decl := range f.ast.Decls {
			all.declare(f, decl)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		t := all[key]
		if largeTypes[t.name] != "" || t.pos == token.NoPos {
			continue
		}
		fields, methods := all.count(key, map[string]bool{})
		if t.isStruct && fields > maxFields {
			findings = append(findings, tr.at(t.pos, "%s has %d fields, at most %d", t.name, fields, maxFields))
		}
		if len(methods) > maxMethods {
			findings = append(findings, tr.at(t.pos, "%s has %d methods, at most %d", t.name, len(methods), maxMethods))
		}
	}
	return findings
}

// at returns the entry of a type, and creates it if missing.
func (s sizes) at(key string) *typeSize {
	if s[key] == nil {
		s[key] = &typeSize{methods: map[string]bool{}}
	}
	return s[key]
}

func (s sizes) declare(f *goFile, decl ast.Decl) {
	here := f.dir() + ":" + f.ast.Name.Name + "."
	switch d := decl.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil {
			s.at(f.typeKey(d.Recv.List[0].Type)).methods[d.Name.Name] = true
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			spec, ok := spec.(*ast.TypeSpec)
			if !ok {
				continue
			}
			t := s.at(here + spec.Name.Name)
			t.pos, t.name = spec.Pos(), f.ast.Name.Name+"."+spec.Name.Name
			switch body := spec.Type.(type) {
			case *ast.StructType:
				t.isStruct, t.fields = true, 0 // a build tag may choose between two declarations
				t.add(f, body.Fields)
			case *ast.InterfaceType:
				t.add(f, body.Methods)
			}
		}
	}
}

// add adds the fields of a struct, or the methods of an interface.
func (t *typeSize) add(f *goFile, list *ast.FieldList) {
	for _, field := range list.List {
		if len(field.Names) > 0 {
			t.fields += len(field.Names)
			if _, ok := field.Type.(*ast.FuncType); ok && !t.isStruct {
				t.methods[field.Names[0].Name] = true
			}
			continue
		}
		if key := f.typeKey(field.Type); key != "" && !slices.Contains(t.embedded, key) {
			t.embedded = append(t.embedded, key)
		}
	}
}

// typeKey is the key of a type of this tree that an expression names, or "".
func (f *goFile) typeKey(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return f.dir() + ":" + f.ast.Name.Name + "." + e.Name
	case *ast.StarExpr:
		return f.typeKey(e.X)
	case *ast.IndexExpr:
		return f.typeKey(e.X)
	case *ast.IndexListExpr:
		return f.typeKey(e.X)
	case *ast.SelectorExpr:
		for dir, spec := range f.ownImports() {
			name := importPath(spec)[strings.LastIndex(importPath(spec), "/")+1:]
			if spec.Name != nil {
				name = spec.Name.Name
			}
			if x, ok := e.X.(*ast.Ident); ok && x.Name == name {
				return dir + ":" + importPath(spec)[strings.LastIndex(importPath(spec), "/")+1:] + "." + e.Sel.Name
			}
		}
	}
	return ""
}

// count returns the fields and methods of a type, including embedded ones. An embedded type that is not a
// struct, or is outside this tree, counts as one field.
func (s sizes) count(key string, seen map[string]bool) (fields int, methods map[string]bool) {
	t := s[key]
	if t == nil || seen[key] {
		return 1, nil
	}
	seen[key] = true
	fields, methods = t.fields, maps.Clone(t.methods)
	for _, key := range t.embedded {
		n, promoted := s.count(key, seen)
		if s[key] == nil || !s[key].isStruct {
			n = 1
		}
		fields += n
		maps.Copy(methods, promoted)
	}
	return fields, methods
}
