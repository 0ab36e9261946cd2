package sim

// setting is one thing that a scenario can fix, by name.
type setting struct {
	name      string
	unit      unit
	low, high int64 // what is legal
	about     string
}

// The settings of a world, a rail, a connection, an end and a fault. The values methods of the plans
// return them in the same order.
var (
	planSettings = []setting{
		{"hosts", unitCount, 2, 4, "number of hosts"},
		{"rails", unitCount, 1, 4, "number of networks that join them"},
		{"connections", unitCount, 1, 8, "number of pairs of VirtualQPs"},
		{"shared", unitCount, 0, 1024, "receives in the SRQs of a host, 0 for queues of each lane"},
		{"failover", unitSwitch, 0, 1, "whether VirtualQPs have a control channel"},
		{"keep-atomics", unitSwitch, 0, 1, "whether an atomic in doubt leaves its VirtualQP up, with failover"},
		{"quantum", unitTime, 0, 1e9, "smallest step of time"},
		{"goodput", unitPercent, 0, 10000, "smallest share of the capacity of the rails that ends a must reach, 0% to not measure"},
		{"sizes", unitBytes, 0, maxMessage, "bytes of a request, always a range"},
		{"burst", unitCount, 1, 256, "most requests in one post"},
		{"gap", unitTime, 0, 1e9, "longest time between two posts"},
		{"batch", unitCount, 1, 64, "most completions in one poll"},
		{"polls", unitTime, 0, 1e9, "longest time between two polls"},
		{"inline", unitPercent, 0, 10000, "of small requests"},
		{"fence", unitPercent, 0, 10000, "of requests"},
		{"unsignaled", unitPercent, 0, 10000, "of requests"},
		{"scatter", unitPercent, 0, 10000, "of requests have several pieces"},
		{"room", unitCount, 3, 64, "number of largest requests that fit the memory of an end"},
		{"faults", unitCount, 0, 64, "number of faults that the seed adds to the named ones"},
	}
	railSettings = []setting{
		{"mtu", unitMTU, 1, 5, "of the ports"},
		{"window", unitCount, 1, 1 << 16, "most packets of a QP in flight"},
		{"queue", unitCount, 1, 1 << 16, "most packets of a NIC in flight"},
		{"loss", unitPercent, 0, 10000, "of packets"},
		{"duplicate", unitPercent, 0, 10000, "of packets"},
		{"reorder", unitPercent, 0, 10000, "of packets"},
		{"corrupt", unitPercent, 0, 10000, "of packets"},
		{"delay", unitTime, 0, 1e9, "of every packet"},
		{"jitter", unitTime, 0, 1e9, "most random delay that is added"},
		{"rate", unitRate, 0, 1 << 50, "of the wire"},
		{"port-rate", unitRate, 0, 1 << 50, "of the switch port in front of every NIC, none for no switch"},
		{"port-queue", unitBytes, 0, 1 << 30, "bytes that may wait there; packets that do not fit are lost"},
		{"paths", unitCount, 1, 16, "equal paths between two hosts; a flow is pinned to one of them"},
		{"path-rate", unitRate, 0, 1 << 50, "of one of them, none for no limit"},
		{"path-queue", unitBytes, 0, 1 << 30, "bytes that may wait for it; packets that do not fit are lost"},
		{"skew", unitTime, 0, 1e5, "most delay that is added to a path"},
	}
	connectSettings = []setting{
		{"from", unitCount, 0, 3, "host of end a"},
		{"to", unitCount, 0, 3, "host of end b"},
		{"lanes", unitCount, 1, 64, "that carry data"},
		{"track", unitSwitch, 0, 1, "whether a single lane is tracked"},
		{"scheme", unitScheme, 0, 2, "tally, dqplb or spray"},
		{"policy", unitPolicy, 0, 3, "auto, round-robin, least-bytes or two-choices"},
		{"fragment", unitBytes, 0, 1 << 30, "bytes of a fragment, 0 if it is chosen by length"},
	}
	endSettings = []setting{
		{"send-depth", unitCount, 1, 4096, "requests outstanding"},
		{"recv-depth", unitCount, 1, 4096, "receives outstanding"},
		{"lane-depth", unitCount, 1, 4096, "physical requests of a lane"},
		{"notify-depth", unitCount, 1, 4096, "receives that the engine keeps on a lane"},
		{"signal-interval", unitCount, 1, 4096, "physical requests that share a completion"},
		{"receives", unitCount, 1, 4096, "that the application keeps posted"},
		{"messages", unitCount, 0, 100000, "that the end sends"},
	}
	faultSettings = []setting{
		{"rail", unitCount, 0, 3, ""},
		{"host", unitCount, 0, 3, ""},
		{"from", unitCount, 0, 3, ""},
		{"to", unitCount, 0, 3, ""},
		{"connection", unitCount, 0, 7, ""},
		{"lane", unitCount, 0, 65, ""},
		{"path", unitCount, 0, 15, ""},
		{"after", unitCount, 0, 1 << 20, ""},
		{"times", unitCount, 1, 100, ""},
		{"at", unitTime, 0, 1e15, ""},
		{"for", unitTime, 0, 1e15, ""},
	}
)

// settingNamed finds a setting.
func settingNamed(list []setting, name string) *setting {
	for i := range list {
		if list[i].name == name {
			return &list[i]
		}
	}
	return nil
}

// scopes are the lists in which a setting without a place is looked for.
var scopes = [][]setting{planSettings, railSettings, connectSettings, endSettings}
