package mutant

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
)

// chosen is the environment variable that selects a change at run time, counted from 1. Without it a combined binary
// behaves like the original.
const chosen = "IBVERBX_TEST_MUTANT"

// errApart means that a change cannot be selected at run time and needs a separate build.
var errApart = errors.New("the change is not confined to function bodies")

// combined collects the changes that one test binary holds. A changed function becomes a second function under
// another name, and the original calls it if its change is selected:
//
//	func (q *qp) idle() bool { if mutantChosen == 3 { return q.idle_mutant3() }; return q.reads == 0 }
type combined struct {
	// original holds the text of each changed file, by absolute name.
	original map[string]string
	// dispatch holds the text to insert, by file and offset.
	dispatch map[string]map[int]string
	// variants holds the changed functions, by file.
	variants map[string]*bytes.Buffer
	// packages holds the package name of each changed directory.
	packages map[string]string
}

func newCombined() *combined {
	return &combined{map[string]string{}, map[string]map[int]string{}, map[string]*bytes.Buffer{}, map[string]string{}}
}

// variant is a changed function.
type variant struct {
	file     string
	offset   int // where the original dispatches
	dispatch string
	text     string
	pkg      string
}

// add adds a change under a number: its files before and after.
func (c *combined) add(number int, before, after map[string]string) error {
	var all []variant
	for name, text := range after {
		v, err := variants(name, before[name], text, number)
		if err != nil {
			return err
		}
		all = append(all, v...)
	}
	for _, v := range all {
		c.original[v.file] = before[v.file]
		if c.dispatch[v.file] == nil {
			c.dispatch[v.file], c.variants[v.file] = map[int]string{}, &bytes.Buffer{}
		}
		c.dispatch[v.file][v.offset] += v.dispatch
		fmt.Fprintf(c.variants[v.file], "\n%s\n", v.text)
		c.packages[filepath.Dir(v.file)] = v.pkg
	}
	return nil
}

// files returns the texts that the go command must read.
func (c *combined) files() map[string]string {
	files := map[string]string{}
	for name, text := range c.original {
		var offsets []int
		for offset := range c.dispatch[name] {
			offsets = append(offsets, offset)
		}
		slices.Sort(offsets)
		for _, offset := range slices.Backward(offsets) {
			text = text[:offset] + c.dispatch[name][offset] + text[offset:]
		}
		files[name] = text + c.variants[name].String()
	}
	for dir, pkg := range c.packages {
		files[filepath.Join(dir, "mutant_chosen.go")] = "package " + pkg + "\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\nvar mutantChosen, _ = strconv.Atoi(os.Getenv(\"" + chosen + "\"))\n"
	}
	return files
}

// variants returns the functions that differ between two texts of a file.
func variants(name, before, after string, number int) (all []variant, err error) {
	was, pkg, err := functions(before)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	is, _, err := functions(after)
	if err != nil || len(was) != len(is) {
		return nil, errApart
	}
	restWas, restIs := 0, 0
	for i, w := range was {
		m := is[i]
		if before[restWas:w.body] != after[restIs:m.body] { // between the bodies, with the signature
			return nil, errApart
		}
		restWas, restIs = w.end, m.end
		if before[w.body:w.end] == after[m.body:m.end] {
			continue
		}
		rename := fmt.Sprintf("_mutant%d", number)
		call, err := call(w.decl, rename)
		if err != nil {
			return nil, err
		}
		at := m.name + len(m.decl.Name.Name)
		all = append(all, variant{
			file: name, offset: w.body + 1, pkg: pkg,
			dispatch: fmt.Sprintf(" if mutantChosen == %d { %s };", number, call),
			text:     after[m.start:at] + rename + after[at:m.end],
		})
	}
	if before[restWas:] != after[restIs:] {
		return nil, errApart
	}
	return all, nil
}

// function is a function with a body. The numbers are offsets in its file.
type function struct {
	decl                   *ast.FuncDecl
	start, name, body, end int
}

// functions returns the functions of a file in their order, and the name of its package.
func functions(text string) (all []function, pkg string, err error) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, "", err
	}
	at := func(p token.Pos) int { return set.Position(p).Offset }
	for _, d := range file.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
			all = append(all, function{f, at(f.Pos()), at(f.Name.Pos()), at(f.Body.Lbrace), at(f.Body.End())})
		}
	}
	return all, file.Name.Name, nil
}

// call returns the statements that call a variant of f with f's own arguments.
func call(f *ast.FuncDecl, rename string) (string, error) {
	if f.Type.TypeParams != nil {
		return "", errApart
	}
	target := f.Name.Name + rename
	if f.Recv != nil {
		if len(f.Recv.List[0].Names) == 0 || f.Recv.List[0].Names[0].Name == "_" {
			return "", errApart
		}
		target = f.Recv.List[0].Names[0].Name + "." + target
	}
	var args []string
	for _, p := range f.Type.Params.List {
		if len(p.Names) == 0 {
			return "", errApart
		}
		for _, n := range p.Names {
			if n.Name == "_" {
				return "", errApart
			}
			args = append(args, n.Name)
		}
		if _, ok := p.Type.(*ast.Ellipsis); ok {
			args[len(args)-1] += "..."
		}
	}
	target += "(" + strings.Join(args, ", ") + ")"
	if f.Type.Results == nil {
		return target + "; return", nil
	}
	return "return " + target, nil
}
