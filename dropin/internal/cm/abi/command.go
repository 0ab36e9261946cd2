package abi

import (
	"encoding/binary"
	"syscall"

	"ibverbx/dropin/internal/cm"
	"ibverbx/verbs"
)

const headerSize = 8

// Call is a command as a program writes it.
type Call struct {
	// Command is the buffer that the program has written.
	Command []byte
	// Value is the value of an option, which a command only points to.
	Value []byte
	// From is the file whose descriptor MIGRATE_ID names, or nil.
	From *cm.File
}

// Do executes a command on a file. It returns the response, which may be longer than requested, or
// a syscall.Errno. GET_EVENT returns EAGAIN if the queue is empty.
func Do(f *cm.File, call Call) ([]byte, error) {
	if len(call.Command) < headerSize {
		return nil, syscall.EINVAL
	}
	cmd, in := binary.NativeEndian.Uint32(call.Command), int(binary.NativeEndian.Uint16(call.Command[4:]))
	body := call.Command[headerSize:]
	if in > len(body) {
		return nil, syscall.EINVAL
	}
	body = body[:in]
	switch cmd {
	case cmdCreateID:
		return with(body, func(c *createID) (any, error) {
			n, err := f.Create(c.UID, c.Space)
			return n, err
		})
	case cmdDestroyID:
		return with(body, func(c *destroyID) (any, error) {
			n, err := f.Destroy(c.ID)
			return n, err
		})
	case cmdMigrateID:
		return with(body, func(c *migrateID) (any, error) {
			if call.From == nil {
				return nil, syscall.EINVAL
			}
			n, err := f.Migrate(call.From, c.ID)
			return n, err
		})
	case cmdGetEvent:
		e, err := f.Event()
		if err != nil {
			return nil, err
		}
		return respond(eventOf(&e))
	case cmdSetOption:
		return with(body, func(c *setOption) (any, error) { return nil, option(f, c, call.Value) })
	case cmdConnect, cmdAccept, cmdReject, cmdDisconnect, cmdNotify:
		// rdma-core before version 30 does not write the last field of CONNECT and ACCEPT.
		return connection(f, cmd, append(body[:in:in], make([]byte, len(connect{}.ECE))...))
	}
	return addressing(f, cmd, body)
}

// addressing executes queries and the commands that precede a connection.
func addressing(f *cm.File, cmd uint32, body []byte) ([]byte, error) {
	switch cmd {
	case cmdBindIP:
		return with(body, func(c *bindIP) (any, error) {
			a, err := c.Addr.addrPort()
			if err == nil && !a.IsValid() {
				err = syscall.EINVAL
			}
			if err != nil {
				return nil, err
			}
			return nil, f.Bind(c.ID, a)
		})
	case cmdResolveIP:
		return with(body, func(c *resolveIP) (any, error) {
			src, err := c.Src.addrPort()
			if err != nil {
				return nil, err
			}
			dst, err := c.Dst.addrPort()
			if err != nil {
				return nil, err
			}
			return nil, f.Resolve(c.ID, src, dst)
		})
	case cmdResolveRoute:
		return with(body, func(c *resolveRoute) (any, error) { return nil, f.ResolveRoute(c.ID) })
	case cmdListen:
		return with(body, func(c *listen) (any, error) { return nil, f.Listen(c.ID, c.Backlog) })
	case cmdJoinIP:
		return with(body, func(c *joinIP) (any, error) {
			a, err := c.Addr.addrPort()
			if err != nil {
				return nil, err
			}
			n, err := f.Join(c.ID, c.UID, a.Addr())
			return n, err
		})
	case cmdLeave:
		return with(body, func(c *destroyID) (any, error) {
			n, err := f.Leave(c.ID)
			return n, err
		})
	case cmdQueryRoute:
		return with(body, func(c *destroyID) (any, error) {
			r, err := f.Query(c.ID)
			return routeOf(&r), err
		})
	case cmdInitQPAttr:
		return with(body, func(c *initQPAttr) (any, error) {
			a, mask, err := f.QPAttr(c.ID, verbs.QPState(c.State))
			return attrOf(&a, mask), err
		})
	}
	return nil, syscall.EINVAL
}

// connection executes the commands of a connection.
func connection(f *cm.File, cmd uint32, body []byte) ([]byte, error) {
	switch cmd {
	case cmdConnect:
		return with(body, func(c *connect) (any, error) {
			p := c.Param.param()
			return nil, f.Connect(c.ID, &p, c.Param.private())
		})
	case cmdAccept:
		return with(body, func(c *accept) (any, error) {
			if c.Param.Valid == 0 {
				return nil, f.Confirm(c.ID)
			}
			p := c.Param.param()
			return nil, f.Accept(c.ID, c.UID, &p, c.Param.private())
		})
	case cmdReject:
		return with(body, func(c *reject) (any, error) { return nil, f.Reject(c.ID, c.Reason, c.Private[:c.PrivateLen]) })
	case cmdDisconnect:
		return with(body, func(c *oneID) (any, error) { return nil, f.Disconnect(c.ID) })
	}
	return with(body, func(c *notify) (any, error) {
		if verbs.EventType(c.Event) != verbs.EventCommEst {
			return nil, syscall.EINVAL
		}
		return nil, f.NotifyEstablished(c.ID)
	})
}

// with decodes a command, executes it and encodes the response, if any.
func with[T any](body []byte, do func(*T) (any, error)) ([]byte, error) {
	var c T
	if _, err := binary.Decode(body, binary.NativeEndian, &c); err != nil {
		return nil, syscall.EINVAL
	}
	response, err := do(&c)
	if err != nil || response == nil {
		return nil, err
	}
	return respond(response)
}

func respond(response any) ([]byte, error) {
	b, err := binary.Append(nil, binary.NativeEndian, response)
	if err != nil {
		return nil, syscall.EINVAL
	}
	return b, nil
}

// optionLevel is RDMA_OPTION_ID. The only other level is for InfiniBand.
const optionLevel = 0

func option(f *cm.File, c *setOption, value []byte) error {
	if c.Level != optionLevel {
		return syscall.ENOSYS
	}
	v := uint32(0)
	switch cm.Option(c.Name) {
	case cm.OptionTOS, cm.OptionAckTimeout:
		if len(value) != 1 {
			return syscall.EINVAL
		}
		v = uint32(value[0])
	default:
		if len(value) != 4 {
			return syscall.EINVAL
		}
		v = binary.NativeEndian.Uint32(value)
	}
	return f.SetOption(c.ID, cm.Option(c.Name), v)
}

// Constants of path records.
const (
	defaultPKey = 0xffff
	exactly     = 2 // of a selector
	rateQDR     = 7 // 40 Gb/s, as the port reports
	lifetime    = 16
)

// routeOf returns the response to QUERY_ROUTE.
func routeOf(r *cm.Route) *queryRoute {
	q := &queryRoute{Src: sockaddrOf(r.Local), Dst: sockaddrOf(r.Remote)}
	if r.Device == nil {
		return q
	}
	binary.BigEndian.PutUint64(q.GUID[:], uint64(r.Device.GUID))
	q.Port, q.Index = 1, r.Device.Index
	p := &q.Routes[0]
	p.SGID, p.DGID, p.PKey = r.Device.GID, r.Peer, defaultPKey
	if !r.Path {
		return q
	}
	q.Paths = 1
	p.Reversible, p.MTU, p.HopLimit, p.Class, p.Number = 1, uint32(r.Device.MTU), 0xff, r.TOS, 1
	p.MTUSelector, p.RateSelector, p.Rate, p.LifeSelector, p.Life = exactly, exactly, rateQDR, exactly, lifetime
	return q
}

// attrOf returns the response to INIT_QP_ATTR.
func attrOf(a *verbs.QPAttr, mask verbs.QPAttrMask) *qpAttr {
	return &qpAttr{
		Mask: uint32(mask), State: uint32(a.State), Current: uint32(a.State), MTU: uint32(a.PathMTU),
		RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPN: a.DestQPN, Access: uint32(a.Access), PKeyIndex: a.PKeyIndex,
		MaxRdAtomic: a.MaxRdAtomic, MaxDestRdAtomic: a.MaxDestRdAtomic, MinRNRTimer: a.MinRNRTimer, Port: a.Port,
		Timeout: a.Timeout, Retry: a.RetryCount, RNRRetry: a.RNRRetry,
		QKey: a.QKey, To: addressOf(&a.AH),
	}
}

func addressOf(a *verbs.AHAttr) address {
	return address{DGID: a.DGID, HopLimit: a.HopLimit, Class: a.TrafficClass, DLID: a.DLID, SL: a.SL, IsGlobal: 1, Port: 1}
}
