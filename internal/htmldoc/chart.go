package htmldoc

import (
	"fmt"
	"math"
	"strings"
)

// Chart is lines or bars over an axis.
type Chart struct {
	Title string
	// X is the name and the unit of the horizontal axis.
	X string
	// Y is that of the vertical axis, which begins at 0.
	Y string
	// Log makes the horizontal axis logarithmic. Values must be above 0.
	Log bool
	// Top is the end of the vertical axis. Zero means that the values decide.
	Top   float64
	Lines []Line
	Bars  []Bar
	Marks []Mark
}

// Line is a curve.
type Line struct {
	Name   string
	Points []Point
}

// Point is a place on a curve.
type Point struct{ X, Y float64 }

// Bar is a value over a range.
type Bar struct{ From, To, Y float64 }

// Mark is a line over the whole height.
type Mark struct {
	X     float64
	Text  string
	Style CellStyle
}

// Places of a picture.
const (
	chartWidth  = 860
	chartHeight = 300
	chartLeft   = 80.0
	chartRight  = 845.0
	chartTop    = 14.0
	chartBottom = 250.0
	markRows    = 3    // rows in which the texts of marks take turns
	markRow     = 14.0 // height of one
)

// picture is a Chart with coordinates.
type picture struct {
	*Chart
	Width, Height       int
	Left, Right         float64
	Top, Bottom, Middle float64
	Paths               []path
	Rects               []rect
	Labels              []mark
	GridX, GridY        []tick
}

type path struct{ Name, D string }

type rect struct{ X, Y, Width, Height float64 }

type mark struct {
	Mark
	At, Row float64
	Anchor  string
}

type tick struct {
	At   float64
	Text string
}

// axis maps values to places.
type axis struct {
	low, high float64 // values
	from, to  float64 // places
	log       bool
}

func (a *axis) at(v float64) float64 {
	low, high := a.low, a.high
	if a.log {
		v, low, high = math.Log10(v), math.Log10(low), math.Log10(high)
	}
	return round1(a.from + (a.to-a.from)*(v-low)/(high-low))
}

func round1(x float64) float64 { return math.Round(x*10) / 10 }

// draw gives the parts of a chart their places. There is no picture of a chart without values.
func draw(c Chart) *picture {
	x, y, ok := c.axes()
	if !ok {
		return nil
	}
	p := &picture{
		Chart: &c, Width: chartWidth, Height: chartHeight, Left: chartLeft, Right: chartRight, Top: chartTop, Bottom: chartBottom,
		Middle: (chartLeft + chartRight) / 2, GridX: x.ticks(), GridY: y.ticks(),
	}
	for _, l := range c.Lines {
		p.Paths = append(p.Paths, path{Name: l.Name, D: l.path(&x, &y)})
	}
	for _, b := range c.Bars {
		left, right, top := x.at(b.From), x.at(b.To), y.at(b.Y)
		p.Rects = append(p.Rects, rect{X: left, Y: top, Width: round1(max(right-left-0.5, 0.5)), Height: round1(chartBottom - top)})
	}
	for i, m := range c.Marks {
		if m.X < x.low || m.X > x.high {
			continue
		}
		l := mark{Mark: m, At: x.at(m.X), Row: chartTop + markRow*(0.8+float64(i%markRows)), Anchor: "start"}
		if l.At > (chartLeft+chartRight)/2 {
			l.Anchor = "end"
		}
		p.Labels = append(p.Labels, l)
	}
	return p
}

// axes returns the axes over all values. ok is false if there are none.
func (c *Chart) axes() (x, y axis, ok bool) {
	x = axis{low: math.Inf(1), high: math.Inf(-1), from: chartLeft, to: chartRight, log: c.Log}
	y = axis{high: c.Top, from: chartBottom, to: chartTop}
	see := func(px, py float64) {
		x.low, x.high = min(x.low, px), max(x.high, px)
		y.high = max(y.high, py)
	}
	for _, l := range c.Lines {
		for _, p := range l.Points {
			see(p.X, p.Y)
		}
	}
	for _, b := range c.Bars {
		see(b.From, b.Y)
		see(b.To, b.Y)
	}
	if c.Top == 0 {
		y.high = 4 * nice(y.high/4)
	}
	return x, y, x.high > x.low && y.high > 0 && (!c.Log || x.low > 0)
}

// nice returns the next of 1, 2, 2.5, 5, 10, 20 and so on.
func nice(x float64) float64 {
	if x <= 0 {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(x)))
	for _, k := range []float64{1, 2, 2.5, 5} {
		if k*unit >= x*0.999 {
			return k * unit
		}
	}
	return 10 * unit
}

// ticks returns the places with a number.
func (a *axis) ticks() (list []tick) {
	put := func(v float64) { list = append(list, tick{At: a.at(v), Text: number(v)}) }
	if !a.log {
		step := nice((a.high - a.low) / 8)
		if a.from > a.to { // the vertical axis
			step = (a.high - a.low) / 4
		}
		for k := math.Ceil(a.low / step); k*step <= a.high*1.0001; k++ {
			put(k * step)
		}
		return list
	}
	for unit := math.Pow(10, math.Floor(math.Log10(a.low))); unit <= a.high; unit *= 10 {
		for _, k := range []float64{1, 2, 5} {
			if v := k * unit; v >= a.low && v <= a.high && (k == 1 || a.high/a.low < 1000) {
				put(v)
			}
		}
	}
	return list
}

// number is a short text of a value.
func number(v float64) string {
	switch {
	case math.Abs(v) >= 1e6:
		return fmt.Sprintf("%.4gM", v/1e6)
	case math.Abs(v) >= 1e4:
		return fmt.Sprintf("%.4gk", v/1e3)
	}
	return fmt.Sprintf("%.4g", v)
}

// path is the curve in SVG.
func (l *Line) path(x, y *axis) string {
	var b strings.Builder
	for i, p := range l.Points {
		px, py := x.at(p.X), y.at(min(p.Y, y.high))
		verb := "L"
		if i == 0 {
			verb = "M"
		}
		fmt.Fprintf(&b, "%s%g %g", verb, px, py)
	}
	return b.String()
}

// seriesClass is the class of a curve. There are eight colours.
func seriesClass(i int) string { return fmt.Sprintf("s%d", i%8) }
