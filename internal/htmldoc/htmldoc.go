// Package htmldoc writes a [Document] of tables and charts as one HTML file ([Write]), or a [Table] as lines
// of text. The HTML file is self-contained: charts are inline SVG, scripts are not used, text is escaped.
package htmldoc

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
)

// Document is a report.
type Document struct {
	Title string
	// Summary is one sentence below the title. It may be empty.
	Summary  string
	Sections []Section
}

// Section is a part of a Document. Parts of it that are empty are left out.
type Section struct {
	Title  string
	Text   string
	Facts  []Fact
	Tables []Table
	Charts []Chart
}

// Fact is a name and its value.
type Fact struct{ Name, Value string }

// Table is rows of cells below a head. Columns after the first that have a number are aligned to the right.
type Table struct {
	Title string
	Head  []string
	Rows  [][]Cell
	// Widths are the widths of the columns as text, except the last. Further columns are for HTML only.
	Widths []int
}

// TextHead is the head as a line of text.
func (t *Table) TextHead() string { return t.line(Cells(t.Head...)) }

// TextRow is a row as a line of text.
func (t *Table) TextRow(row int) string { return t.line(t.Rows[row]) }

func (t *Table) line(cells []Cell) string {
	var b strings.Builder
	for i, width := range t.Widths {
		fmt.Fprintf(&b, " %-*s", width, cells[i].Text)
	}
	return b.String() + " " + cells[len(t.Widths)].Text
}

// Cell is a text in a table.
type Cell struct {
	Text string
	// Style is its appearance.
	Style CellStyle
}

// CellStyle is the appearance of a cell or a mark.
type CellStyle string

// Cell styles.
const (
	Plain CellStyle = ""
	Good  CellStyle = "good"
	Bad   CellStyle = "bad"
)

// Cells returns plain cells.
func Cells(texts ...string) []Cell {
	row := make([]Cell, len(texts))
	for i, t := range texts {
		row[i].Text = t
	}
	return row
}

//go:embed report.html
var page string

// Write writes d as HTML.
func Write(w io.Writer, d *Document) error {
	t, err := template.New("report").Funcs(template.FuncMap{"draw": draw, "series": seriesClass}).Parse(page)
	if err != nil {
		return err
	}
	return t.Execute(w, d)
}
