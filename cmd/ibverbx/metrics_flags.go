package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/files"
	"ibverbx/metrics"
	"ibverbx/node"
	"ibverbx/transfer"
)

// metricsFlags holds the metrics flags.
type metricsFlags struct {
	addr string
	// collector tracks all open resources; nil if metrics are not served.
	collector *metrics.Collector
}

func (m *metricsFlags) define(fl *pflag.FlagSet) {
	fl.StringVar(&m.addr, "metrics", "", "serve Prometheus metrics on `address`, such as :9100, without authentication")
}

// during runs a command, and serves metrics while it runs if the flag is set. more holds command-specific collectors.
func (m *metricsFlags) during(ctx context.Context, s streams, run func() error, more ...prometheus.Collector) error {
	if m.addr == "" {
		return run()
	}
	server, err := metrics.NewServer(ctx, m.addr, append(more, buildInfo())...)
	if err != nil {
		return explain(err, "--metrics %s: %s", m.addr, listenCause(err))
	}
	m.collector = server.Collector()
	fmt.Fprintf(s.err, "ibverbx: metrics at http://%v/metrics\n", server.Addr())
	return errors.Join(run(), server.Close())
}

// buildInfo reports the version of this program.
func buildInfo() prometheus.Collector {
	b := buildVersion()
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "ibverbx_build_info", Help: "The program; the value is 1.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "goversion": b.Go},
	}, func() float64 { return 1 })
}

// opened returns a measure.Observer callback that reports VirtualQPs and their NICs, or nil if metrics are not served.
// remote is the peer's address. Sessions are named after its host, or after the side if remote is empty.
func (m *metricsFlags) opened(remote string) func(int, *ibverbx.VirtualQP, []ibverbx.RailConfig) func() {
	if m.collector == nil {
		return nil
	}
	return func(side int, qp *ibverbx.VirtualQP, rails []ibverbx.RailConfig) func() {
		name := [...]string{"initiator", "target"}[side]
		if remote != "" {
			name = hostOf(remote)
		}
		return m.collector.AddQP(name, qp, rails)
	}
}

// node reports a Node and its streams until the returned function is called.
func (m *metricsFlags) node(n *node.Node) (remove func()) {
	if m.collector == nil {
		return func() {}
	}
	sessions, streams := m.collector.AddNode(n), m.collector.AddStreams(n)
	return func() { streams(); sessions() }
}

// engines reports the Engines of a Node until the returned function is called.
func (m *metricsFlags) engines(memory *transfer.Engine, all *files.Engine) (remove func()) {
	if m.collector == nil {
		return func() {}
	}
	transfers, moved := m.collector.AddEngine(memory), m.collector.AddFiles(all)
	return func() { moved(); transfers() }
}

// met reports a connection until the returned function is called.
func (m *metricsFlags) met(conn *bootstrap.Conn) func() {
	if m.collector == nil {
		return func() {}
	}
	return m.collector.AddConn(hostOf(conn.Peer().Addr.String()), conn)
}

// listening reports a listener until the returned function is called.
func (m *metricsFlags) listening(l *bootstrap.Listener) func() {
	if m.collector == nil {
		return func() {}
	}
	return m.collector.AddListener("perf", l)
}

// hostOf strips the port, which differs for each connection.
func hostOf(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}
