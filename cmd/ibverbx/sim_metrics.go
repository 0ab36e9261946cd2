package main

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"ibverbx/sim"
)

// simGauges tracks the progress of a run over many seeds. It is safe for concurrent use.
type simGauges struct {
	of, seeds, worlds, failed atomic.Uint64
}

// take records the current progress.
func (m *simGauges) take(s *sim.Summary) {
	m.of.Store(s.Of)
	m.seeds.Store(s.Seeds)
	m.worlds.Store(uint64(s.Worlds))
	m.failed.Store(uint64(s.Failed))
}

// done counts a seed of a measured scenario, which has one world.
func (m *simGauges) done() {
	m.seeds.Add(1)
	m.worlds.Add(1)
}

// collectors returns the Prometheus collectors.
func (m *simGauges) collectors() []prometheus.Collector {
	counter := func(name, help string, v *atomic.Uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "ibverbx_sim_" + name, Help: help}, func() float64 { return float64(v.Load()) })
	}
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "ibverbx_sim_seeds_wanted", Help: "Seeds to run."}, func() float64 { return float64(m.of.Load()) }),
		counter("seeds_total", "Seeds that are done.", &m.seeds),
		counter("worlds_total", "Worlds that were run.", &m.worlds),
		counter("failed_worlds_total", "Worlds that violated a guarantee.", &m.failed),
	}
}
