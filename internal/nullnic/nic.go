package nullnic

import (
	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// NIC is a device and also its only context.
type NIC struct {
	name    string
	attr    verbs.DeviceAttr
	gid     verbs.GID
	qps     []*QP
	nextQPN uint32
	nextKey uint32
	regions map[uint32]*mr // by local key
	wire    *Wire
	events  []verbs.Event
	waker   *verbs.Waker
}

var (
	_ verbs.Device  = (*NIC)(nil)
	_ verbs.Context = (*NIC)(nil)
)

// New returns a NIC whose first QP has the number firstQPN. Two NICs can have the same QP
// numbers.
func New(name string, firstQPN uint32) *NIC {
	return &NIC{
		name: name, nextQPN: firstQPN, nextKey: 0x100, gid: verbs.GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1},
		regions: make(map[uint32]*mr),
		attr: verbs.DeviceAttr{
			Provider: "nullnic", Link: "none", Ports: 1, MaxMRSize: 1 << 62, MaxMR: 1 << 20, MaxPD: 1 << 10, MaxQP: 1 << 20,
			MaxQPWR: 1 << 16, MaxSGE: verbs.MaxSGE, MaxInline: 256, MaxCQ: 1 << 16, MaxCQE: 1 << 24, MaxSRQ: 1 << 10,
			MaxSRQWR: 1 << 16, MaxSRQSGE: verbs.MaxSGE, MaxAH: 1, MaxMsgSize: 1 << 30, MaxQPRdAtomic: 16,
			MaxQPInitRdAtomic: 16, Atomic: verbs.AtomicHCA, Capabilities: verbs.CapFlushOnPost,
		},
	}
}

// QPs returns the QPs in the order of their creation, including closed ones.
func (n *NIC) QPs() []*QP { return n.qps }

// Name implements verbs.Device.
func (n *NIC) Name() string { return n.name }

// GUID implements verbs.Device.
func (n *NIC) GUID() verbs.GUID { return 1 }

// Open returns the NIC itself.
func (n *NIC) Open() (verbs.Context, error) { return n, nil }

// Device implements verbs.Context.
func (n *NIC) Device() verbs.Device { return n }

// QueryDevice implements verbs.Context.
func (n *NIC) QueryDevice() (verbs.DeviceAttr, error) { return n.attr, nil }

// QueryPort implements verbs.Context.
func (n *NIC) QueryPort(int) (verbs.PortAttr, error) {
	return verbs.PortAttr{State: verbs.PortActive, MaxMTU: verbs.MTU4096, ActiveMTU: verbs.MTU4096, GIDs: 1, MaxMsg: n.attr.MaxMsgSize}, nil
}

// QueryGID implements verbs.Context.
func (n *NIC) QueryGID(int, int) (verbs.GIDEntry, error) {
	return verbs.GIDEntry{GID: n.gid, Type: verbs.GIDTypeRoCEv2}, nil
}

// AllocPD implements verbs.Context.
func (n *NIC) AllocPD() (verbs.PD, error) { return &pd{nic: n}, nil }

// CreateCQ implements verbs.Context.
func (n *NIC) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	return &CQ{ring: make([]verbs.WC, ring.CeilPow2(cfg.Depth)), waker: cfg.Waker}, nil
}

// Raise makes the NIC report an asynchronous event.
func (n *NIC) Raise(e verbs.Event) {
	n.events = append(n.events, e)
	if n.waker != nil {
		n.waker.Wake()
	}
}

// Events implements verbs.Context.
func (n *NIC) Events(dst []verbs.Event) (int, error) {
	k := copy(dst, n.events)
	n.events = n.events[k:]
	return k, nil
}

// NotifyEvents implements verbs.Context.
func (n *NIC) NotifyEvents(w *verbs.Waker) error {
	n.waker = w
	if w != nil && len(n.events) > 0 {
		w.Wake()
	}
	return nil
}

// Close implements verbs.Context.
func (n *NIC) Close() error { return nil }

// pd is a protection domain that protects nothing.
type pd struct{ nic *NIC }

func (d *pd) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	q := &QP{
		nic: d.nic, num: d.nic.nextQPN, cfg: cfg,
		sends: cfg.SendCQ.(*CQ), recvs: cfg.RecvCQ.(*CQ),
	}
	q.pool = &q.own
	if cfg.SRQ != nil {
		q.pool = &cfg.SRQ.(*SRQ).receives
	}
	d.nic.nextQPN++
	d.nic.qps = append(d.nic.qps, q)
	return q, nil
}

func (d *pd) CreateSRQ(cfg verbs.SRQConfig) (verbs.SRQ, error) {
	return &SRQ{nic: d.nic, receives: receives{max: cfg.MaxWR}, limit: cfg.Limit}, nil
}

func (d *pd) RegisterDMABuf(int, uint64, uint64, uint64, verbs.Access) (verbs.MR, error) {
	return nil, verbs.ErrNotSupported
}

func (d *pd) CreateAH(verbs.AHAttr) (verbs.AH, error) { return nil, verbs.ErrNotSupported }
func (d *pd) Close() error                            { return nil }
