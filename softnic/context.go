package softnic

import (
	"ibverbx/verbs"
)

// hostContext is an open NIC. Everything in it is guarded by the core's lock.
type hostContext struct {
	nic    *NIC
	core   *core
	closed bool
	pds    family[*pd]
	cqs    family[*cq]
	events eventQueue
}

var _ verbs.Context = (*hostContext)(nil)

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

// do runs f with the lock held if the context can be used.
func (x *hostContext) do(op string, f func() error) error {
	x.core.mu.Lock()
	defer x.core.mu.Unlock()
	if err := x.usable(); err != nil {
		return verbs.NewOpError(op, x.nic.name, 0, err)
	}
	return verbs.NewOpError(op, x.nic.name, 0, f())
}

func (x *hostContext) QueryDevice() (attr verbs.DeviceAttr, err error) {
	err = x.do("query device", func() error {
		attr = x.nic.attr()
		return nil
	})
	return attr, err
}

func (n *NIC) attr() verbs.DeviceAttr {
	return verbs.DeviceAttr{
		Provider:          "softnic",
		Link:              n.link.kind(),
		FWVersion:         "1.0.0",
		NodeGUID:          n.GUID(),
		SysImageGUID:      n.GUID(),
		Ports:             1,
		MaxMRSize:         1<<63 - 1,
		MaxMR:             maxMR,
		MaxPD:             maxPD,
		MaxQP:             maxQP + 1 - firstQPN,
		MaxQPWR:           maxWR,
		MaxSGE:            verbs.MaxSGE,
		MaxInline:         maxInline,
		MaxCQ:             maxCQ,
		MaxCQE:            maxCQE,
		MaxSRQ:            maxSRQ,
		MaxSRQWR:          maxWR,
		MaxSRQSGE:         verbs.MaxSGE,
		MaxAH:             maxAH,
		MaxMsgSize:        maxMsgSize,
		MaxQPRdAtomic:     maxRdAtomic,
		MaxQPInitRdAtomic: maxRdAtomic,
		Atomic:            verbs.AtomicHCA,
		Capabilities: verbs.CapUC | verbs.CapUD | verbs.CapSRQ | verbs.CapSRQOnUC |
			verbs.CapSQD | verbs.CapFlushOnPost,
	}
}

func (x *hostContext) QueryPort(port int) (attr verbs.PortAttr, err error) {
	err = x.do("query port", func() error {
		if port != 1 {
			return verbs.Invalidf("port %d, the device has port 1 only", port)
		}
		attr = verbs.PortAttr{
			State:     verbs.PortDown,
			MaxMTU:    x.nic.cfg.MTU,
			ActiveMTU: x.nic.cfg.MTU,
			GIDs:      len(x.nic.gids),
			PKeys:     1,
			MaxMsg:    maxMsgSize,
			LinkLayer: verbs.LinkLayerEthernet,
		}
		if u := x.nic.udp; u != nil {
			attr.LID = u.lid()
		}
		if x.nic.portUp {
			attr.State = verbs.PortActive
		}
		return nil
	})
	return attr, err
}

func (x *hostContext) QueryGID(port, index int) (e verbs.GIDEntry, err error) {
	err = x.do("query GID", func() error {
		if port != 1 {
			return verbs.Invalidf("port %d, the device has port 1 only", port)
		}
		if index < 0 || index >= len(x.nic.gids) {
			return verbs.ErrNotFound
		}
		e = x.nic.gids[index]
		return nil
	})
	return e, err
}

func (x *hostContext) AllocPD() (verbs.PD, error) {
	d := &pd{ctx: x}
	err := x.do("allocate PD", func() error {
		if x.pds.len() >= maxPD {
			return verbs.ErrLimit
		}
		x.pds.add(d)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

func (x *hostContext) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	var c *cq
	err := x.do("create CQ", func() (err error) {
		c, err = x.createCQ(cfg)
		return err
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (x *hostContext) Close() error {
	x.core.mu.Lock()
	defer x.core.mu.Unlock()
	x.destroy()
	return nil
}

// destroy closes the context and all in it.
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
