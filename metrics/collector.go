package metrics

import (
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/files"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/stream"
	"ibverbx/transfer"
	"ibverbx/verbs"
)

// Collector is a prometheus.Collector for the components added to it. All methods are safe for concurrent use.
//
// Counters start at 0 when a component is added. They never decrease: the counts of removed components are kept. Components added under the
// same name are summed. Gauges cover live components only. Each label has at most 256 values; further names are reported as "other", and the
// gauge ibverbx_label_overflow is 1.
type Collector struct {
	mu sync.Mutex
	// past holds the counts of removed components, minus the initial counts of live ones.
	past    tables
	sources map[any]*source
	// sessions, devices and listeners are the label values in use.
	sessions, devices, listeners names
}

// nodeKey is the key of AddNode. The key of AddStreams is the Node.
type nodeKey struct{ *node.Node }

// source is a component that is read at every scrape.
type source struct {
	read  func(to *tables, by sign)
	users int // reference count
}

// names are the values of a label. The Collector's lock guards them.
type names map[string]bool

// maxNames limits the values of a label. Further ones are reported as otherName, to bound the cardinality on servers with
// ever-changing peers.
const (
	maxNames  = 256
	otherName = "other"
)

// label returns the label value for a name.
func (n names) label(name string) string {
	name = strings.ToValidUTF8(name, "?")
	switch {
	case n[name]:
	case len(n) >= maxNames:
		n[otherName] = true
		return otherName
	default:
		n[name] = true
	}
	return name
}

// NewCollector returns an empty Collector.
func NewCollector() *Collector { return &Collector{} }

// AddSession adds a Session: its VirtualQP, NICs and connection. name is the value of the label "session", for example the peer's host.
// Call remove before closing the Session; it is idempotent.
func (c *Collector) AddSession(name string, s *peer.Session) (remove func()) {
	if s == nil || s.QP == nil {
		return func() {}
	}
	qp := c.AddQP(name, s.QP, s.Rails.Configs())
	conn := c.AddConn(name, s.Conn)
	return func() { conn(); qp() }
}

// AddQP adds a VirtualQP, with name as its label "session", and the NICs of its rails. If qp is nil, it adds only the NICs. Call remove
// before closing the VirtualQP; it is idempotent. NICs shared by several VirtualQPs are counted once.
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

// addNIC adds the countable parts of a NIC: software NICs, and contexts of package reliable.
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

// AddNode adds a Node: its NICs and, per host of its peers, its peers, sessions and rails. The
// label "session" is the address from which a peer first connected, without the port. Closed
// sessions and removed peers stay counted. Call remove before closing the Node; it is idempotent.
func (c *Collector) AddNode(n *node.Node) (remove func()) {
	if n.NICs() == nil {
		return func() {}
	}
	nics := c.AddQP("", nil, n.NICs())
	sessions := c.add(nodeKey{n}, func(to *tables, by sign) {
		for host, t := range n.StatsByHost() {
			session := c.sessions.label(host)
			to.hosts.add(labels{session}, t, by)
			to.qps.add(labels{session}, &qpStats{Stats: &t.QP, open: t.Connected, failed: t.Failed, lanes: t.Lanes}, by)
			to.addRails(session, t.QP.Rails, c.devices, by)
		}
		all := n.Stats()
		to.nodes.add(labels{}, &all, by)
	})
	return func() { sessions(); nics() }
}

// AddEngine adds an Engine of package transfer. remove is idempotent.
func (c *Collector) AddEngine(e *transfer.Engine) (remove func()) {
	return c.add(e, func(to *tables, by sign) {
		stats := e.Stats()
		to.transfers.add(labels{}, &stats, by)
	})
}

// AddFiles adds an Engine of package files. remove is idempotent.
func (c *Collector) AddFiles(e *files.Engine) (remove func()) {
	return c.add(e, func(to *tables, by sign) {
		stats := e.Stats()
		to.files.add(labels{}, &stats, by)
	})
}

// AddConn adds a connection to a peer, with name as its label "session". remove is idempotent.
func (c *Collector) AddConn(name string, conn *bootstrap.Conn) (remove func()) {
	return c.add(conn, func(to *tables, by sign) {
		stats := conn.Stats()
		to.conns.add(labels{c.sessions.label(name)}, &stats, by)
	})
}

// Listener is implemented by *bootstrap.Listener and *peer.Listener.
type Listener interface {
	// Stats returns the current counters. It must be safe for concurrent use.
	Stats() bootstrap.ListenerStats
}

// AddListener adds a listener, with name as its label "listener". remove is idempotent.
func (c *Collector) AddListener(name string, l Listener) (remove func()) {
	if l == nil {
		return func() {}
	}
	return c.add(l, func(to *tables, by sign) {
		stats := l.Stats()
		to.listeners.add(labels{c.listeners.label(name)}, &stats, by)
	})
}

// AddStreams adds all streams of a Node. Per-host metrics have the peer's host address as their label "session". remove is idempotent.
func (c *Collector) AddStreams(n *node.Node) (remove func()) {
	return c.add(n, func(to *tables, by sign) {
		for host, stats := range stream.StatsByHost(n) {
			to.streams.add(labels{c.sessions.label(host)}, &stats, by)
		}
		all := stream.NodeStats(n)
		to.streamNodes.add(labels{}, &all, by)
	})
}

// prepare makes a zero Collector usable. The lock is held.
func (c *Collector) prepare() {
	if c.sources == nil {
		c.past, c.sources, c.sessions, c.devices, c.listeners = newTables(), map[any]*source{}, names{}, names{}, names{}
	}
}

// add adds a component, once per key.
func (c *Collector) add(key any, read func(to *tables, by sign)) (remove func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prepare()
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

// sums returns the totals of all components.
func (c *Collector) sums() []anyTable {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prepare()
	sums := c.past.clone()
	for _, s := range c.sources {
		s.read(&sums, now)
	}
	for label, n := range map[string]names{"session": c.sessions, "device": c.devices, "listener": c.listeners} {
		sums.labels.add(labels{label}, &n, now)
	}
	return sums.list()
}

var _ prometheus.Collector = (*Collector)(nil)

// addQP adds a VirtualQP and its rails.
func (t *tables) addQP(session string, qp *ibverbx.VirtualQP, devices names, by sign) {
	stats := qp.Stats()
	q := &qpStats{Stats: &stats, open: 1, lanes: len(stats.Lanes)}
	if qp.Err() != nil {
		q.failed = 1
	}
	t.qps.add(labels{session}, q, by)
	t.addRails(session, stats.Rails, devices, by)
}

// addRails adds the rails of one or more VirtualQPs.
func (t *tables) addRails(session string, rails []ibverbx.RailStats, devices names, by sign) {
	for i := range rails {
		r := &rails[i]
		t.rails.add(labels{session, strconv.Itoa(r.Rail), devices.label(r.Device)}, r, by)
	}
}
