package sim

import "reflect"

// setting is a named value that a scenario can fix.
type setting struct {
	name      string
	unit      unit
	low, high int64
	// draw chooses a value if the scenario fixes none.
	draw func(*planner) int64
}

// The settings of a world, its work, a rail, a connection, an end and a fault. Each list has the
// order of the method fields of its plan, which is also the order in which values are drawn.
var (
	worldSettings = []setting{
		{"hosts", unitCount, 2, 4, oneOf(2, 2, 2, 3)},
		{"failover", unitSwitch, 0, 1, oneOf(0, 1)},
		{"keep-atomics", unitSwitch, 0, 1, oneOf(0, 1)},
		{"shared", unitCount, 0, 1024, oneOf(0, 0, 0, 64, 256)},
		{"goodput", unitPercent, 0, 10000, none},
		{"quantum", unitTime, 0, 1e9, oneOf(0, 200, 1000, 4000)},
	}
	workSettings = []setting{
		{"burst", unitCount, 1, 256, oneOf(1, 4, 16, 64)},
		{"gap", unitTime, 0, 1e9, oneOf(0, 5_000, 20_000, 100_000)},
		{"batch", unitCount, 1, 64, oneOf(1, 4, 32, 64)},
		{"polls", unitTime, 0, 1e9, oneOf(0, 0, 2_000, 20_000)},
		{"inline", unitPercent, 0, 10000, oneOf(0, 1000, 5000)},
		{"fence", unitPercent, 0, 10000, oneOf(0, 0, 500, 3000)},
		{"unsignaled", unitPercent, 0, 10000, oneOf(0, 3000, 9000)},
		{"room", unitCount, 3, 64, func(*planner) int64 { return 3 }},
		{"scatter", unitPercent, 0, 10000, oneOf(0, 1000, 5000)},
	}
	// listSettings are the lengths of the lists of a plan, sizes, which is always a range, wrap, the share of
	// worlds with wrapped rails, and pool, which is drawn last, from random numbers of its own.
	listSettings = []setting{
		{"rails", unitCount, 1, 4, oneOf(1, 2, 2, 2, 3)},
		{"connections", unitCount, 1, 8, func(d *planner) int64 { return int64(d.p.Hosts - 1) }},
		{"faults", unitCount, 0, 64, none},
		{"sizes", unitBytes, 0, maxMessage, nil},
		{"wrap", unitPercent, 0, 10000, none},
		{"pool", unitCount, 0, 1024, oneOf(0, 0, 0, 1, 4, 16, 64)},
	}
	railSettings = []setting{
		{"mtu", unitMTU, 1, 5, oneOf(1, 3, 5, 5)},
		{"window", unitCount, 1, 1 << 16, oneOf(4, 16, 64, 128)},
		{"queue", unitCount, 1, 1 << 16, oneOf(16, 64, 1024)},
		{"loss", unitPercent, 0, 10000, upTo(200)},
		{"duplicate", unitPercent, 0, 10000, upTo(200)},
		{"reorder", unitPercent, 0, 10000, upTo(500)},
		{"corrupt", unitPercent, 0, 10000, upTo(100)},
		{"delay", unitTime, 0, 1e9, func(d *planner) int64 { return 500 + d.Int64N(20_000) }},
		{"jitter", unitTime, 0, 1e9, upTo(5000)},
		{"rate", unitRate, 0, 1 << 50, oneOf(0, 1e9, 5e9, 50e9)},
		{"port-rate", unitRate, 0, 1 << 50, oneOf(0, 0, 0, 1e9, 10e9)},
		{"port-queue", unitBytes, 0, 1 << 30, oneOf(16<<10, 64<<10, 256<<10)},
		{"paths", unitCount, 1, 16, oneOf(1, 1, 2, 4)},
		{"path-rate", unitRate, 0, 1 << 50, oneOf(0, 0, 0, 1e9, 10e9)},
		{"path-queue", unitBytes, 0, 1 << 30, oneOf(16<<10, 64<<10, 256<<10)},
		{"skew", unitTime, 0, 1e5, upTo(10_000)},
	}
	// transportSettings are settings of a rail, too. They are drawn after everything else, from random
	// numbers of their own, so that a seed keeps the rest of its world.
	transportSettings = []setting{
		{"in-turn", unitSwitch, 0, 1, oneOf(0, 0, 1)},
		{"wrapped", unitSwitch, 0, 1, (*planner).wrapped},
		{"uc-paths", unitCount, 1, 256, (*planner).ucPaths},
		{"flows", unitCount, 1, 64, oneOf(1, 1, 2, 4, 16)},
		{"credits", unitSwitch, 0, 1, oneOf(1, 1, 0)},
		{"chunk", unitBytes, 256, 256 << 10, (*planner).chunk},
		{"datagrams", unitSwitch, 0, 1, oneOf(0, 0, 1)},
	}
	connectSettings = []setting{
		// By default every host is connected to the last one.
		{"from", unitCount, 0, 3, func(d *planner) int64 { return int64(len(d.p.Connects) % (d.p.Hosts - 1)) }},
		{"to", unitCount, 0, 3, func(d *planner) int64 { return int64(d.p.Hosts - 1) }},
		{"lanes", unitCount, 1, 64, func(d *planner) int64 { return oneOf(1, 2, 3, 4, 4, 8, 1+d.Int64N(16))(d) }},
		{"scheme", unitScheme, 0, 2, oneOf(0, 1, 2)},
		{"policy", unitPolicy, 0, 2, oneOf(0, 1, 2)},
		{"fragment", unitBytes, 0, 1 << 30, oneOf(0, 0, 256, 1024, 4096)},
	}
	endSettings = []setting{
		{"send-depth", unitCount, 1, 4096, oneOf(1, 4, 16, 64, 256)},
		{"recv-depth", unitCount, 1, 4096, oneOf(1, 4, 16, 64)},
		{"lane-depth", unitCount, 1, 4096, oneOf(1, 2, 8, 32, 128)},
		{"notify-depth", unitCount, 1, 4096, oneOf(1, 2, 8, 64)},
		{"signal-interval", unitCount, 0, 4096, oneOf(1, 4, 16, 0)},
		{"receives", unitCount, 1, 4096, func(d *planner) int64 { return 1 + d.Int64N(int64(d.end.RecvDepth)) }},
		{"messages", unitCount, 0, 100000, func(d *planner) int64 { return int64(d.messages) }},
	}
	faultSettings = []setting{
		{"rail", unitCount, 0, 3, nil},
		{"host", unitCount, 0, 3, nil},
		{"from", unitCount, 0, 3, nil},
		{"to", unitCount, 0, 3, nil},
		{"connection", unitCount, 0, 7, nil},
		{"lane", unitCount, 0, 65, nil},
		{"path", unitCount, 0, 15, nil},
		{"after", unitCount, 0, 1 << 20, nil},
		{"times", unitCount, 1, 100, nil},
		{"at", unitTime, 0, 1e15, nil},
		{"for", unitTime, 0, 1e15, nil},
	}
	// scopes are the lists that are searched for a setting without a place.
	scopes = [][]setting{worldSettings, workSettings, listSettings, railSettings, transportSettings, connectSettings, endSettings}
)

func (p *Plan) fields() []any {
	return []any{&p.Hosts, &p.Failover, &p.KeepAtomics, &p.Shared, &p.Goodput, &p.Quantum}
}

func (w *WorkPlan) fields() []any {
	return []any{&w.Burst, &w.Gap, &w.Batch, &w.Polls, &w.Inline, &w.Fence, &w.Silent, &w.Room, &w.Scatter}
}

func (r *RailPlan) fields() []any {
	i := &r.Impairment
	return []any{
		&r.MTU, &r.Window, &r.Queue, &i.Loss, &i.Duplicate, &i.Reorder, &i.Corrupt, &i.Delay, &i.Jitter, &i.Rate,
		&r.PortRate, &r.PortQueue, &r.Paths, &r.PathRate, &r.PathQueue, &r.Skew,
	}
}

func (t *TransportPlan) fields() []any {
	return []any{&t.InTurn, &t.Wrapped, &t.UCPaths, &t.Flows, &t.Credits, &t.Chunk, &t.Datagrams}
}

func (c *ConnectPlan) fields() []any {
	return []any{&c.From, &c.To, &c.Lanes, &c.Scheme, &c.Policy, &c.Fragment}
}

func (e *EndPlan) fields() []any {
	return []any{&e.SendDepth, &e.RecvDepth, &e.LaneDepth, &e.NotifyDepth, &e.SignalInterval, &e.Receives, &e.Messages}
}

func (f *Fault) fields() []any {
	return []any{&f.Rail, &f.From, &f.From, &f.To, &f.Connect, &f.Lane, &f.Path, &f.After, &f.Times, &f.At, &f.For}
}

// floatScale is how many units of a setting are 1 in a field of type float64.
func (s *setting) floatScale() float64 {
	if s.unit == unitPercent {
		return 10000
	}
	return 1
}

// store writes a value to the field that a pointer names.
func (s *setting) store(field any, v int64) {
	switch f := reflect.ValueOf(field).Elem(); {
	case f.CanInt():
		f.SetInt(v)
	case f.CanUint():
		f.SetUint(uint64(v))
	case f.CanFloat():
		f.SetFloat(float64(v) / s.floatScale())
	default:
		f.SetBool(v != 0)
	}
}

// format writes the value of a field as a scenario has it.
func (s *setting) format(field any) string {
	var v int64
	switch f := reflect.ValueOf(field).Elem(); {
	case f.CanInt():
		v = f.Int()
	case f.CanUint():
		v = int64(f.Uint())
	case f.CanFloat():
		v = int64(f.Float()*s.floatScale() + 0.5)
	case f.Bool():
		v = 1
	}
	return s.name + " " + formatValue(s.unit, v)
}

// settingNamed finds a setting.
func settingNamed(list []setting, name string) *setting {
	for i := range list {
		if list[i].name == name {
			return &list[i]
		}
	}
	return nil
}
