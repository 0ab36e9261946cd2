package metrics_test

import (
	"context"
	"fmt"
	"log"

	"github.com/prometheus/client_golang/prometheus"

	"ibverbx/bootstrap"
	"ibverbx/metrics"
)

// A server counts its peers. Programs usually register with prometheus.MustRegister and serve promhttp.Handler.
func Example() {
	ctx := context.Background()
	auth := bootstrap.Config{Token: []byte("an example's token is no secret")}
	l, err := bootstrap.Listen(ctx, "127.0.0.1:0", auth)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	c := metrics.NewCollector()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	remove := c.AddListener("control", l)
	defer remove() // before l.Close

	conn, err := bootstrap.Dial(ctx, l.Addr().String(), auth)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	accepted, err := l.Accept(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer accepted.Close()

	families, err := registry.Gather()
	if err != nil {
		log.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "ibverbx_listener_admitted_total" {
			fmt.Println(f.GetName(), f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	// Output: ibverbx_listener_admitted_total 1
}
