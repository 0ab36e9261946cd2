package softnic

import "ibverbx/verbs"

// hostContext is an open NIC. The core's lock guards it.
type hostContext struct {
	nic    *NIC
	core   *core
	closed bool
	pds    creationOrder[*pd]
	cqs    creationOrder[*cq]
	events eventQueue
}

var (
	_ verbs.Context     = (*hostContext)(nil)
	_ verbs.ClockReader = (*hostContext)(nil)
	_ verbs.Corker      = (*hostContext)(nil)
)

func (x *hostContext) Device() verbs.Device { return x.nic }

func (x *hostContext) usable() error {
	switch {
	case x.closed:
		return verbs.ErrClosed
	case x.nic.failed:
		return verbs.ErrDeviceFatal
	}
	return nil
}

// Cork implements verbs.Corker. It does nothing on links other than UDPLinks.
func (x *hostContext) Cork() {
	if l := x.core.udpNIC; l != nil {
		l.mu.Lock()
		l.corks++
		l.mu.Unlock()
	}
}

// Uncork implements verbs.Corker.
func (x *hostContext) Uncork() {
	if l := x.core.udpNIC; l != nil {
		l.mu.Lock()
		l.corks--
		l.flush()
		l.mu.Unlock()
	}
}

// usable is implemented by a context and the objects created from it.
type usable interface{ usable() error }

// locked runs f with the core's mutex held, if o is usable. o is x or an object created from it.
func locked[T any](x *hostContext, o usable, op string, f func() (T, error)) (v T, err error) {
	x.core.mu.hold()
	defer x.core.mu.Unlock()
	if err = o.usable(); err == nil {
		v, err = f()
	}
	return v, verbs.NewOpError(op, x.nic.name, 0, err)
}

func (x *hostContext) QueryDevice() (verbs.DeviceAttr, error) {
	return locked(x, x, "query device", func() (verbs.DeviceAttr, error) { return x.nic.attr(), nil })
}

func (n *NIC) attr() verbs.DeviceAttr {
	caps := verbs.CapSRQ | verbs.CapSQD | verbs.CapFlushOnPost | verbs.CapTimestamp | dmaBufs | n.cfg.typeCaps()
	if n.udp != nil {
		caps |= verbs.CapSeal
	}
	return verbs.DeviceAttr{
		Provider:          "softnic",
		Link:              n.core.traits.kind,
		FWVersion:         "1.0.0",
		NodeGUID:          n.GUID(),
		SysImageGUID:      n.GUID(),
		Ports:             1,
		MaxMRSize:         1<<63 - 1,
		MaxMR:             maxMR,
		MaxPD:             maxPD,
		MaxQP:             maxQP,
		MaxQPWR:           maxWR,
		MaxSGE:            maxSGE,
		MaxInline:         maxInline,
		MaxCQ:             maxCQ,
		MaxCQE:            maxCQE,
		MaxSRQ:            maxSRQ,
		MaxSRQWR:          maxWR,
		MaxSRQSGE:         maxSGE,
		MaxAH:             maxAH,
		MaxMsgSize:        maxMsgSize,
		MaxQPRdAtomic:     maxRdAtomic,
		MaxQPInitRdAtomic: maxRdAtomic,
		Atomic:            verbs.AtomicHCA,
		Capabilities:      caps,
	}
}

func (x *hostContext) QueryPort(port int) (verbs.PortAttr, error) {
	return locked(x, x, "query port", func() (attr verbs.PortAttr, err error) {
		if port != 1 {
			return attr, errPort(port)
		}
		attr = verbs.PortAttr{
			State:     verbs.PortDown,
			MaxMTU:    x.nic.cfg.MTU,
			ActiveMTU: x.nic.cfg.MTU,
			GIDs:      len(x.nic.gids),
			PKeys:     pkeys,
			MaxMsg:    maxMsgSize,
			LinkLayer: verbs.LinkLayerEthernet,
			OnCaller:  x.nic.core.onCaller(),

			DeviceCopies: x.nic.core.traits.immediate,
		}
		if u := x.nic.udp; u != nil {
			attr.LID = u.lid()
			attr.OnCaller = u.onCaller()
		}
		if x.nic.portUp {
			attr.State = verbs.PortActive
		}
		return attr, nil
	})
}

func errPort(port int) error { return verbs.Invalidf("port %d: the device has only port 1", port) }

func (x *hostContext) QueryGID(port, index int) (verbs.GIDEntry, error) {
	return locked(x, x, "query GID", func() (e verbs.GIDEntry, err error) {
		if port != 1 {
			return e, errPort(port)
		}
		if index < 0 || index >= len(x.nic.gids) {
			return e, verbs.ErrNotFound
		}
		e = x.nic.gids[index]
		if x.nic.portGIDs() {
			e.GID = portGID(e.GID, x.nic.udp.conn.Addr().Port())
		}
		return e, nil
	})
}

func (x *hostContext) AllocPD() (verbs.PD, error) {
	return locked(x, x, "allocate PD", func() (verbs.PD, error) {
		if x.pds.len() >= maxPD {
			return nil, verbs.ErrLimit
		}
		x.nic.pds++
		d := &pd{ctx: x, id: x.nic.pds}
		x.pds.add(d)
		return d, nil
	})
}

func (x *hostContext) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	return locked(x, x, "create CQ", func() (verbs.CQ, error) { return x.createCQ(cfg) })
}

func (x *hostContext) Close() error {
	x.core.mu.Lock()
	x.destroy()
	x.core.settle()
	x.core.mu.Unlock()
	return verbs.NewOpError("close context", x.nic.name, 0, x.nic.leaveGroups())
}

// destroy closes the context and all its objects.
func (x *hostContext) destroy() {
	if x.closed {
		return
	}
	for _, d := range x.pds.inOrder() {
		d.destroy()
	}
	for _, c := range x.cqs.inOrder() {
		c.destroy()
	}
	x.closed = true
	x.events.waker.wake()
	x.nic.contexts.remove(x)
}
