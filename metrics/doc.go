// Package metrics exports statistics of VirtualQPs, rails, NICs, connections, Nodes and their services (transfer, files, stream) to
// Prometheus.
//
//	c := metrics.NewCollector()
//	prometheus.MustRegister(c)
//	remove := c.AddSession("node1", session)
//	defer remove() // before session.Close
//
// A scrape reads counters that the components maintain anyway, so the data path is unaffected. docs/observability.md lists all metric names
// and includes a dashboard and alerts.
//
// Programs that avoid the Prometheus dependency can publish the same counters with expvar:
//
//	expvar.Publish("ibverbx", expvar.Func(func() any { return qp.Stats() }))
//
// docs/api.md lists the lasting API; unexported code may change while the tests pass. Dashboards depend on metric and label names: do not
// rename them. A new metric needs a row in docs/observability.md.
package metrics
