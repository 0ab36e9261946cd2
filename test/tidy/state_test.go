package tidy_test

import (
	"go/ast"
	"go/token"
	"slices"
)

// checkState forbids init functions and package-level state: package variables that are assigned
// after their declaration, or whose type exists to be mutated. Error values and lookup tables are
// allowed, because Go lacks such constants.
func checkState(tr *tree) (findings []string) {
	vars := map[string][]*ast.ValueSpec{} // by directory
	for _, f := range tr.files {
		if f.isTest() {
			continue
		}
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					findings = append(findings, tr.at(d.Pos(), "func init: construction is explicit here"))
				}
			case *ast.GenDecl:
				if d.Tok == token.VAR {
					for _, spec := range d.Specs {
						vars[f.dir()] = append(vars[f.dir()], spec.(*ast.ValueSpec))
					}
				}
			}
		}
	}
	for _, specs := range vars {
		for _, spec := range specs {
			if isChangeable(spec.Type) {
				findings = append(findings, tr.at(spec.Pos(), "%s is package-level state", spec.Names[0].Name))
			}
		}
	}
	for _, f := range tr.files {
		if f.isTest() {
			continue
		}
		for _, name := range assigned(f.ast, vars[f.dir()]) {
			findings = append(findings, tr.at(name.Pos(), "%s is a package-level variable and is changed here", name.Name))
		}
	}
	return findings
}

// isChangeable reports whether a type only makes sense as mutable state: a channel, or a type of package sync
// or sync/atomic.
func isChangeable(typ ast.Expr) bool {
	switch t := typ.(type) {
	case *ast.ChanType:
		return true
	case *ast.SelectorExpr:
		x, ok := t.X.(*ast.Ident)
		return ok && (x.Name == "sync" || x.Name == "atomic")
	case *ast.IndexExpr: // atomic.Pointer[T]
		return isChangeable(t.X)
	}
	return false
}

// assigned returns the identifiers assigned to in a file's functions that refer to one of the given package
// variables.
func assigned(file *ast.File, specs []*ast.ValueSpec) (found []*ast.Ident) {
	check := func(e ast.Expr) {
		id := root(e)
		if id == nil || id.Name == "_" {
			return
		}
		named := slices.ContainsFunc(specs, func(s *ast.ValueSpec) bool {
			// Within its file an identifier is resolved to its declaration; one declared by a
			// variable in another file is not resolved.
			return slices.ContainsFunc(s.Names, func(n *ast.Ident) bool { return n.Name == id.Name }) &&
				(id.Obj == nil || id.Obj.Decl == s)
		})
		if named {
			found = append(found, id)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, e := range n.Lhs {
					check(e)
				}
			}
		case *ast.IncDecStmt:
			check(n.X)
		}
		return true
	})
	return found
}

// root returns the variable that is modified, in whole or in part, by an assignment to an
// expression.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}
