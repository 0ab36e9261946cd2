package main

import (
	"bytes"
	"fmt"
	"html"
)

// chart is an SVG picture. It has its own background and follows the colour scheme of the reader's
// system, so it is readable on light and dark pages.
type chart struct {
	b bytes.Buffer
}

// style has a class for every role. The colours of series are visible on both backgrounds.
const style = `
    .ground { fill: #ffffff } .ink { fill: #1f2933 } .soft { fill: #52606d }
    .grid { stroke: #d9e2ec } .axis { stroke: #52606d }
    .s0 { stroke: #0b69a3; fill: #0b69a3 } .s1 { stroke: #c05621; fill: #c05621 }
    .t0 { fill: #0b69a3 } .t1 { fill: #c05621 } .aim { stroke: #52606d }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #161b22 } .ink { fill: #e6edf3 } .soft { fill: #9fb3c8 }
      .grid { stroke: #30363d } .axis { stroke: #9fb3c8 }
      .s0 { stroke: #58a6ff; fill: #58a6ff } .s1 { stroke: #f0883e; fill: #f0883e }
      .t0 { fill: #58a6ff } .t1 { fill: #f0883e } .aim { stroke: #9fb3c8 }
    }
`

// newChart starts a picture. Screen readers read the title.
func newChart(width, height int, title string) *chart {
	c := &chart{}
	c.put(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="Helvetica, Arial, sans-serif" font-size="14" role="img">`, width, height)
	c.put("  <title>%s</title>", html.EscapeString(title))
	c.put("  <style>%s  </style>", style)
	c.put(`  <rect class="ground" width="%d" height="%d" rx="6"/>`, width, height)
	return c
}

func (c *chart) put(format string, args ...any) { fmt.Fprintf(&c.b, format+"\n", args...) }

// line draws a line of a class.
func (c *chart) line(class string, x1, y1, x2, y2, width float64) {
	c.put(`  <line class="%s" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke-width="%.1f"/>`, class, x1, y1, x2, y2, width)
}

// text writes a text. anchor is start, middle or end.
func (c *chart) text(class, anchor string, x, y float64, size int, s string) {
	c.put(`  <text class="%s" text-anchor="%s" x="%.1f" y="%.1f" font-size="%d">%s</text>`, class, anchor, x, y, size, html.EscapeString(s))
}

// upright writes a text from bottom to top.
func (c *chart) upright(class string, x, y float64, s string) {
	c.put(`  <text class="%s" text-anchor="middle" transform="translate(%.1f %.1f) rotate(-90)">%s</text>`, class, x, y, html.EscapeString(s))
}

// point is a position in the picture.
type point struct{ x, y float64 }

// curve connects points and marks each of them.
func (c *chart) curve(class string, points []point) {
	path := ""
	for i, p := range points {
		verb := "L"
		if i == 0 {
			verb = "M"
		}
		path += fmt.Sprintf("%s%.1f %.1f", verb, p.x, p.y)
	}
	c.put(`  <path class="%s" d="%s" stroke-width="2.5" style="fill:none"/>`, class, path)
	for _, p := range points {
		c.put(`  <circle class="%s" cx="%.1f" cy="%.1f" r="4.5"/>`, class, p.x, p.y)
	}
}

// end returns the picture.
func (c *chart) end() []byte {
	c.put("</svg>")
	return c.b.Bytes()
}
