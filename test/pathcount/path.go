package main

import (
	_ "embed"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	pathpkg "path"
	"path/filepath"
	"slices"
	"strings"
)

const (
	module     = "ibverbx"
	requestDir = "test/pathcount/request"
)

//go:embed request/main.go
var request string

// path is the code that one request runs through.
type path struct {
	Functions int      `json:"functions"`
	Files     int      `json:"files"`
	Packages  []weight `json:"packages"`
	// Names are the functions, as package.name, in order.
	Names []string `json:"names"`
	// Occasional are functions that run in fewer than half of the requests.
	Occasional []string `json:"occasional,omitempty"`
}

// weight is the part of a path that lies in one package.
type weight struct {
	Package   string `json:"package"`
	Functions int    `json:"functions"`
	Files     int    `json:"files"`
}

// block is a basic block of a coverage profile.
type block struct {
	line, column int
	count        uint64
}

// pathOf returns the path of one request from the coverage profile of several.
func pathOf(tree, profile string, requests int) (path, error) {
	files, err := parseProfile(profile)
	if err != nil {
		return path{}, err
	}
	var p path
	packages := map[string]*weight{}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		calls, err := callsIn(filepath.Join(tree, strings.TrimPrefix(name, module)), files[name])
		if err != nil {
			return path{}, err
		}
		pkg := pathpkg.Dir(name)
		counted := 0
		for _, function := range slices.Sorted(maps.Keys(calls)) {
			full := pathpkg.Base(pkg) + "." + function
			if 2*calls[function] < uint64(requests) {
				p.Occasional = append(p.Occasional, full)
				continue
			}
			p.Names = append(p.Names, full)
			counted++
		}
		if counted == 0 {
			continue
		}
		if packages[pkg] == nil {
			packages[pkg] = &weight{Package: pkg}
		}
		packages[pkg].Functions += counted
		packages[pkg].Files++
		p.Functions += counted
		p.Files++
	}
	for _, pkg := range slices.Sorted(maps.Keys(packages)) {
		p.Packages = append(p.Packages, *packages[pkg])
	}
	slices.Sort(p.Names)
	slices.Sort(p.Occasional)
	return p, nil
}

// parseProfile returns the blocks that ran, by file. It leaves command request out.
func parseProfile(profile string) (map[string][]block, error) {
	files := map[string][]block{}
	for line := range strings.Lines(profile) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok || name == "mode" || strings.HasPrefix(name, module+"/test/") {
			continue
		}
		var b block
		var endLine, endColumn, statements int
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &b.line, &b.column, &endLine, &endColumn, &statements, &b.count); err != nil {
			return nil, fmt.Errorf("coverage profile: %q: %w", line, err)
		}
		if b.count > 0 {
			files[name] = append(files[name], b)
		}
	}
	return files, nil
}

// callsIn returns the functions of a file that ran, and the number of calls of each. The first
// block runs once per call.
func callsIn(file string, blocks []block) (map[string]uint64, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	calls := map[string]uint64{}
	for _, decl := range f.Decls {
		fn, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		from, to := fset.Position(fn.Pos()), fset.Position(fn.End())
		var first *block
		for i := range blocks {
			b := &blocks[i]
			if !b.before(from) && b.before(to) && (first == nil || b.line < first.line || b.line == first.line && b.column < first.column) {
				first = b
			}
		}
		if first != nil {
			calls[nameOf(fn)] = first.count
		}
	}
	return calls, nil
}

// before reports whether a block starts before a position.
func (b *block) before(p token.Position) bool {
	return b.line < p.Line || b.line == p.Line && b.column < p.Column
}

// nameOf returns the name of a function with the type of its receiver.
func nameOf(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	t := fn.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	switch generic := t.(type) {
	case *ast.IndexExpr:
		t = generic.X
	case *ast.IndexListExpr:
		t = generic.X
	}
	if id, ok := t.(*ast.Ident); ok {
		return id.Name + "." + fn.Name.Name
	}
	return fn.Name.Name
}
