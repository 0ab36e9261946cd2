package tidy_test

import (
	"fmt"
	"go/ast"
	"path"
	"slices"
	"strings"
)

// groupedDir is the package whose files belong to groups, by the prefix of the file name.
const groupedDir = "softnic"

// groups lists the groups of softnic, each with the groups whose types it may name. nic is the hub:
// NIC, core and packet refer to everything plugged into them. docs/softnic.md describes the groups.
var groups = map[string][]string{
	"nic":    {"dev", "direct", "fault", "mem", "qp", "seal", "shm", "udp"},
	"mem":    {"dev", "nic", "qp"},
	"qp":     {"dev", "direct", "fault", "mem", "nic", "seal"},
	"direct": {"nic", "qp"},
	"dev":    {"mem", "nic", "qp"},
	"fault":  {"nic", "qp"},
	"udp":    {"fault", "nic", "qp", "seal", "shm"},
	"shm":    {"dev", "direct", "mem", "nic", "qp", "udp"},
	"seal":   {"nic", "qp", "udp"},
}

// groupOf returns the group of a file, or "".
func groupOf(f *goFile) string {
	prefix, _, _ := strings.Cut(strings.TrimSuffix(path.Base(f.path), ".go"), "_")
	if groups[prefix] == nil {
		return ""
	}
	return prefix
}

// checkGroups requires every file of softnic to be in a group, and allows only the listed
// references between groups.
func checkGroups(tr *tree) (findings []string) {
	owners := map[string]string{} // of types
	var files []*goFile
	for _, f := range tr.files {
		if f.dir() != groupedDir || f.isTest() || path.Base(f.path) == "doc.go" {
			continue
		}
		if groupOf(f) == "" {
			findings = append(findings, fmt.Sprintf("%s: the name has no prefix of a group", f.path))
			continue
		}
		files = append(files, f)
		for _, decl := range f.ast.Decls {
			if g, ok := decl.(*ast.GenDecl); ok {
				for _, spec := range g.Specs {
					if t, ok := spec.(*ast.TypeSpec); ok {
						owners[t.Name.Name] = groupOf(f)
					}
				}
			}
		}
	}
	for _, f := range files {
		from := groupOf(f)
		for _, name := range typeNames(f.ast) {
			if to := owners[name.Name]; to != "" && to != from && !slices.Contains(groups[from], to) {
				findings = append(findings, tr.at(name.Pos(), "group %s may not name %s of group %s", from, name.Name, to))
			}
		}
	}
	return findings
}

// typeNames returns the unqualified names in the type expressions of a file.
func typeNames(file *ast.File) (names []*ast.Ident) {
	collect := func(typ ast.Expr) {
		if typ == nil {
			return
		}
		ast.Inspect(typ, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr, *ast.StructType, *ast.InterfaceType, *ast.FuncType:
				return false // of another package, or visited as fields
			case *ast.Ident:
				names = append(names, n)
			}
			return true
		})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			collect(n.Type)
		case *ast.CompositeLit:
			collect(n.Type)
		case *ast.ValueSpec:
			collect(n.Type)
		case *ast.TypeAssertExpr:
			collect(n.Type)
		case *ast.TypeSpec:
			collect(n.Type)
		}
		return true
	})
	return names
}
