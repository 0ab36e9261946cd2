package main

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"ibverbx/internal/monitor"
)

// A terminal, and a cell of it.
const (
	terminalColumns = 80
	terminalRows    = 24
	cellWidth       = 8.4
	cellHeight      = 18.0
	terminalEdge    = 16.0
)

// demoPicture reads the output of "ibverbx demo --json" and draws the last screen of the demo.
func demoPicture(r io.Reader, file string) error {
	var v monitor.View
	if err := json.NewDecoder(r).Decode(&v); err != nil {
		return fmt.Errorf("the input is not from ibverbx demo --json: %w", err)
	}
	return os.WriteFile(file, terminal(&v), 0o644)
}

// terminal draws the screen of a transfer, and how it ended.
func terminal(v *monitor.View) []byte {
	screen := monitor.Screen{Width: terminalColumns, Height: terminalRows, Paint: func(look, text string) string {
		return "\x1b[" + look + "m" + text + "\x1b[0m"
	}}
	lines := append([]string{"$ ibverbx demo"}, screen.Lines(v)...)
	lines = append(lines, "")
	lines = append(lines, wrapped(v.Ended, terminalColumns)...)
	c := newChart(int(2*terminalEdge+terminalColumns*cellWidth), int(2*terminalEdge+float64(len(lines))*cellHeight),
		"ibverbx demo in a terminal: the rates of two rails, one of which loses its cable for three seconds. "+v.Ended)
	c.put(`  <g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="14" shape-rendering="crispEdges">`)
	for i, line := range lines {
		c.terminalLine(terminalEdge+float64(i)*cellHeight, line)
	}
	c.put("  </g>")
	return c.end()
}

// wrapped breaks a text into lines of at most width columns.
func wrapped(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimLeft(line+" "+word, " ")
	}
	return append(lines, line)
}

// looks are the classes of ECMA-48 looks.
var looks = map[string]string{"1": "ink", "2": "soft", "31": "t1", "32": "t0"}

// terminalLine draws a line. Blocks are rectangles, because fonts leave gaps between them.
func (c *chart) terminalLine(y float64, line string) {
	column := 0
	for i, part := range strings.Split(line, "\x1b[") {
		class := "ink"
		if look, text, ok := strings.Cut(part, "m"); ok && i > 0 {
			part = text
			if look != "0" {
				class = looks[look]
			}
		}
		runes := []rune(part)
		for k := 0; k < len(runes); {
			n := k
			for n < len(runes) && height(runes[n]) == height(runes[k]) {
				n++
			}
			x := terminalEdge + float64(column+k)*cellWidth
			if h := height(runes[k]) * cellHeight / 8; h > 0 {
				c.put(`    <rect class="t0" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, x, y+cellHeight-h, float64(n-k)*cellWidth, h)
			} else {
				c.words(class, x, y+cellHeight-5, string(runes[k:n]))
			}
			k = n
		}
		column += len(runes)
	}
}

// words writes a text whose columns have a fixed width. SVG collapses blanks, so words after several blanks become a separate text.
func (c *chart) words(class string, x, y float64, text string) {
	for part := range strings.SplitSeq(text, "  ") {
		word := strings.TrimLeft(part, " ")
		at := x + float64(len(part)-len(word))*cellWidth
		x += float64(utf8.RuneCountInString(part)+2) * cellWidth
		if word = strings.TrimRight(word, " "); word != "" {
			c.put(`    <text class="%s" x="%.1f" y="%.1f" textLength="%.1f">%s</text>`,
				class, at, y, float64(utf8.RuneCountInString(word))*cellWidth, html.EscapeString(word))
		}
	}
}

// height returns the height of a block in eighths of a cell, 0 for other runes.
func height(r rune) float64 {
	if r < '▁' || r > '█' {
		return 0
	}
	return float64(r - '▁' + 1)
}
