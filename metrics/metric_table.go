package metrics

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"
)

// kind is the aggregation of a metric over components.
type kind uint8

const (
	counter kind = iota // a sum that never decreases
	gauge               // a sum over live components
	highest             // the maximum over live components
)

// sign is the reason for adding a value.
type sign uint8

const (
	now   sign = iota // a scrape
	begin             // a component is added: its earlier counts are subtracted
	end               // a component is removed: its counts are kept
)

// metric is a value of components of type S.
type metric[S any] struct {
	name string // without the prefix
	help string
	kind kind
	// of is the value of a fixed label that distinguishes metrics of one name; empty without such a label.
	of    string
	value func(*S) float64
}

// labels are the values of a table's labels. Unused ones are empty.
type labels [3]string

// table holds the values of all metrics of components of type S, by label.
type table[S any] struct {
	names   []string // of the labels
	kindOf  string   // the name of the label for metric.of
	metrics []metric[S]
	rows    map[labels]*row
}

type row struct {
	values []float64
	// live is set if a component with these labels exists, so that gauges have a value.
	live bool
}

// add adds the values of a component.
func (t *table[S]) add(l labels, part *S, by sign) {
	r := t.rows[l]
	if r == nil {
		r = &row{values: make([]float64, len(t.metrics))}
		t.rows[l] = r
	}
	r.live = r.live || by == now
	for i := range t.metrics {
		m := &t.metrics[i]
		v := m.value(part)
		switch {
		case by == begin && m.kind == counter:
			r.values[i] -= v
		case by == now && m.kind == highest:
			r.values[i] = max(r.values[i], v)
		case by == now || m.kind == counter:
			r.values[i] += v
		}
	}
}

// clone returns a copy to add to.
func (t *table[S]) clone() table[S] {
	c := *t
	c.rows = maps.Clone(t.rows)
	for l, r := range c.rows {
		c.rows[l] = &row{values: append([]float64(nil), r.values...)}
	}
	return c
}

// anyTable is a table of parts of any type.
type anyTable interface {
	describe(to chan<- *prometheus.Desc)
	collect(to chan<- prometheus.Metric)
}

func (t *table[S]) desc(m *metric[S]) *prometheus.Desc {
	var fixed prometheus.Labels
	if m.of != "" {
		fixed = prometheus.Labels{t.kindOf: m.of}
	}
	return prometheus.NewDesc("ibverbx_"+m.name, m.help, t.names, fixed)
}

func (t *table[S]) describe(to chan<- *prometheus.Desc) {
	for i := range t.metrics {
		to <- t.desc(&t.metrics[i])
	}
}

func (t *table[S]) collect(to chan<- prometheus.Metric) {
	for i := range t.metrics {
		m := &t.metrics[i]
		desc, typ := t.desc(m), prometheus.GaugeValue
		if m.kind == counter {
			typ = prometheus.CounterValue
		}
		for l, r := range t.rows {
			if r.live || m.kind == counter {
				to <- prometheus.MustNewConstMetric(desc, typ, r.values[i], l[:len(t.names)]...)
			}
		}
	}
}
