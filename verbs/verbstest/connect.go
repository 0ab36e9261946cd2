package verbstest

import (
	"cmp"

	"ibverbx/verbs"
)

var connectTests = []test{
	{"Endpoint", connectEndpoint},
	{"Defaults", connectDefaults},
	{"Path", connectPath},
	{"BadPath", connectBadPath},
	{"RdAtomicOfBothEnds", connectRdAtomic},
	{"SmallerMTU", connectSmallerMTU},
	{"EveryMTU", connectEveryMTU},
	{"BadEndpoints", connectBadEndpoints},
	{"FromInit", connectFromInit},
	{"Twice", connectTwice},
	{"UnreliableDefaults", connectUnreliable},
	{"BothAtOnce", connectBothAtOnce},
	{"Loopback", connectLoopback},
	{"Itself", connectItself},
}

// An endpoint is valid, describes its QP, and stays the same until RESET.
func connectEndpoint(e *env) {
	e.types(func(e *env, fresh func() *end, attr verbs.QPAttr) {
		q := fresh()
		first := e.endpoint(q)
		e.must(first.Validate(), "Validate")
		if first.QPN != q.Num() {
			e.Errorf("QPN = %#x, want %#x", first.QPN, q.Num())
		}
		port := e.queryPort(e.a)
		if first.MTU > port.ActiveMTU {
			e.Errorf("MTU = %v, want at most the active one, %v", first.MTU, port.ActiveMTU)
		}
		if q.Type() == verbs.RC {
			if n := int(first.MaxRdAtomic); n > e.a.attr.MaxQPInitRdAtomic {
				e.Errorf("MaxRdAtomic = %d, want at most %d", n, e.a.attr.MaxQPInitRdAtomic)
			}
			if n := int(first.MaxDestRdAtomic); n > e.a.attr.MaxQPRdAtomic {
				e.Errorf("MaxDestRdAtomic = %d, want at most %d", n, e.a.attr.MaxQPRdAtomic)
			}
		}
		e.gidIndex(e.a, first.GID)
		for _, s := range []verbs.QPState{verbs.StateInit, verbs.StateRTR, verbs.StateRTS} {
			e.must(modify(q, attr, s-1, s), "Modify to %v", s)
			now := e.endpoint(q)
			if now.QPN != first.QPN || now.PSN != first.PSN || now.GID != first.GID || now.LID != first.LID || now.MTU != first.MTU {
				e.Errorf("endpoint in %v = %+v, want %+v as in RESET", s, now, first)
			}
		}
	})
}

// Connect uses the defaults documented in package verbs, and takes the rest from both endpoints.
func connectDefaults(e *env) {
	c := e.unconnected(connConfig{})
	local, remote := e.endpoint(c.a), e.endpoint(c.b)
	e.must(c.a.Connect(remote), "Connect")
	e.inState(c.a, verbs.StateRTS)
	got := e.query(c.a)
	for _, tt := range []struct {
		name      string
		got, want uint32
	}{
		{"Timeout", uint32(got.Timeout), 14},
		{"RetryCount", uint32(got.RetryCount), 6},
		{"RNRRetry", uint32(got.RNRRetry), 7},
		{"MinRNRTimer", uint32(got.MinRNRTimer), 12},
		{"PathMTU", uint32(got.PathMTU), uint32(min(local.MTU, remote.MTU))},
		{"DestQPN", got.DestQPN, remote.QPN},
		{"RQPSN", got.RQPSN, remote.PSN},
		{"SQPSN", got.SQPSN, local.PSN},
		{"MaxRdAtomic", uint32(got.MaxRdAtomic), uint32(min(local.MaxRdAtomic, remote.MaxDestRdAtomic))},
		{"MaxDestRdAtomic", uint32(got.MaxDestRdAtomic), uint32(min(local.MaxDestRdAtomic, remote.MaxRdAtomic))},
		{"Port", uint32(got.Port), uint32(e.a.port)},
		{"Access", uint32(got.Access &^ verbs.AccessLocalWrite), uint32(verbs.AccessAll &^ verbs.AccessLocalWrite)},
	} {
		if tt.got != tt.want {
			e.Errorf("%s after Connect = %d, want %d", tt.name, tt.got, tt.want)
		}
	}
	if got.AH.DGID != remote.GID {
		e.Errorf("destination GID after Connect = %v, want %v", got.AH.DGID, remote.GID)
	}
}

// Connect takes traffic class, service level, hop limit, GID index, timeout and retries from
// QPConfig.Path, and data arrives.
func connectPath(e *env) {
	zero := int8(verbs.ExplicitZero)
	for _, tt := range []struct {
		path                        verbs.PathConfig
		timeout, retries, rnr, wait uint8
	}{
		{verbs.PathConfig{TrafficClass: 104, SL: 3, HopLimit: 9, AckTimeout: 17, RetryCount: 5, RNRRetry: 6, MinRNRTimer: 14}, 17, 5, 6, 14},
		{verbs.PathConfig{AckTimeout: zero, RetryCount: zero, RNRRetry: zero, MinRNRTimer: zero}, 0, 0, 0, 0},
	} {
		rowA, rowB := e.lastGIDRow(e.a), e.lastGIDRow(e.b)
		cfg := connConfig{pathA: tt.path, pathB: tt.path}
		cfg.pathA.GIDIndex, cfg.pathB.GIDIndex = cmp.Or(rowA, verbs.ExplicitZero), cmp.Or(rowB, verbs.ExplicitZero)
		c := e.unconnected(cfg)
		local, remote := e.endpoint(c.a), e.endpoint(c.b)
		e.must(c.b.Connect(local), "Connect")
		e.must(c.a.Connect(remote), "Connect")
		got := e.query(c.a)
		want := verbs.AHAttr{
			DGID: remote.GID, DLID: got.AH.DLID, SGIDIndex: rowA, HopLimit: cmp.Or(tt.path.HopLimit, 64), Port: e.a.port,
			TrafficClass: tt.path.TrafficClass, SL: tt.path.SL,
		}
		if got.AH != want {
			e.Errorf("address vector after Connect = %+v, want %+v", got.AH, want)
		}
		if got.Timeout != tt.timeout || got.RetryCount != tt.retries || got.RNRRetry != tt.rnr || got.MinRNRTimer != tt.wait {
			e.Errorf("after Connect: Timeout %d, RetryCount %d, RNRRetry %d, MinRNRTimer %d, want %d, %d, %d, %d",
				got.Timeout, got.RetryCount, got.RNRRetry, got.MinRNRTimer, tt.timeout, tt.retries, tt.rnr, tt.wait)
		}
		if tt.retries > 0 {
			e.exchange(c, 100)
		}
	}
}

// lastGIDRow returns the index of the last non-empty row of the GID table.
func (e *env) lastGIDRow(s *side) int {
	rows := e.gids(s)
	return rows[len(rows)-1].Index
}

// A path that is out of range, or names missing rows of the port, makes CreateQP fail.
func connectBadPath(e *env) {
	port := e.queryPort(e.a)
	good := verbs.QPConfig{Type: verbs.RC, MaxSendWR: 1, MaxRecvWR: 1, Port: e.a.port}
	good.SendCQ = e.newCQ(e.a, 64, nil)
	good.RecvCQ = good.SendCQ
	for name, bad := range map[string]verbs.PathConfig{
		"SL 16":                          {SL: 16},
		"AckTimeout 32":                  {AckTimeout: 32},
		"AckTimeout -2":                  {AckTimeout: -2},
		"RetryCount 8":                   {RetryCount: 8},
		"RNRRetry 8":                     {RNRRetry: 8},
		"MinRNRTimer 32":                 {MinRNRTimer: 32},
		"GIDIndex -2":                    {GIDIndex: -2},
		"a GIDIndex of an empty row":     {GIDIndex: e.lastGIDRow(e.a) + 1},
		"a GIDIndex beyond the table":    {GIDIndex: port.GIDs},
		"a P_Key index beyond the table": {PKeyIndex: uint16(port.PKeys)},
	} {
		cfg := good
		cfg.Path = bad
		e.refused("CreateQP with "+name, errorOf(e.a.pd.CreateQP(cfg)), verbs.ErrInvalid)
	}
	good.GID, good.Path.GIDIndex = e.gids(e.a)[0].GID, verbs.ExplicitZero
	e.refused("CreateQP with both GID and GIDIndex", errorOf(e.a.pd.CreateQP(good)), verbs.ErrInvalid)
}

// The depth of READs and atomics is the largest that both ends support.
func connectRdAtomic(e *env) {
	c := e.unconnected(connConfig{})
	remote := e.endpoint(c.b)
	if e.endpoint(c.a).MaxRdAtomic < 2 || e.endpoint(c.a).MaxDestRdAtomic < 2 {
		e.Skip("the device does not have two READs outstanding")
	}
	remote.MaxRdAtomic, remote.MaxDestRdAtomic = 2, 1
	e.must(c.a.Connect(remote), "Connect")
	got := e.query(c.a)
	if got.MaxRdAtomic != 1 || got.MaxDestRdAtomic != 2 {
		e.Errorf("MaxRdAtomic = %d and MaxDestRdAtomic = %d, want 1 and 2", got.MaxRdAtomic, got.MaxDestRdAtomic)
	}
}

// exchange transfers n bytes over c with every RC operation and checks them.
func (e *env) exchange(c *conn, n int) {
	e.Helper()
	a, b := e.buf(c.a.side, 2*n), e.buf(c.b.side, 2*n)
	a.put(0, payload(uint64(n), n))
	e.postRecv(c.b, recv(1, b.sge(0, n)))
	e.do(c.a, send(2, a.sge(0, n)), write(3, b, n, a.sge(0, n)), read(4, b, n, a.sge(n, n)))
	e.gets(c.b, 1, n)
	e.same(b.bytes()[:n], payload(uint64(n), n))
	e.same(b.bytes()[n:], payload(uint64(n), n))
	e.same(a.bytes()[n:], payload(uint64(n), n))
}

// The smaller of the two MTUs is used.
func connectSmallerMTU(e *env) {
	c := e.unconnected(connConfig{})
	a, b := e.endpoint(c.a), e.endpoint(c.b)
	b.MTU = verbs.MTU256
	e.must(c.a.Connect(b), "Connect")
	a.MTU = verbs.MTU256
	e.must(c.b.Connect(a), "Connect")
	for _, q := range []*end{c.a, c.b} {
		if got, err := q.Query(); err != nil || got.PathMTU != verbs.MTU256 {
			e.Errorf("PathMTU on %s = %v (%v), want %v", q.side.name, got.PathMTU, err, verbs.MTU256)
		}
	}
	e.exchange(c, 5000)
}

// Every path MTU up to the active one carries messages that end just before, on and after a packet
// boundary.
func connectEveryMTU(e *env) {
	for mtu := verbs.MTU256; mtu <= verbs.MTU4096; mtu++ {
		e.sub(mtu.String(), func(e *env) {
			c := e.unconnected(connConfig{})
			if mtu > min(e.endpoint(c.a).MTU, e.endpoint(c.b).MTU) {
				e.Skipf("the ports have an active MTU below %v", mtu)
			}
			e.connect(c, connConfig{tweak: func(a *verbs.QPAttr) { a.PathMTU = mtu }})
			n := mtu.Bytes()
			for _, size := range []int{1, n - 1, n, n + 1, 2 * n, 3*n + 1} {
				e.exchange(c, size)
			}
		})
	}
}

// Connect refuses an endpoint with invalid values, since it was received from a peer, and the QP
// stays unconnected.
func connectBadEndpoints(e *env) {
	c := e.unconnected(connConfig{})
	good := e.endpoint(c.b)
	for name, change := range map[string]func(ep *verbs.Endpoint){
		"QPN 0":           func(ep *verbs.Endpoint) { ep.QPN = 0 },
		"QPN of 25 bits":  func(ep *verbs.Endpoint) { ep.QPN |= 1 << 24 },
		"PSN of 25 bits":  func(ep *verbs.Endpoint) { ep.PSN |= 1 << 24 },
		"MTU 0":           func(ep *verbs.Endpoint) { ep.MTU = 0 },
		"MTU 6":           func(ep *verbs.Endpoint) { ep.MTU = 6 },
		"no address":      func(ep *verbs.Endpoint) { ep.GID, ep.LID = verbs.GID{}, 0 },
		"too large Extra": func(ep *verbs.Endpoint) { ep.Extra = make([]byte, verbs.MaxEndpointExtra+1) },
		"all zero":        func(ep *verbs.Endpoint) { *ep = verbs.Endpoint{} },
	} {
		bad := good
		change(&bad)
		e.refused("Connect with "+name, c.a.Connect(bad), verbs.ErrInvalid)
		if s := c.a.State(); s != verbs.StateReset && s != verbs.StateInit {
			e.Fatalf("state after Connect with %s = %v, want RESET or INIT", name, s)
		}
	}
	e.connect(c, connConfig{})
	e.fence(c)
}

// Connect also works from INIT.
func connectFromInit(e *env) {
	c := e.unconnected(connConfig{})
	for _, q := range []*end{c.a, c.b} {
		e.must(verbs.InitQP(q.QP, q.side.port), "InitQP")
	}
	e.connect(c, connConfig{})
	e.exchange(c, 100)
}

// A second Connect of a connected QP is refused, and the connection remains usable.
func connectTwice(e *env) {
	c := e.rc()
	e.refused("a second Connect", c.a.Connect(e.endpoint(c.b)), verbs.ErrState, verbs.ErrInvalid)
	e.inState(c.a, verbs.StateRTS)
	e.exchange(c, 100)
}

// Connect works on UC and UD; on UD it ignores the endpoint.
func connectUnreliable(e *env) {
	e.sub("UC", func(e *env) {
		e.needUC()
		c := e.conn(connConfig{typ: verbs.UC})
		got := e.query(c.a)
		if got.State != verbs.StateRTS || got.DestQPN != c.b.Num() {
			e.Errorf("state = %v and DestQPN = %#x, want RTS and %#x", got.State, got.DestQPN, c.b.Num())
		}
	})
	e.sub("UD", func(e *env) {
		e.needUD()
		q := e.newQP(e.a, verbs.QPConfig{Type: verbs.UD, MaxSendWR: 1, MaxRecvWR: 1})
		e.must(q.Connect(verbs.Endpoint{}), "Connect of a UD QP to nowhere")
		e.inState(q, verbs.StateRTS)
		if got := e.endpoint(q).QKey; got != verbs.DefaultQKey {
			e.Errorf("QKey = %#x, want %#x", got, uint32(verbs.DefaultQKey))
		}
	})
}

// Both ends may connect concurrently.
func connectBothAtOnce(e *env) {
	for range 8 {
		c := e.unconnected(connConfig{})
		a, b := e.endpoint(c.a), e.endpoint(c.b)
		e.runParallel(func() error { return c.a.Connect(b) }, func() error { return c.b.Connect(a) })
		e.fence(c)
	}
}

// loop returns two connected QPs of side A.
func (e *env) loop() *conn {
	e.Helper()
	cfg := verbs.QPConfig{Type: verbs.RC, MaxSendWR: 16, MaxRecvWR: 16}
	c := &conn{a: e.newQP(e.a, cfg), b: e.newQP(e.a, cfg)}
	e.connect(c, connConfig{})
	return c
}

// A QP can be connected to another QP of the same context.
func connectLoopback(e *env) {
	c := e.loop()
	e.exchange(c, 10000)
	e.exchange(c.back(), 3)
}

// A QP can be connected to itself.
func connectItself(e *env) {
	q := e.newQP(e.a, verbs.QPConfig{Type: verbs.RC, MaxSendWR: 16, MaxRecvWR: 16, SendCQ: e.newCQ(e.a, 64, nil)})
	e.must(q.Connect(e.endpoint(q)), "Connect to itself")
	e.exchange(&conn{a: q, b: q}, 10000)
}
