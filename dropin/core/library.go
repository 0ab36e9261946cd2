//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"errors"
	"net/netip"
	"sync"
	"syscall"

	"ibverbx/dropin/internal/cm"
	"ibverbx/internal/pcap"
	"ibverbx/internal/roce"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// library holds all objects that a process has created through the shim.
type library struct {
	nics []device
	// capture receives the packets; nil without a capture.
	capture *pcap.Writer
	// stats is set if finish prints the NICs' counters.
	stats bool
	// verbose reports the use of rdma_cm.
	verbose bool
	// portGIDs is set if GIDs contain UDP ports.
	portGIDs bool

	contexts table[context]
	pds      table[domain]
	mrs      table[region]
	channels table[channel]
	cqs      table[cqueue]
	srqs     table[squeue]
	qps      table[qpair]
	ahs      table[handle]

	// manager is the connection manager, created when the program opens the first of cmFiles.
	manager  *cm.Manager
	managing sync.Mutex
	cmFiles  table[cmFile]

	// events is held while an asynchronous event is consumed and while an object with events is destroyed, so an event never names a
	// destroyed object.
	events sync.Mutex
}

// device is a NIC and its address.
type device struct {
	nic  *softnic.NIC
	addr netip.Addr
}

type context struct {
	verbs.Context
	// fd is the event descriptor, which is readable while asynchronous events are pending. waker makes it so.
	fd    int
	waker *verbs.Waker
	// ifindex is the network interface of the port.
	ifindex uint32
	// lid is the LID of the port if its UDP port is 4791: 0, as on RoCE hardware, unless the peers are local and share the address.
	lid uint16
}

type domain struct {
	verbs.PD
	ctx *context
}

type region struct{ verbs.MR }

type handle struct{ verbs.AH }

// squeue is an SRQ.
type squeue struct {
	verbs.SRQ
	ctx    *context
	cookie uint64
	// async counts the events that the program has consumed. library.events guards it.
	async uint32
}

// qpair is a QP.
type qpair struct {
	verbs.QP
	ctx    *context
	cookie uint64
	// async counts the events that the program has consumed. library.events guards it.
	async uint32
}

// errno translates an error of package verbs as a driver would.
func errno(err error) int32 {
	if err == nil {
		return 0
	}
	for _, e := range [...]struct {
		is error
		no syscall.Errno
	}{
		{verbs.ErrQueueFull, syscall.ENOMEM},
		{verbs.ErrLimit, syscall.ENOMEM},
		{verbs.ErrBusy, syscall.EBUSY},
		{verbs.ErrNotSupported, syscall.EOPNOTSUPP},
		{verbs.ErrNotFound, syscall.ENODATA},
		{verbs.ErrDeviceFatal, syscall.EIO},
		{verbs.ErrCQOverrun, syscall.EIO},
	} {
		if errors.Is(err, e.is) {
			return int32(e.no)
		}
	}
	if no := syscall.Errno(0); errors.As(err, &no) {
		return int32(no)
	}
	return int32(syscall.EINVAL)
}

// gone is the error for an unknown object number.
const gone = syscall.EINVAL

func (l *library) open(device, fd int32) (uint32, error) {
	if device < 0 || int(device) >= len(l.nics) {
		return 0, syscall.ENODEV
	}
	c, err := l.nics[device].nic.Open()
	if err != nil {
		return 0, err
	}
	x := &context{Context: c, fd: int(fd), ifindex: interfaceOf(l.nics[device].addr)}
	if l.portGIDs && l.nics[device].addr.IsLoopback() {
		x.lid = roce.Port
	}
	x.waker = verbs.NewWakerFunc(func() { signal(x.fd) })
	if err := c.NotifyEvents(x.waker); err != nil {
		return 0, errors.Join(err, c.Close())
	}
	return l.contexts.add(x), nil
}

func (l *library) close(n uint32) error {
	x := l.contexts.get(n)
	if x == nil {
		return gone
	}
	if err := x.NotifyEvents(nil); err != nil { // the descriptor is about to be closed
		return err
	}
	if err := x.Close(); err != nil {
		return err
	}
	l.contexts.remove(n)
	return nil
}

// settle makes the event descriptor readable if events are pending, otherwise unreadable, after events were consumed or dropped. The caller
// holds library.events.
func (x *context) settle() {
	if x.NotifyEvents(nil) != nil {
		return // the context is closed, and perhaps its descriptor
	}
	absorb(x.fd, 1)
	_ = x.NotifyEvents(x.waker) // it adds a token if events are pending
}

// nextEvent consumes an asynchronous event. If the queue is empty, it returns EAGAIN.
func (l *library) nextEvent(n uint32, e *abiEvent) error {
	x := l.contexts.get(n)
	if x == nil {
		return gone
	}
	l.events.Lock()
	defer l.events.Unlock()
	var got [1]verbs.Event
	if k, err := x.Events(got[:]); err != nil {
		return err
	} else if k == 0 {
		return syscall.EAGAIN
	}
	x.settle()
	v := got[0]
	*e = abiEvent{typ: uint32(v.Type), port: uint32(v.Port)}
	switch {
	case v.QP != nil:
		q := l.qps.find(func(q *qpair) bool { return q.QP == v.QP })
		if q == nil {
			return syscall.EAGAIN
		}
		q.async++
		e.cookie = q.cookie
	case v.CQ != nil:
		c := l.cqs.find(func(c *cqueue) bool { return c.CQ == v.CQ })
		if c == nil {
			return syscall.EAGAIN
		}
		c.async++
		e.cookie = c.cookie
	case v.SRQ != nil:
		s := l.srqs.find(func(s *squeue) bool { return s.SRQ == v.SRQ })
		if s == nil {
			return syscall.EAGAIN
		}
		s.async++
		e.cookie = s.cookie
	}
	return nil
}

func (l *library) createSRQ(pd uint32, cfg verbs.SRQConfig, cookie uint64) (uint32, error) {
	d := l.pds.get(pd)
	if d == nil {
		return 0, gone
	}
	s, err := d.CreateSRQ(cfg)
	if err != nil {
		return 0, err
	}
	return l.srqs.add(&squeue{SRQ: s, ctx: d.ctx, cookie: cookie}), nil
}

func (l *library) destroySRQ(n uint32) (async uint32, err error) {
	s := l.srqs.get(n)
	if s == nil {
		return 0, gone
	}
	l.events.Lock()
	defer l.events.Unlock()
	if err := s.Close(); err != nil {
		return 0, err
	}
	l.srqs.remove(n)
	s.ctx.settle()
	return s.async, nil
}

func (l *library) createQP(pd uint32, c *abiQPConfig) (n, qpn uint32, err error) {
	d, send, recv := l.pds.get(pd), l.cqs.get(c.sendCQ), l.cqs.get(c.recvCQ)
	if d == nil || send == nil || recv == nil {
		return 0, 0, gone
	}
	if c.typ > uint32(verbs.UD) {
		return 0, 0, verbs.ErrNotSupported // XRC, raw packets, driver QPs
	}
	cfg := verbs.QPConfig{
		Type: verbs.QPType(c.typ), SendCQ: send.CQ, RecvCQ: recv.CQ, SignalAll: c.signalAll != 0,
		MaxSendWR: int(c.maxSendWR), MaxRecvWR: int(c.maxRecvWR), MaxSendSGE: int(c.maxSendSGE), MaxRecvSGE: int(c.maxRecvSGE),
		MaxInline: int(c.maxInline),
	}
	if c.srq != 0 {
		s := l.srqs.get(c.srq)
		if s == nil {
			return 0, 0, gone
		}
		cfg.SRQ = s.SRQ
	}
	q, err := d.CreateQP(cfg)
	if err != nil {
		return 0, 0, err
	}
	return l.qps.add(&qpair{QP: q, ctx: d.ctx, cookie: c.cookie}), q.Num(), nil
}

// multicaster is implemented by QPs of softnic.
type multicaster interface {
	AttachMulticast(mgid verbs.GID) error
	DetachMulticast(mgid verbs.GID) error
}

// multicast attaches a QP to a group or detaches it.
func (l *library) multicast(n uint32, mgid verbs.GID, change func(multicaster, verbs.GID) error) error {
	q := l.qps.get(n)
	if q == nil {
		return gone
	}
	return change(q.QP.(multicaster), mgid)
}

func (l *library) destroyQP(n uint32) (async uint32, err error) {
	q := l.qps.get(n)
	if q == nil {
		return 0, gone
	}
	l.events.Lock()
	defer l.events.Unlock()
	if err := q.Close(); err != nil {
		return 0, err
	}
	l.qps.remove(n)
	q.ctx.settle()
	return q.async, nil
}
