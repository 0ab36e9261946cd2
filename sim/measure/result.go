package measure

import (
	"fmt"
	"slices"

	"ibverbx/reliable"
	"ibverbx/softnic"
)

// Result holds the measurements of a scenario, for one seed or as medians over several. Unmeasured
// values are zero; JSON omits some of them.
type Result struct {
	// Scenario is the scenario's name.
	Scenario string `json:"scenario"`
	// Seed is the first seed.
	Seed uint64 `json:"seed"`
	// Seeds is the number of seeds.
	Seeds uint64 `json:"seeds"`
	// Bytes is the payload moved and compared.
	Bytes int `json:"bytes"`
	// GoodputRatio is the goodput relative to a lossless link of the same rate, after headers.
	GoodputRatio float64 `json:"goodput_ratio"`
	// GoodputGbps is the goodput in Gb/s.
	GoodputGbps float64 `json:"goodput_gbps"`
	// Latency is the message latency from post to completion.
	Latency Quantiles `json:"latency_us"`
	// VirtualUS is the time from the first post to the last completion, in microseconds.
	VirtualUS float64 `json:"virtual_us"`
	// CostUS is the extra time caused by the fault, in microseconds; nil without a fault.
	CostUS *float64 `json:"cost_us,omitempty"`
	// FlowRatios are the goodput ratios of the flows; GoodputRatio is then the lowest.
	FlowRatios []float64 `json:"flow_ratios,omitempty"`
	// QueueBytes is the maximum queue, in bytes, at the port shared by the flows.
	QueueBytes float64 `json:"queue_bytes,omitempty"`
	// Fairness is Jain's index of the flows' shares.
	Fairness float64 `json:"fairness,omitempty"`
	// JoinTrips is the number of round trips after which the last flow had 80 % of its share for eight in a row.
	JoinTrips float64 `json:"join_trips,omitempty"`
	// BackTrips is the number of round trips until the rate is back after a fault.
	BackTrips float64 `json:"back_trips,omitempty"`
	// TotalRatio is the goodput ratio of the other flows, if GoodputRatio is that of a victim; nil otherwise.
	TotalRatio *float64 `json:"total_ratio,omitempty"`
	// FirstRatio is the goodput ratio right after the change that the scenario is about; nil without one.
	FirstRatio *float64 `json:"first_ratio,omitempty"`

	// RetransmitRatio is the number of retransmitted chunks, or RC packets, per transmitted one.
	RetransmitRatio float64 `json:"retransmit_ratio"`
	// Counters are summed over all hosts.
	Counters Counters `json:"counters"`
	// Aims are the scenario's required bounds.
	Aims []Aim `json:"aims,omitempty"`
}

// Counters explain a result. The counters of package reliable (core.Stats) are zero for RC. Packets
// covers all NICs. PacketsLost includes packets dropped by a cut path or a full queue. GoBacks and
// Timeouts count RC's retransmissions.
type Counters struct {
	Packets       uint64 `json:"packets"`
	PacketsLost   uint64 `json:"packets_lost"`
	Chunks        uint64 `json:"chunks,omitempty"`
	Retransmitted uint64 `json:"retransmitted,omitempty"`
	SamePathLoss  uint64 `json:"same_path_loss,omitempty"`
	ReorderLoss   uint64 `json:"reorder_loss,omitempty"`
	TimeoutLoss   uint64 `json:"timeout_loss,omitempty"`
	Probes        uint64 `json:"probes,omitempty"`
	Acks          uint64 `json:"acks,omitempty"`
	Duplicates    uint64 `json:"duplicates,omitempty"`
	Fences        uint64 `json:"fences,omitempty"`
	PathsDown     uint64 `json:"paths_down,omitempty"`
	PathsUp       uint64 `json:"paths_up,omitempty"`
	GoBacks       uint64 `json:"go_backs,omitempty"`
	Timeouts      uint64 `json:"timeouts,omitempty"`
}

// add adds the counters of a flow, if package reliable carries it.
func (c *Counters) add(f *flow) {
	poster, ok := f.from.qp.(reliable.StatsReader)
	if !ok {
		return
	}
	from, to := poster.Stats(), f.to.qp.(reliable.StatsReader).Stats()
	if f.cfg.Read { // the bytes travel the other way
		from, to = to, from
	}
	c.Chunks += from.Chunks
	c.Retransmitted += from.Retransmitted
	c.SamePathLoss += from.SamePathLoss
	c.ReorderLoss += from.ReorderLoss
	c.TimeoutLoss += from.TimeoutLoss
	c.Probes += from.Probes
	c.PathsDown += from.PathsDown
	c.PathsUp += from.PathsUp
	c.Acks += to.Acks
	c.Duplicates += to.Duplicates
	c.Fences += to.Fences
}

// measure fills a result with the sum of all flows of a world, on a link of a rate in bytes per second.
func (r *Result) measure(w *world, rate float64) {
	var latency latencies
	var sent uint64 // packets of the NICs that bytes leave from
	first, last := never, int64(0)
	for _, f := range w.flows {
		latency = append(latency, f.latency...)
		first, last = min(first, f.first), max(last, f.last)
		r.Bytes += f.bytes
		r.Counters.add(f)
	}
	for _, a := range w.hosts {
		s := a.nic.Stats()
		r.Counters.Packets += s.PacketsSent
		r.Counters.GoBacks += s.GoBacks
		r.Counters.Timeouts += s.Timeouts
		if slices.ContainsFunc(w.flows, func(f *flow) bool { return f.source().host == a }) {
			sent += s.PacketsSent
		}
		for _, b := range w.hosts {
			s := w.link.Stats(a.nic, b.nic)
			r.Counters.PacketsLost += s.Lost + s.Cut + s.Overflow
		}
	}
	took := float64(last-first) / 1e9
	r.VirtualUS = took * 1e6
	r.Latency = latency.quantiles()
	if took > 0 {
		r.GoodputGbps = float64(r.Bytes) / took * 8e-9
		r.GoodputRatio = float64(r.Bytes) / took / capacity(rate)
	}
	if r.Counters.Chunks > 0 {
		r.RetransmitRatio = float64(r.Counters.Retransmitted) / float64(r.Counters.Chunks)
	} else if need := float64((r.Bytes + mtu - 1) / mtu); need > 0 {
		r.RetransmitRatio = max(0, float64(sent)/need-1)
	}
}

// mtu is the payload of a full packet in all scenarios.
const mtu = 4096

// capacity is the payload that a lossless link of a rate carries in full packets, in bytes per second.
func capacity(rate float64) float64 { return rate * mtu / (mtu + softnic.PacketOverhead) }

// figure is a number of a result.
type figure struct {
	name string                 // its name in JSON
	of   func(*Result) *float64 // returns nil if it was not measured
}

// figures are the numbers that have medians and that aims can bound.
var figures = [...]figure{
	{"goodput_ratio", func(r *Result) *float64 { return &r.GoodputRatio }},
	{"goodput_gbps", func(r *Result) *float64 { return &r.GoodputGbps }},
	{"latency_us.p50", func(r *Result) *float64 { return &r.Latency.P50 }},
	{"latency_us.p99", func(r *Result) *float64 { return &r.Latency.P99 }},
	{"latency_us.p999", func(r *Result) *float64 { return &r.Latency.P999 }},
	{"virtual_us", func(r *Result) *float64 { return &r.VirtualUS }},
	{"cost_us", func(r *Result) *float64 { return r.CostUS }},
	{"fairness", func(r *Result) *float64 { return &r.Fairness }},
	{"join_trips", func(r *Result) *float64 { return &r.JoinTrips }},
	{"back_trips", func(r *Result) *float64 { return &r.BackTrips }},
	{"total_ratio", func(r *Result) *float64 { return r.TotalRatio }},
	{"first_ratio", func(r *Result) *float64 { return r.FirstRatio }},
	{"queue_bytes", func(r *Result) *float64 { return &r.QueueBytes }},
	{"retransmit_ratio", func(r *Result) *float64 { return &r.RetransmitRatio }},
}

// figureNamed returns a figure, nil if the name is unknown or the figure was not measured.
func (r *Result) figureNamed(name string) *float64 {
	for _, f := range figures {
		if f.name == name {
			return f.of(r)
		}
	}
	return nil
}

// median returns the median of each figure over the results of several seeds. Everything else is that
// of the first result. Without a result it returns nil.
func median(results []*Result) *Result {
	if len(results) == 0 {
		return nil
	}
	m := *results[0]
	m.Seeds = uint64(len(results))
	if m.CostUS != nil {
		m.CostUS = new(float64)
	}
	if m.FirstRatio != nil {
		m.FirstRatio = new(float64)
	}
	if m.TotalRatio != nil {
		m.TotalRatio = new(float64)
	}
	for _, f := range figures {
		var values []float64
		for _, r := range results {
			if v := f.of(r); v != nil {
				values = append(values, *v)
			}
		}
		if n := len(values); n > 0 && f.of(&m) != nil {
			slices.Sort(values)
			*f.of(&m) = (values[(n-1)/2] + values[n/2]) / 2
		}
	}
	m.judge()
	for i := range m.Aims {
		a := &m.Aims[i]
		for _, r := range results {
			if v := r.figureNamed(a.Figure); v != nil && (*v < a.Worst) == (a.AtLeast > 0) {
				a.Worst = *v
			}
		}
	}
	return &m
}

// Aim is a bound for one value of a result.
type Aim struct {
	// Figure is the value's name in JSON, such as latency_us.p999.
	Figure string `json:"figure"`
	// AtLeast is the lower bound. Zero means none.
	AtLeast float64 `json:"at_least,omitempty"`
	// Below is the exclusive upper bound. Zero means none.
	Below float64 `json:"below,omitempty"`
	// Got is the value.
	Got float64 `json:"got"`
	// Worst is the value of the worst seed.
	Worst float64 `json:"worst"`
	// Reached is set when the value is within the bounds.
	Reached bool `json:"reached"`
}

// String describes the bound.
func (a *Aim) String() string {
	if a.AtLeast > 0 {
		return fmt.Sprintf("%s at least %g", a.Figure, a.AtLeast)
	}
	return fmt.Sprintf("%s below %g", a.Figure, a.Below)
}

// judge sets Reached of all aims.
func (r *Result) judge() {
	r.Aims = slices.Clone(r.Aims)
	for i := range r.Aims {
		a := &r.Aims[i]
		v := r.figureNamed(a.Figure)
		if v != nil {
			a.Got, a.Worst = *v, *v
		}
		a.Reached = v != nil && a.Got >= a.AtLeast && (a.Below == 0 || a.Got < a.Below)
	}
}

// Missed returns a description of each missed aim.
func (r *Result) Missed() (missed []string) {
	for i := range r.Aims {
		if a := &r.Aims[i]; !a.Reached {
			got := "nothing"
			if v := r.figureNamed(a.Figure); v != nil {
				got = fmt.Sprintf("%.4g", *v)
			}
			missed = append(missed, fmt.Sprintf("%s: %s, want %s", r.Scenario, got, a))
		}
	}
	return missed
}
