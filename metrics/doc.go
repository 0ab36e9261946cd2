// Package metrics exports statistics of VirtualQPs, rails, NICs, streams and peer connections to Prometheus.
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
package metrics
