package core

import "math"

// Congestion limits the bytes in flight and the rate of one path. Each path has its own instance. Step
// calls it in event order. An implementation must not allocate.
type Congestion interface {
	// OnAck reports acknowledged bytes. rtt is the round-trip time, or 0 if not measured. least is the
	// minimum round-trip time of all paths of the connection.
	OnAck(now int64, bytes int, rtt, least int64)
	// OnLoss reports lost bytes. timeout is set when the loss is inferred from a timeout.
	OnLoss(now int64, bytes int, timeout bool)
	// Window returns the maximum number of bytes in flight. An idle path may send a larger chunk once
	// the gap after the last one has passed.
	Window() int
	// Gap returns the pause after a transmission of bytes, in nanoseconds. It applies while the windows
	// of all paths together are below one chunk. Zero means no pause.
	Gap(bytes int) int64
}

// pace is the state of a path that has a Congestion.
type pace struct {
	control Congestion // nil if nothing but Config.WindowBytes limits the path
	window  int        // what control allows in flight, in bytes; unlimited without control
	at      int64      // when the path may send again
}

// unlimited is the window of a path without a Congestion.
const unlimited = math.MaxInt

// maxGap bounds the time between two transmissions on a path, in nanoseconds. It is far below any GiveUp.
const maxGap = 10_000_000

// initPaces gives every path its Congestion.
func (c *Conn) initPaces() {
	c.limit = unlimited
	if c.cfg.Congestion != nil {
		c.limit = 0
	}
	for i := range c.paths {
		p := &c.paths[i]
		if c.cfg.Congestion == nil {
			p.pace.window = unlimited
			continue
		}
		p.pace.control = c.cfg.Congestion()
		p.newWindow()
	}
}

// newWindow takes over what the Congestion of the path allows. What all paths that are up allow
// together bounds the bytes in flight of the connection, so that paths that were idle do not send a
// burst.
func (p *path) newWindow() {
	w := p.pace.control.Window()
	if p.state == PathUp {
		p.c.limit += w - p.pace.window
	}
	p.pace.window = w
}

// onAcked tells the Congestion of the path about acknowledged bytes.
func (p *path) onAcked(bytes int, rtt int64) {
	if p.pace.control != nil {
		p.pace.control.OnAck(p.c.now, bytes, rtt, p.c.rtt.least)
		p.newWindow()
	}
}

// onLost tells the Congestion of the path about lost bytes.
func (p *path) onLost(bytes int, timeout bool) {
	if p.pace.control != nil {
		p.pace.control.OnLoss(p.c.now, bytes, timeout)
		p.newWindow()
	}
}

// rest makes the path pause after a transmission, if all paths together may have less than one chunk in
// flight. Otherwise the bytes in flight limit the rate, and nothing is paced.
func (p *path) rest(bytes int) {
	if p.c.limit < int(p.c.cfg.ChunkBytes) && p.pace.control != nil {
		p.pace.at = p.c.now + min(p.pace.control.Gap(bytes), maxGap)
	}
}

// open reports whether congestion control lets the path send.
func (p *path) open() bool {
	return p.c.now >= p.pace.at && (p.inflight < p.pace.window || p.flying == 0)
}

// count adds the window of the path to what all paths allow together when the path comes up, and
// removes it when the path leaves.
func (p *path) count(s PathState) {
	switch {
	case p.pace.control == nil:
	case s == PathUp:
		p.c.limit += p.pace.window
	case p.state == PathUp:
		p.c.limit -= p.pace.window
	}
}

// nextPaced is when the first path that rests may send again, or never if nothing waits for it.
func (c *Conn) nextPaced() int64 {
	at := int64(never)
	if c.cfg.Congestion != nil && (c.lost > 0 || c.ready.Len() > 0) {
		for i := range c.paths {
			if p := &c.paths[i]; p.pace.at > c.now {
				at = min(at, p.pace.at)
			}
		}
	}
	return at
}
