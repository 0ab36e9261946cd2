package verbstest

import (
	"ibverbx/verbs"
)

var deviceTests = []test{
	{"Identity", deviceIdentity},
	{"Limits", deviceLimits},
	{"LimitsRefuse", deviceLimitsRefuse},
	{"Port", devicePort},
	{"PortOutOfRange", devicePortOutOfRange},
	{"GIDTable", deviceGIDTable},
	{"GIDsDiffer", deviceGIDsDiffer},
	{"OpenTwice", deviceOpenTwice},
	{"BadConfigs", deviceBadConfigs},
	{"MissingCapabilities", deviceMissingCapabilities},
}

// A device has a name and a GUID that are the same in every query.
func deviceIdentity(e *env) {
	for _, s := range []*side{e.a, e.b} {
		dev := s.ctx.Device()
		if dev.Name() == "" || s.attr.Provider == "" || s.attr.Link == "" {
			e.Errorf("%s: name %q, provider %q, link %q, want none of them empty", s.name, dev.Name(), s.attr.Provider, s.attr.Link)
		}
		if dev.GUID() != s.attr.NodeGUID || dev.GUID() == 0 {
			e.Errorf("%s: GUID = %v and NodeGUID = %v, want the same, not zero", s.name, dev.GUID(), s.attr.NodeGUID)
		}
	}
}

// The limits reported by ibv_query_device(3) are consistent.
func deviceLimits(e *env) {
	for _, s := range []*side{e.a, e.b} {
		a := s.attr
		for name, n := range map[string]int{
			"Ports": a.Ports, "MaxMR": a.MaxMR, "MaxPD": a.MaxPD, "MaxQP": a.MaxQP, "MaxQPWR": a.MaxQPWR,
			"MaxSGE": a.MaxSGE, "MaxCQ": a.MaxCQ, "MaxCQE": a.MaxCQE,
		} {
			if n <= 0 {
				e.Errorf("%s: %s = %d, want more than 0", s.name, name, n)
			}
		}
		if a.MaxMsgSize == 0 || a.MaxMRSize == 0 {
			e.Errorf("%s: MaxMsgSize = %d and MaxMRSize = %d, want more than 0", s.name, a.MaxMsgSize, a.MaxMRSize)
		}
		if has := a.Capabilities&verbs.CapSRQ != 0; has != (a.MaxSRQ > 0) || has != (a.MaxSRQWR > 0) {
			e.Errorf("%s: CapSRQ is %v but MaxSRQ = %d and MaxSRQWR = %d", s.name, has, a.MaxSRQ, a.MaxSRQWR)
		}
		if a.Capabilities&verbs.CapUD != 0 && a.MaxAH <= 0 {
			e.Errorf("%s: CapUD is set but MaxAH = %d", s.name, a.MaxAH)
		}
		if a.Atomic > verbs.AtomicGlob {
			e.Errorf("%s: Atomic = %v, which does not exist", s.name, a.Atomic)
		}
		if a.Atomic != verbs.AtomicNone && (a.MaxQPRdAtomic <= 0 || a.MaxQPInitRdAtomic <= 0) {
			e.Errorf("%s: has atomics but MaxQPRdAtomic = %d and MaxQPInitRdAtomic = %d", s.name, a.MaxQPRdAtomic, a.MaxQPInitRdAtomic)
		}
	}
}

// Creating an object beyond a limit fails (ibv_create_qp(3), EINVAL).
func deviceLimitsRefuse(e *env) {
	a := e.a.attr
	cq := e.newCQ(e.a, 16, nil)
	base := verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 4, MaxRecvWR: 4}
	qps := map[string]func(c *verbs.QPConfig){
		"MaxSendWR":  func(c *verbs.QPConfig) { c.MaxSendWR = a.MaxQPWR + 1 },
		"MaxRecvWR":  func(c *verbs.QPConfig) { c.MaxRecvWR = a.MaxQPWR + 1 },
		"MaxSendSGE": func(c *verbs.QPConfig) { c.MaxSendSGE = a.MaxSGE + 1 },
		"MaxRecvSGE": func(c *verbs.QPConfig) { c.MaxRecvSGE = a.MaxSGE + 1 },
		"Negative":   func(c *verbs.QPConfig) { c.MaxSendWR = -1 },
	}
	if a.MaxInline > 0 {
		qps["MaxInline"] = func(c *verbs.QPConfig) { c.MaxInline = a.MaxInline + 1 }
	}
	for name, change := range qps {
		cfg := base
		change(&cfg)
		e.rejectsCreate("CreateQP above the limit of "+name, verbs.ErrInvalid, verbs.ErrLimit)(e.a.pd.CreateQP(cfg))
	}
	e.rejectsCreate("CreateCQ above MaxCQE", verbs.ErrInvalid, verbs.ErrLimit)(e.a.ctx.CreateCQ(verbs.CQConfig{Depth: a.MaxCQE + 1}))
	if a.Capabilities&verbs.CapSRQ == 0 {
		return
	}
	for _, cfg := range []verbs.SRQConfig{{MaxWR: a.MaxSRQWR + 1}, {MaxWR: 4, MaxSGE: a.MaxSRQSGE + 1}} {
		e.rejectsCreate("CreateSRQ above a limit", verbs.ErrInvalid, verbs.ErrLimit)(e.a.pd.CreateSRQ(cfg))
	}
}

// The port in use is active and reports valid MTUs.
func devicePort(e *env) {
	for _, s := range []*side{e.a, e.b} {
		p := e.queryPort(s)
		if p.State != verbs.PortActive {
			e.Errorf("%s: port state = %v, want %v", s.name, p.State, verbs.PortActive)
		}
		if p.ActiveMTU.Bytes() == 0 || p.MaxMTU.Bytes() == 0 || p.ActiveMTU > p.MaxMTU {
			e.Errorf("%s: ActiveMTU = %v and MaxMTU = %v, want existing ones in this order", s.name, p.ActiveMTU, p.MaxMTU)
		}
		if p.GIDs <= 0 || p.PKeys <= 0 || p.MaxMsg == 0 {
			e.Errorf("%s: GIDs = %d, PKeys = %d, MaxMsg = %d, want more than 0", s.name, p.GIDs, p.PKeys, p.MaxMsg)
		}
		if p.LinkLayer != verbs.LinkLayerInfiniBand && p.LinkLayer != verbs.LinkLayerEthernet {
			e.Errorf("%s: LinkLayer = %v, want InfiniBand or Ethernet", s.name, p.LinkLayer)
		}
	}
}

// Ports are numbered from 1; other numbers are refused.
func devicePortOutOfRange(e *env) {
	for _, port := range []int{-1, 0, e.a.attr.Ports + 1, 256 + int(e.a.port)} {
		e.refused("QueryPort of a port that does not exist", errorOf(e.a.ctx.QueryPort(port)), verbs.ErrInvalid, verbs.ErrNotFound)
		e.refused("QueryGID of a port that does not exist", errorOf(e.a.ctx.QueryGID(port, 0)), verbs.ErrInvalid, verbs.ErrNotFound)
	}
}

// The GID table has at least one address; queries for empty or out-of-range rows are refused.
func deviceGIDTable(e *env) {
	for _, s := range []*side{e.a, e.b} {
		type key struct {
			gid verbs.GID
			typ verbs.GIDType
		}
		seen := map[key]int{}
		port := e.queryPort(s)
		for i := range port.GIDs {
			row, err := s.ctx.QueryGID(int(s.port), i)
			if err != nil {
				e.refused("QueryGID of an empty row", err, verbs.ErrNotFound)
				continue
			}
			if row.Index != i || row.GID.IsZero() {
				e.Errorf("%s: QueryGID(%d) = index %d, GID %v, want index %d and a GID", s.name, i, row.Index, row.GID, i)
			}
			if old, dup := seen[key{row.GID, row.Type}]; dup {
				e.Errorf("%s: rows %d and %d of the GID table are the same: %v %v", s.name, old, i, row.GID, row.Type)
			}
			seen[key{row.GID, row.Type}] = i
		}
		if len(seen) == 0 {
			e.Errorf("%s: the GID table of port %d is empty", s.name, s.port)
		}
		for _, i := range []int{-1, port.GIDs} {
			e.refused("QueryGID beyond the table", errorOf(s.ctx.QueryGID(int(s.port), i)), verbs.ErrInvalid, verbs.ErrNotFound)
		}
	}
}

// Two devices that reach each other have different GIDs.
func deviceGIDsDiffer(e *env) {
	if e.a.ctx.Device().Name() == e.b.ctx.Device().Name() {
		e.Skip("both contexts use the same device")
	}
	for _, a := range e.gids(e.a) {
		for _, b := range e.gids(e.b) {
			if a.GID == b.GID {
				e.Errorf("GID %v is in the tables of both devices", a.GID)
			}
		}
	}
}

// again opens s's device a second time.
func (e *env) again(s *side) *side {
	e.Helper()
	ctx, err := s.ctx.Device().Open()
	e.must(err, "Open a second time")
	e.closeLater("second context", ctx)
	return e.side(s.name+"2", ctx, s.port, s.gid)
}

// A device may be opened several times, and QPs of its contexts can be connected to each
// other.
func deviceOpenTwice(e *env) {
	second := e.again(e.a)
	qa := e.newQP(e.a, verbs.QPConfig{Type: verbs.RC, MaxSendWR: 4, MaxRecvWR: 4})
	qb := e.newQP(second, verbs.QPConfig{Type: verbs.RC, MaxSendWR: 4, MaxRecvWR: 4})
	if qa.Num() == qb.Num() {
		e.Errorf("QPs of two contexts of one device have the same number %#x", qa.Num())
	}
	c := &conn{a: qa, b: qb}
	e.connect(c, connConfig{})
	e.exchange(c, 64)
}

// A configuration that lacks a required field is refused.
func deviceBadConfigs(e *env) {
	cq := e.newCQ(e.a, 4, nil)
	for name, cfg := range map[string]verbs.QPConfig{
		"no type":      {SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1},
		"unknown type": {Type: 99, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1},
		"bad port":     {Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, Port: 200},
	} {
		e.rejectsCreate("CreateQP with "+name, verbs.ErrInvalid, verbs.ErrNotFound, verbs.ErrNotSupported)(e.a.pd.CreateQP(cfg))
	}
}

// Calls that need a missing capability return ErrNotSupported.
func deviceMissingCapabilities(e *env) {
	cq, caps := e.newCQ(e.a, 4, nil), e.a.attr.Capabilities
	checked := 0
	lacks := func(c verbs.Capabilities, what string, try func() error) {
		if caps&c == 0 {
			checked++
			e.refused(what, try(), verbs.ErrNotSupported)
		}
	}
	qp := func(t verbs.QPType) error {
		return errorOf(e.a.pd.CreateQP(verbs.QPConfig{Type: t, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1}))
	}
	lacks(verbs.CapRC, "CreateQP of type RC", func() error { return qp(verbs.RC) })
	lacks(verbs.CapUC, "CreateQP of type UC", func() error { return qp(verbs.UC) })
	lacks(verbs.CapUD, "CreateQP of type UD", func() error { return qp(verbs.UD) })
	lacks(verbs.CapSRQ, "CreateSRQ", func() error { return errorOf(e.a.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 1})) })
	lacks(verbs.CapTimestamp, "CreateCQ with Timestamp", func() error {
		return errorOf(e.a.ctx.CreateCQ(verbs.CQConfig{Depth: 1, Timestamp: true}))
	})
	lacks(verbs.CapDMABuf, "RegisterDMABuf", func() error {
		return errorOf(e.a.pd.RegisterDMABuf(-1, 0, 4096, 0, verbs.AccessLocalWrite))
	})
	lacks(verbs.CapSeal, "CreateQP with a Seal", func() error {
		return errorOf(e.a.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, Path: verbs.PathConfig{Seal: noSeal{}}}))
	})
	lacks(verbs.CapSeal, "CreateAH with a Seal", func() error {
		return errorOf(e.a.pd.CreateAH(verbs.AHAttr{DGID: e.gids(e.b)[0].GID, Seal: noSeal{}}))
	})
	if checked == 0 {
		e.Skip("the device can do everything")
	}
}

// noSeal is a Seal that no provider accepts.
type noSeal struct{}

func (noSeal) Sealed() {}
