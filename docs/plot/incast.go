package main

import (
	"fmt"
	"math"
)

// The frame of the incast plot.
const (
	incastLeft, incastRight   = 90.0, 720.0
	incastTop, incastBottom   = 110.0, 260.0
	incastLeast, incastMost   = 10.0, 2000.0 // microseconds
	incastWidth, incastHeight = 780, 330
)

// incastLatency draws the latency of a victim of incast, with fixed windows and with receiver credits.
// Each quantile has a row.
func incastLatency(run measured) ([]byte, error) {
	c := newChart(incastWidth, incastHeight, "Latency of a small message during incast: fixed windows and receiver credits")
	c.text("ink", "start", incastLeft, 30, 17, "A small message during incast")
	c.text("soft", "start", incastLeft, 50, 13, "15 hosts send to one at 100 Gb/s, RTT 20 us; 4 KiB messages on another QP to the same host; medians")
	incastFrame(c)
	var rows [3][2]float64
	for i, name := range []string{"credits", "fixed"} {
		r, err := run("reliable-incast-15to1-" + name)
		if err != nil {
			return nil, err
		}
		for k, v := range []float64{r.Latency.P50, r.Latency.P99, r.Latency.P999} {
			rows[k][i] = v
		}
	}
	for k, row := range rows {
		y := rowY(k)
		c.line("grid", microX(row[0]), y, microX(row[1]), y, 6)
		for i, v := range row {
			c.put(`  <circle class="s%d" cx="%.1f" cy="%.1f" r="6.5"/>`, i, microX(v), y)
			c.text(fmt.Sprintf("t%d", i), "middle", microX(v), y-13, 13, fmt.Sprintf("%.0f us", v))
		}
	}
	for i, label := range []string{"receiver credits", "fixed windows"} {
		c.text(fmt.Sprintf("t%d", i), "middle", microX(rows[0][i]), rowY(0)-32, 14, label)
	}
	return c.end(), nil
}

// incastFrame draws the axis, the grid and their labels.
func incastFrame(c *chart) {
	for _, v := range []float64{10, 20, 50, 100, 200, 500, 1000, 2000} {
		c.line("grid", microX(v), incastTop-10, microX(v), incastBottom, 1)
		c.text("soft", "middle", microX(v), incastBottom+20, 13, fmt.Sprintf("%.0f", v))
	}
	c.line("axis", incastLeft, incastBottom, incastRight, incastBottom, 1.5)
	for k, name := range []string{"p50", "p99", "p99.9"} {
		c.text("ink", "end", incastLeft-14, rowY(k)+5, 14, name)
	}
	c.text("ink", "middle", (incastLeft+incastRight)/2, incastBottom+46, 14, "latency in microseconds (log scale)")
}

// microX is the x of a time in microseconds.
func microX(us float64) float64 {
	us = min(max(us, incastLeast), incastMost)
	return incastLeft + (incastRight-incastLeft)*math.Log(us/incastLeast)/math.Log(incastMost/incastLeast)
}

// rowY is the y of row k.
func rowY(k int) float64 { return incastTop + 30 + float64(k)*(incastBottom-incastTop-50)/2 }
