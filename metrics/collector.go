package metrics

import (
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/stream"
	"ibverbx/verbs"
)

// Collector is a prometheus.Collector of everything that was added to it. Any goroutine may call its methods.
//
// Counters count from when a part was added. They never go back: what a removed part has counted stays. Parts
// that are added with the same name are summed. Gauges are those of the parts that are there now.
type Collector struct {
	mu sync.Mutex
	// past is what removed parts have counted, less what present ones had counted when they were added.
	past    tables
	sources map[any]*source
	// sessions, devices and listeners are the labels that were given out.
	sessions, devices, listeners names
}

// source is a part that is read at every scrape.
type source struct {
	read  func(to *tables, by sign)
	users int // how often it was added and not removed
}

// names are the values of a label. The Collector is locked while they are used.
type names map[string]bool

// maxNames limits the values of a label. Further ones are reported as otherName, so that a server with ever
// new peers does not fill a database.
const (
	maxNames  = 256
	otherName = "other"
)

// label returns the value for a name.
func (n names) label(name string) string {
	name = strings.ToValidUTF8(name, "?")
	switch {
	case n[name]:
	case len(n) == maxNames:
		return otherName
	default:
		n[name] = true
	}
	return name
}

// NewCollector returns a Collector to which nothing was added.
func NewCollector() *Collector {
	return &Collector{past: newTables(), sources: map[any]*source{}, sessions: names{}, devices: names{}, listeners: names{}}
}

// AddSession adds a Session: its VirtualQP, NICs and connection. The name is the label "session", for example
// the peer's host. Call remove before the Session is closed.
func (c *Collector) AddSession(name string, s *peer.Session) (remove func()) {
	qp := c.AddQP(name, s.QP, s.Rails.Configs())
	conn := c.AddConn(name, s.Conn)
	return func() { conn(); qp() }
}

// AddQP adds a VirtualQP and the NICs of its rails. Without a VirtualQP (nil) it adds the NICs only. Call
// remove before the VirtualQP is closed. NICs that several VirtualQPs use count once.
func (c *Collector) AddQP(name string, qp *ibverbx.VirtualQP, rails []ibverbx.RailConfig) (remove func()) {
	var removes []func()
	if qp != nil {
		removes = append(removes, c.add(qp, func(to *tables, by sign) { to.addQP(c.sessions.label(name), qp, c.devices, by) }))
	}
	for i := range rails {
		removes = append(removes, c.addNIC(rails[i].Context)...)
	}
	return func() {
		for _, r := range removes {
			r()
		}
	}
}

// addNIC adds what counts of a NIC: software NICs, and contexts of reliable.
func (c *Collector) addNIC(ctx verbs.Context) (removes []func()) {
	device := ctx.Device()
	name := device.Name()
	if paths, ok := ctx.(reliable.StatsReader); ok {
		removes = append(removes, c.add(paths, func(to *tables, by sign) { to.paths.add(labels{c.devices.label(name)}, readPaths(paths), by) }))
	}
	if wrapped, ok := device.(interface{ Unwrap() verbs.Device }); ok {
		device = wrapped.Unwrap()
	}
	if nic, ok := device.(*softnic.NIC); ok {
		removes = append(removes, c.add(nic, func(to *tables, by sign) {
			stats := nic.Stats()
			to.nics.add(labels{c.devices.label(name)}, &stats, by)
		}))
	}
	return removes
}

// AddConn adds a connection to a peer.
func (c *Collector) AddConn(name string, conn *bootstrap.Conn) (remove func()) {
	return c.add(conn, func(to *tables, by sign) {
		stats := conn.Stats()
		to.conns.add(labels{c.sessions.label(name)}, &stats, by)
	})
}

// Listener is a *bootstrap.Listener or a *peer.Listener.
type Listener interface {
	Stats() bootstrap.ListenerStats
}

// AddListener adds a listener, by the label "listener".
func (c *Collector) AddListener(name string, l Listener) (remove func()) {
	return c.add(l, func(to *tables, by sign) {
		stats := l.Stats()
		to.listeners.add(labels{c.listeners.label(name)}, &stats, by)
	})
}

// AddStreams adds the streams of a Node. Those with the peers of a host have the label "session", which is the address of the host.
func (c *Collector) AddStreams(n *node.Node) (remove func()) {
	return c.add(n, func(to *tables, by sign) {
		for host, stats := range stream.StatsByHost(n) {
			to.streams.add(labels{c.sessions.label(host)}, &stats, by)
		}
		all := stream.NodeStats(n)
		to.streamNodes.add(labels{}, &all, by)
	})
}

// add adds a part, once for every key.
func (c *Collector) add(key any, read func(to *tables, by sign)) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sources[key]
	if s == nil {
		s = &source{read: read}
		c.sources[key] = s
		s.read(&c.past, begin)
	}
	s.users++
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if s.users--; s.users == 0 {
			s.read(&c.past, end)
			delete(c.sources, key)
		}
	})
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	all := newTables()
	for _, t := range all.list() {
		t.describe(to)
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, t := range c.sums() {
		t.collect(to)
	}
}

// sums returns what all parts have counted.
func (c *Collector) sums() []anyTable {
	c.mu.Lock()
	defer c.mu.Unlock()
	sums := c.past.clone()
	for _, s := range c.sources {
		s.read(&sums, now)
	}
	return sums.list()
}

var _ prometheus.Collector = (*Collector)(nil)

// addQP adds a VirtualQP and its rails.
func (t *tables) addQP(session string, qp *ibverbx.VirtualQP, devices names, by sign) {
	stats := qp.Stats()
	q := &qpStats{Stats: &stats, failed: qp.Err() != nil}
	lanes := make([]int, len(stats.Rails))
	for i := range stats.Lanes {
		l := &stats.Lanes[i]
		q.deaths += l.Deaths
		q.replayed += l.Replayed
		if l.Role == "data" && l.Rail < len(lanes) {
			lanes[l.Rail]++
		}
	}
	t.qps.add(labels{session}, q, by)
	for i := range stats.Rails {
		rail := &railStats{RailStats: stats.Rails[i], lanes: lanes[i]}
		t.rails.add(labels{session, strconv.Itoa(rail.Rail), devices.label(rail.Device)}, rail, by)
	}
}
