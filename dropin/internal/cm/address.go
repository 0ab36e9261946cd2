package cm

import (
	"net/netip"
	"syscall"

	"ibverbx/verbs"
)

// Bind binds an id to a local address. Port number 0 means a free one.
func (f *File) Bind(number uint32, addr netip.AddrPort) error {
	return f.with(number, func(i *id) error {
		if i.state != stateIdle {
			return syscall.EINVAL
		}
		return i.bind(addr)
	})
}

func (i *id) portOptions() PortOptions {
	return PortOptions{Only6: i.only6, Shared: i.space == SpaceUDP}
}

func (i *id) bind(addr netip.AddrPort) error {
	p, err := i.m.cfg.Link.Bind(addr, i.portOptions())
	if err != nil {
		return err
	}
	i.port, i.local, i.state = p, p.Local(), stateBound
	if !addr.Addr().IsUnspecified() {
		i.device = i.m.device(addr.Addr())
	}
	return nil
}

// device returns the device with a local address, or the first device.
func (m *Manager) device(addr netip.Addr) *Device {
	for n := range m.cfg.Devices {
		if m.cfg.Devices[n].Addr == addr.Unmap().WithZone("") {
			return &m.cfg.Devices[n]
		}
	}
	return &m.cfg.Devices[0]
}

// Resolve binds an unbound id to src, or to the address that the host uses for dst if src is not valid, and resolves the remote
// address. AddrResolved or AddrError follows.
func (f *File) Resolve(number uint32, src, dst netip.AddrPort) error {
	return f.with(number, func(i *id) error {
		if i.state != stateIdle && i.state != stateBound || !dst.IsValid() {
			return syscall.EINVAL
		}
		group := dst.Addr().IsMulticast()
		if group && i.port == nil && (!src.IsValid() || src.Addr().IsUnspecified()) {
			src = netip.AddrPortFrom(i.m.cfg.Devices[0].Addr, src.Port()) // a host may lack a route to multicast groups
		}
		p, err := i.m.cfg.Link.Resolve(i.port, src, dst, i.portOptions())
		if err != nil {
			return err
		}
		i.port, i.local, i.remote, i.state = p, p.Local(), dst, stateResolved
		i.device = i.m.device(i.local.Addr())
		if i.device.Addr.IsLoopback() && !group && !i.m.cfg.Link.IsLocal(dst.Addr()) {
			i.state = stateBound // the NIC cannot reach another host
			i.post(AddrError, -int32(syscall.ENODEV), Param{})
			return nil
		}
		i.post(AddrResolved, 0, Param{})
		return nil
	})
}

// ResolveRoute completes a resolved id. RouteResolved follows.
func (f *File) ResolveRoute(number uint32) error {
	return f.with(number, func(i *id) error {
		if i.state != stateResolved {
			return syscall.EINVAL
		}
		i.state = stateRouted
		i.post(RouteResolved, 0, Param{})
		return nil
	})
}

// Route is the state of an id's addresses.
type Route struct {
	// Local and Remote are invalid before they are known.
	Local, Remote netip.AddrPort
	// Device is nil if the id is not bound to one.
	Device *Device
	// Path reports whether a path to the peer is known. Peer is the GID of its destination, derived
	// from the remote address until an active id is connected.
	Path bool
	Peer verbs.GID
	TOS  uint8
}

// Query returns the addresses of an id.
func (f *File) Query(number uint32) (r Route, err error) {
	err = f.with(number, func(i *id) error {
		r = Route{Local: i.local, Remote: i.remote, Device: i.device, Path: i.state >= stateRouted, Peer: i.peer.GID, TOS: i.tos}
		if r.Peer.IsZero() && i.remote.IsValid() {
			r.Peer = verbs.GIDFromAddr(i.remote.Addr().WithZone(""))
		}
		return nil
	})
	return r, err
}

// maxBacklog is the default and maximum number of requests waiting for the program (kernel:
// max_backlog).
const maxBacklog = 1024

// Listen makes an id listen. An unbound id is bound to a free port. Up to backlog requests wait for
// the program; further ones are rejected.
func (f *File) Listen(number uint32, backlog int32) error {
	return f.with(number, func(i *id) error {
		if i.state == stateIdle {
			if err := i.bind(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)); err != nil {
				return err
			}
		}
		if i.state != stateBound {
			return syscall.EINVAL
		}
		if backlog <= 0 || backlog > maxBacklog {
			backlog = maxBacklog
		}
		i.backlog = int(backlog)
		if err := i.port.Listen(i.serve); err != nil {
			return err
		}
		i.state = stateListening
		i.m.report("rdma_cm: listens at %s", i.local)
		return nil
	})
}

// serve queues a request as a new id.
func (i *id) serve(c Conn, req *Message) Handler {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	local, remote := c.Addrs()
	r := &id{file: i.file, space: i.space, state: stateIncoming, local: local, remote: remote, device: i.m.device(local.Addr()), conn: c, peer: req.Side, tos: i.tos, qkey: i.qkey}
	reason := uint16(0)
	switch {
	case i.state != stateListening || req.Space != i.space:
		reason = RejectNoListener
	case i.backlog == 0 || i.m.add(r) != nil:
		reason = RejectNoResources
	}
	if reason != 0 {
		c.Send(&Message{Kind: REJ, Reason: reason})
		c.Close()
		return nil
	}
	r.own = i.m.side(r)
	q := &req.Side.Param
	r.own.Timeout, r.retry, r.depth, r.resources = req.Side.Timeout, q.Retry, q.ResponderResources, q.InitiatorDepth
	i.backlog--
	p := req.Side.Param
	p.ResponderResources, p.InitiatorDepth = p.InitiatorDepth, p.ResponderResources
	p.Private = p.Private.padded(r.limits().request)
	e := r.event(ConnectRequest, 0, p)
	e.UID = i.uid
	i.file.push(pending{Event: e, of: i, request: r})
	return r
}

// Option is an option of an id (level RDMA_OPTION_ID).
type Option uint32

// The options. REUSEADDR is accepted and ignored: destroying an id releases its port at once.
const (
	OptionTOS        Option = 0
	OptionReuseAddr  Option = 1
	OptionOnly6      Option = 2
	OptionAckTimeout Option = 3
)

// SetOption sets an option. The type of service and the timeout are single bytes.
func (f *File) SetOption(number uint32, o Option, value uint32) error {
	return f.with(number, func(i *id) error {
		switch o {
		case OptionTOS:
			i.tos = uint8(value)
		case OptionReuseAddr:
		case OptionOnly6:
			if i.state != stateIdle {
				return syscall.EINVAL
			}
			i.only6 = value != 0
		case OptionAckTimeout:
			if value > 31 {
				return syscall.EINVAL
			}
			i.ackTimeout = uint8(value)
		default:
			return syscall.ENOSYS
		}
		return nil
	})
}
