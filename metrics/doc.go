// Package metrics reports VirtualQPs, their rails and NICs, and connections to peers to Prometheus.
//
//	c := metrics.NewCollector()
//	prometheus.MustRegister(c)
//	remove := c.AddSession("node1", session)
//	defer remove() // before session.Close
//
// A scrape reads the counters that the parts keep anyway, so nothing is added to the path of a message.
// docs/observability.md lists all names and has a dashboard and alerts for them.
//
// Programs that want no further module publish the same counters with expvar:
//
//	expvar.Publish("ibverbx", expvar.Func(func() any { return qp.Stats() }))
package metrics
