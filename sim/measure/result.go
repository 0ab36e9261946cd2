package measure

import (
	"fmt"
	"slices"

	"ibverbx/reliable/core"
	"ibverbx/softnic"
)

// Result is what a scenario has measured, of one seed or as the medians of several. Figures
// that a scenario does not measure are zero, and are left out of JSON if not every scenario has
// them.
type Result struct {
	Scenario string `json:"scenario"`
	// Seed is the first one, of Seeds.
	Seed  uint64 `json:"seed"`
	Seeds uint64 `json:"seeds"`
	// Bytes is the payload that was moved and compared.
	Bytes int `json:"bytes"`
	// GoodputRatio is the payload over what a lossless link of that rate carries in the
	// same time after headers.
	GoodputRatio float64 `json:"goodput_ratio"`
	GoodputGbps  float64 `json:"goodput_gbps"`
	// Latency is of messages, from post to completion.
	Latency Quantiles `json:"latency_us"`
	// VirtualUS is the time from the first post to the last completion.
	VirtualUS float64 `json:"virtual_us"`
	// CostUS is how much longer it took than the same without the fault, nil if there is
	// none.
	CostUS *float64 `json:"cost_us,omitempty"`
	// FlowRatios are the goodput ratios of the flows, each by itself, where goodput_ratio is
	// that of the worst.
	FlowRatios []float64 `json:"flow_ratios,omitempty"`
	// QueueBytes is the longest queue at the port where flows meet.
	QueueBytes float64 `json:"queue_bytes,omitempty"`

	// RetransmitRatio is how many chunks, or packets of RC, were sent again for one that
	// was sent.
	RetransmitRatio float64 `json:"retransmit_ratio"`
	// Counters are those of the senders.
	Counters Counters `json:"counters"`
	// Aims are what the scenario has to reach.
	Aims []Aim `json:"aims,omitempty"`
}

// Counters are what explains a result. Those of package reliable are zero for RC, and the
// other way round.
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

// Add counts what a connection of package reliable has done: from is its sending end, to the
// receiving one.
func (c *Counters) Add(from, to core.Stats) {
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

// Measure fills a result with what flows of a world have done together, on a link of a rate
// in bytes per second and packets of mtu bytes.
func (r *Result) Measure(w *World, rate float64, mtu int, flows ...*Flow) {
	var latency Latency
	first, last := never, int64(0)
	for _, f := range flows {
		latency.Merge(&f.latency)
		first, last = min(first, f.first), max(last, f.last)
		r.Bytes += f.bytes
		r.Counters.Add(f.Counters())
	}
	for _, a := range w.hosts {
		s := a.NIC.Stats()
		r.Counters.Packets += s.PacketsSent
		r.Counters.GoBacks += s.Retransmits
		r.Counters.Timeouts += s.Timeouts
		for _, b := range w.hosts {
			s := w.Link.Stats(a.NIC, b.NIC)
			r.Counters.PacketsLost += s.Lost + s.Cut + s.Overflow
		}
	}
	took := float64(last-first) / 1e9
	r.VirtualUS = took * 1e6
	r.Latency = latency.Quantiles()
	if took > 0 {
		r.GoodputGbps = float64(r.Bytes) / took * 8e-9
		r.GoodputRatio = float64(r.Bytes) / took / Capacity(rate, mtu)
	}
	if r.Counters.Chunks > 0 {
		r.RetransmitRatio = float64(r.Counters.Retransmitted) / float64(r.Counters.Chunks)
	} else if need := float64((r.Bytes + mtu - 1) / mtu); need > 0 {
		r.RetransmitRatio = max(0, float64(r.sent(w, flows))/need-1)
	}
}

// sent counts the packets of the NICs that flows leave from.
func (r *Result) sent(w *World, flows []*Flow) (n uint64) {
	for _, h := range w.hosts {
		if slices.ContainsFunc(flows, func(f *Flow) bool { return f.from.host == h }) {
			n += h.NIC.Stats().PacketsSent
		}
	}
	return n
}

// Capacity is the payload that a lossless link of a rate carries, in bytes per second: every
// packet is full and has its headers.
func Capacity(rate float64, mtu int) float64 {
	return rate * float64(mtu) / float64(mtu+softnic.PacketOverhead)
}

// figure is a number of a result, by its name in JSON; of returns nil if it was not measured.
type figure struct {
	name string
	of   func(*Result) *float64
}

// figures are the numbers of a result that seeds have medians of, and that aims can be about.
var figures = [...]figure{
	{"goodput_ratio", func(r *Result) *float64 { return &r.GoodputRatio }},
	{"goodput_gbps", func(r *Result) *float64 { return &r.GoodputGbps }},
	{"latency_us.p50", func(r *Result) *float64 { return &r.Latency.P50 }},
	{"latency_us.p99", func(r *Result) *float64 { return &r.Latency.P99 }},
	{"latency_us.p999", func(r *Result) *float64 { return &r.Latency.P999 }},
	{"virtual_us", func(r *Result) *float64 { return &r.VirtualUS }},
	{"cost_us", func(r *Result) *float64 { return r.CostUS }},
	{"queue_bytes", func(r *Result) *float64 { return &r.QueueBytes }},
	{"retransmit_ratio", func(r *Result) *float64 { return &r.RetransmitRatio }},
}

// figureNamed returns a figure of a result, nil if there is none of that name or it was not
// measured.
func (r *Result) figureNamed(name string) *float64 {
	for _, f := range figures {
		if f.name == name {
			return f.of(r)
		}
	}
	return nil
}

// Median returns the medians of the results of several seeds of one scenario, each figure by
// itself; everything else is that of the first.
func Median(results []*Result) *Result {
	m := *results[0]
	m.Seeds = uint64(len(results))
	if m.CostUS != nil {
		m.CostUS = new(float64)
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
	return &m
}

// Aim is a bound for a figure of a result.
type Aim struct {
	// Figure is its name in JSON: goodput_ratio, latency_us.p999.
	Figure string `json:"figure"`
	// AtLeast and Below are the bounds; zero is none.
	AtLeast float64 `json:"at_least,omitempty"`
	Below   float64 `json:"below,omitempty"`
	Reached bool    `json:"reached"`
}

func (a *Aim) String() string {
	if a.AtLeast > 0 {
		return fmt.Sprintf("%s at least %g", a.Figure, a.AtLeast)
	}
	return fmt.Sprintf("%s below %g", a.Figure, a.Below)
}

// judge says which aims are reached.
func (r *Result) judge() {
	aims := slices.Clone(r.Aims)
	for i := range aims {
		a := &aims[i]
		v := r.figureNamed(a.Figure)
		a.Reached = v != nil && *v >= a.AtLeast && (a.Below == 0 || *v < a.Below)
	}
	r.Aims = aims
}

// Missed returns the aims that are not reached, in words.
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
