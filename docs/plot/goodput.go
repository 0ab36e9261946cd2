package main

import (
	"fmt"
	"math"
)

// losses are the columns of the plot.
var losses = [...]struct {
	name  string  // percentage as in the names of scenarios
	value float64 // the same as a number
}{{"0", 0}, {"0.01", 0.01}, {"0.1", 0.1}, {"1", 1}, {"5", 5}}

// The frame of the plot.
const (
	left, right = 80.0, 640.0
	top, bottom = 90.0, 370.0
	zeroX       = 135.0 // column of 0 percent, which has no logarithm
	logX        = 230.0 // column of 0.01 percent
)

// goodputLoss draws the goodput ratio against loss, for RC and package reliable, with the aims of
// reliable.
func goodputLoss(run measured) ([]byte, error) {
	c := newChart(780, 440, "Goodput against packet loss at 400 Gb/s: one RC queue pair and package reliable")
	c.text("ink", "start", left, 30, 17, "Goodput against packet loss")
	c.text("soft", "start", left, 50, 13, "400 Gb/s, RTT 20 us, MTU 4096, 256 MiB, loss in both directions; virtual time, medians")
	goodputFrame(c)
	for i, s := range []struct {
		transport, label, anchor string
		dx, dy                   float64 // offset of the number from its point
	}{{"reliable", "reliable", "middle", 0, -11}, {"rc", "one RC QP", "end", -6, 20}} {
		var points []point
		for k, loss := range losses {
			r, err := run(fmt.Sprintf("%s-400g-loss-%s", s.transport, loss.name))
			if err != nil {
				return nil, err
			}
			p := point{lossX(k), ratioY(r.GoodputRatio)}
			points = append(points, p)
			number := fmt.Sprintf("%.3f", r.GoodputRatio)
			if k == len(losses)-1 {
				c.text(fmt.Sprintf("t%d", i), "start", p.x+12, p.y+5, 14, s.label)
				c.text(fmt.Sprintf("t%d", i), "start", p.x+12, p.y-12, 12, number)
			} else {
				c.text(fmt.Sprintf("t%d", i), s.anchor, p.x+s.dx, p.y+s.dy, 12, number)
			}
			for _, a := range r.Aims {
				c.line("aim", p.x-14, ratioY(a.AtLeast), p.x+14, ratioY(a.AtLeast), 1.5)
			}
		}
		c.curve(fmt.Sprintf("s%d", i), points)
	}
	c.line("aim", left+20, ratioY(0.1), left+48, ratioY(0.1), 1.5)
	c.text("soft", "start", left+56, ratioY(0.1)+4, 12, "least goodput that CI accepts")
	return c.end(), nil
}

// goodputFrame draws the axes, the grid and their labels.
func goodputFrame(c *chart) {
	for v := 0.0; v <= 1; v += 0.25 {
		c.line("grid", left, ratioY(v), right, ratioY(v), 1)
		c.text("soft", "end", left-10, ratioY(v)+5, 13, fmt.Sprintf("%.2f", v))
	}
	c.line("axis", left, top, left, bottom, 1.5)
	c.line("axis", left, bottom, (zeroX+logX)/2-5, bottom, 1.5)
	c.line("axis", (zeroX+logX)/2+5, bottom, right, bottom, 1.5)
	for _, x := range []float64{(zeroX+logX)/2 - 5, (zeroX+logX)/2 + 5} {
		c.line("axis", x-4, bottom+7, x+4, bottom-7, 1.5) // The axis is broken here.
	}
	for k, loss := range losses {
		c.line("axis", lossX(k), bottom, lossX(k), bottom+5, 1.5)
		c.text("soft", "middle", lossX(k), bottom+22, 13, loss.name+"%")
	}
	c.text("ink", "middle", (left+right)/2, bottom+48, 14, "packets lost (log scale)")
	c.upright("ink", 26, (top+bottom)/2, "goodput, share of a lossless link")
}

// lossX is the x of column k.
func lossX(k int) float64 {
	if k == 0 {
		return zeroX
	}
	least, most := losses[1].value, losses[len(losses)-1].value
	return logX + (right-20-logX)*math.Log10(losses[k].value/least)/math.Log10(most/least)
}

func ratioY(v float64) float64 { return bottom - v*(bottom-top) }
