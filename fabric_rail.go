package ibverbx

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"ibverbx/verbs"
)

// MaxRails is the maximum number of rails in a Rails.
const MaxRails = 8

// RailConfig selects the NIC port of one rail and its path settings.
type RailConfig struct {
	// Context is the open NIC; nil is an error. It must outlive the Rails. Rails on different ports of a
	// NIC may share it, and so may forks (Rails.Fork).
	Context verbs.Context
	// Port is the NIC's port number. Zero means 1.
	Port uint8
	// GID is the source address. Zero lets the provider choose.
	GID verbs.GID
	// Path sets quality of service, retries and table indexes for every lane on the rail. Zero means the
	// defaults. The peer's settings are independent.
	Path verbs.PathConfig
}

// Rails is a set of NIC ports used together. Its regions, completion queues and virtual QPs span all of
// them. Rails are identified by index, starting at 0. All methods except Close are safe for concurrent
// use.
type Rails struct {
	rails   []rail
	watch   *eventWatch   // reads the NICs' events; shared with forks
	cqCount atomic.Uint32 // VirtualCQs ever created

	mu      sync.Mutex // guards rail.pd and partial
	partial []*Region  // regions not yet registered on all rails
}

// rail is a NIC port and a protection domain on it.
type rail struct {
	cfg RailConfig
	railAttrs
	pd verbs.PD // nil if the device had failed; see Rails.domain
}

// railAttrs holds the attributes of a rail's device and port.
type railAttrs struct {
	name     string
	attr     verbs.DeviceAttr
	mtu      int    // of the port, in bytes
	mbps     uint32 // port speed; 0 if unknown
	onCaller bool   // verbs.PortAttr.OnCaller
	// deviceCopies is verbs.PortAttr.DeviceCopies.
	deviceCopies bool
	assumed      bool // the device had failed: the attributes are another rail's
}

// NewRails returns the Rails of 1 to MaxRails NIC ports, with a protection domain on each. It returns
// verbs.ErrInvalid for another number, a nil Context or an invalid path, and otherwise the NIC's error
// with the rail. A device that has failed is an error only if all have. It joins later, unless its limits
// are lower than the limits of the first working rail.
func NewRails(cfgs ...RailConfig) (*Rails, error) {
	if len(cfgs) == 0 || len(cfgs) > MaxRails {
		return nil, fmt.Errorf("make rails: %w", verbs.Invalidf("%d rails: want 1 to %d", len(cfgs), MaxRails))
	}
	r := &Rails{rails: make([]rail, len(cfgs))}
	var failed error // of the last failed device
	for i, cfg := range cfgs {
		cfg.Port = max(cfg.Port, 1)
		one := &r.rails[i]
		var err error
		if one.cfg = cfg; cfg.Context == nil {
			err = verbs.Invalidf("RailConfig.Context is nil")
		} else {
			one.pd, err = one.open(cfg)
		}
		if one.assumed = errors.Is(err, verbs.ErrDeviceFatal); one.assumed {
			failed = fmt.Errorf("make rails: rail %d: %w", i, err)
		} else if err != nil {
			r.rails = r.rails[:i]
			return nil, errors.Join(fmt.Errorf("make rails: rail %d: %w", i, err), r.Close())
		}
	}
	if err := r.assume(failed); err != nil {
		return nil, err
	}
	r.watch = newEventWatch(r.rails)
	return r, nil
}

// Fork returns Rails on the same NICs with separate protection domains, so regions and VirtualQPs of one
// cannot be used with the other. NIC events reach both. Use Fork rather than a second NewRails on the
// same Context: two such Rails would steal each other's events. A rail whose device has failed gets its
// protection domain when the device works again.
func (r *Rails) Fork() (*Rails, error) {
	f := &Rails{watch: r.watch}
	for i := range r.rails {
		f.rails = append(f.rails, rail{cfg: r.rails[i].cfg, railAttrs: r.rails[i].railAttrs})
		if _, err := f.domain(i); err != nil && !errors.Is(err, verbs.ErrDeviceFatal) {
			f.rails = f.rails[:i]
			return nil, errors.Join(fmt.Errorf("fork rails: rail %d (%s): %w", i, r.rails[i].name, err), f.Close())
		}
	}
	return f, nil
}

// open queries the device and allocates a protection domain, which is nil on error.
func (k *railAttrs) open(cfg RailConfig) (verbs.PD, error) {
	attr, err := cfg.Context.QueryDevice()
	if err != nil {
		return nil, err
	}
	port, err := cfg.Context.QueryPort(int(cfg.Port))
	if err != nil {
		return nil, err
	}
	if _, err := cfg.Path.Check(&port, cfg.GID); err != nil {
		return nil, err
	}
	attr.MaxSGE = min(attr.MaxSGE, MaxSGE)
	k.name, k.attr = cfg.Context.Device().Name(), attr
	k.mtu, k.mbps, k.onCaller, k.deviceCopies = port.ActiveMTU.Bytes(), port.SpeedMbps, port.OnCaller, port.DeviceCopies
	return allocPD(cfg.Context)
}

// down reports whether the rail's port is inactive or its device has failed. It returns false if the port cannot be
// queried for another reason.
func (r *rail) down() bool {
	port, err := r.cfg.Context.QueryPort(int(r.cfg.Port))
	return (err == nil && port.State != verbs.PortActive) || errors.Is(err, verbs.ErrDeviceFatal)
}

// policy returns the initial policy of AutoPolicy.
func (r *Rails) policy() Policy {
	for i := range r.rails {
		if r.rails[i].mbps != r.rails[0].mbps {
			return TwoChoices
		}
	}
	return RoundRobin
}

// least returns the minimum of a limit over all devices.
func (r *Rails) least(limit func(*verbs.DeviceAttr) int) int {
	n := limit(&r.rails[0].attr)
	for i := range r.rails[1:] {
		n = min(n, limit(&r.rails[1+i].attr))
	}
	return n
}

// createQP creates an RC QP on a rail, with the device's maximum number of SGEs. Of cfg.Path it uses only Seal; nil
// means the rail's.
func (r *Rails) createQP(i int, cfg verbs.QPConfig) (verbs.QP, error) {
	pd, err := r.domain(i)
	if err != nil {
		return nil, err
	}
	one := &r.rails[i]
	seal := cmp.Or(cfg.Path.Seal, one.cfg.Path.Seal)
	cfg.Type, cfg.Port, cfg.GID, cfg.Path = verbs.RC, one.cfg.Port, one.cfg.GID, one.cfg.Path
	cfg.Path.Seal = seal
	cfg.MaxSendSGE, cfg.MaxRecvSGE = one.attr.MaxSGE, one.attr.MaxSGE
	return pd.CreateQP(cfg)
}

// inline returns the maximum number of inline bytes of a QP. If the device does not report it, inline tries
// wantInline bytes, then less.
func (r *Rails) inline(i int, cq verbs.CQ) (int, error) {
	if n := r.rails[i].attr.MaxInline; n > 0 {
		return n, nil
	}
	for n := wantInline; n >= recordSize; n /= 2 {
		if qp, err := r.createQP(i, verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxInline: n}); err == nil {
			return n, qp.Close()
		}
	}
	return 0, nil
}

// Len returns the number of rails.
func (r *Rails) Len() int { return len(r.rails) }

// Configs returns a copy of the configuration of every rail, with the default port filled in.
func (r *Rails) Configs() []RailConfig {
	cfgs := make([]RailConfig, len(r.rails))
	for i := range cfgs {
		cfgs[i] = r.rails[i].cfg
	}
	return cfgs
}

// Close frees the protection domains. Close everything created from the Rails first: while regions or
// VirtualQPs exist, Close returns verbs.ErrBusy.
func (r *Rails) Close() error {
	var errs []error
	for i := range r.rails {
		if pd := r.rails[i].pd; pd != nil {
			errs = append(errs, pd.Close())
		}
	}
	return errors.Join(errs...)
}

// Region is memory registered on every rail, except rails whose device had failed. It is safe for concurrent
// use, except that Close must follow the last use.
type Region struct {
	// complete is rails once the region is registered on all of them, and nil after Close. While it is set, lkeys
	// does not change.
	complete atomic.Pointer[Rails]
	addr     uint64
	length   uint64           // 0 if the region is closed
	lkeys    [MaxRails]uint32 // by rail; until the region is complete, closing guards missing keys
	rails    *Rails           // nil if the region is closed
	memory   *verbs.Memory    // nil if the region is a dma-buf
	device   bool             // device memory, such as GPU memory

	closing sync.Mutex                          // guards the fields below, and serializes Close
	mrs     [MaxRails]verbs.MR                  // by rail; nil where the region is not registered
	on      func(pd verbs.PD) (verbs.MR, error) // registers the region on a rail
}

// RemoteRegion is a Region's description for the peer: its address and keys. Send it to the peer over
// any channel, for example as JSON. PostSend copies the fields it needs, so the value may be reused
// afterwards.
type RemoteRegion struct {
	// Addr is the address of the first byte on the owner's side.
	Addr uint64 `json:"addr"`
	// Length is the number of bytes.
	Length uint64 `json:"length"`
	// RKeys are the remote keys, one per rail of the owner. A key is 0 if the memory was not registered on
	// the rail when Region.Remote was called, because its device had failed. Requests avoid that rail, even when
	// the device works again: call Remote again for the new key.
	RKeys []uint32 `json:"rkeys"`
	// Device is set for device memory, such as GPU memory. It only affects fragmentation.
	Device bool `json:"device,omitempty"`
}

// Register registers m on every rail with the given access rights. For device memory, such as GPU
// memory, Region.Bytes returns nil, and requests with verbs.SendInline cannot use the region. A rail whose
// device has failed is left out, unless all have: requests avoid it. When failover rebuilds a lane on it, the
// region is registered there first. Register returns verbs.ErrInvalid if m is nil, and otherwise the NIC's
// error with the rail; nothing stays registered.
func (r *Rails) Register(m *verbs.Memory, access verbs.Access) (*Region, error) {
	if m == nil {
		return nil, fmt.Errorf("register: %w", verbs.Invalidf("no memory"))
	}
	cpu := m
	if m.Device() != nil {
		cpu = nil
	}
	g := &Region{rails: r, memory: cpu, device: cpu == nil}
	g.on = func(pd verbs.PD) (verbs.MR, error) { return pd.RegisterMemory(m, access) }
	return r.register(g, true)
}

// RegisterDMABuf registers length bytes of a dma-buf, starting at offset, on every rail. A dma-buf is
// GPU memory or other device memory. Every rail needs verbs.CapDMABuf, otherwise it returns
// verbs.ErrNotSupported. fd may be closed afterwards. The CPU cannot access the region: Bytes returns
// nil, and requests with verbs.SendInline cannot use it. A rail whose device has failed is left out for good.
func (r *Rails) RegisterDMABuf(fd int, offset, length uint64, access verbs.Access) (*Region, error) {
	// Addresses in the region are offsets in the dma-buf, because NICs require the same offset within a page for
	// both.
	on := func(pd verbs.PD) (verbs.MR, error) { return pd.RegisterDMABuf(fd, offset, length, offset, access) }
	return r.register(&Region{rails: r, on: on}, false)
}

// Bytes returns the memory. It is nil for a closed region, a dma-buf and device memory.
func (g *Region) Bytes() []byte {
	if g.rails == nil || g.memory == nil {
		return nil
	}
	return g.memory.Bytes()
}

// Len returns the number of bytes. It is 0 for a closed region.
func (g *Region) Len() uint64 { return g.length }

// Remote returns a new description of the region for the peer.
func (g *Region) Remote() *RemoteRegion {
	m := &RemoteRegion{Addr: g.addr, Length: g.length, Device: g.device}
	g.closing.Lock()
	defer g.closing.Unlock()
	if g.rails != nil {
		m.RKeys = make([]uint32, len(g.rails.rails))
	}
	for i := range m.RKeys {
		if g.mrs[i] != nil {
			m.RKeys[i] = g.mrs[i].RKey()
		}
	}
	return m
}

// SGE returns a scatter-gather element for length bytes at offset. The range is checked when it is
// posted.
func (g *Region) SGE(offset uint64, length uint32) SGE {
	return SGE{Region: g, Offset: offset, Length: length}
}

// Close deregisters the region on every rail. After that, posts that use the region return
// verbs.ErrClosed. Requests and receives that use it must have ended, and no other goroutine may be using
// it: Close does not wait for them. If a NIC refuses, Close returns its error and can be called again. Of concurrent calls, one closes and the
// others wait for it.
func (g *Region) Close() error {
	g.closing.Lock()
	defer g.closing.Unlock()
	if g.rails != nil {
		g.rails.setPartial(g, false)
	}
	g.complete.Store(nil)
	g.rails, g.length = nil, 0
	var errs []error
	for i, mr := range g.mrs {
		if mr == nil {
			continue
		}
		err := mr.Close()
		if errs = append(errs, err); err == nil {
			g.mrs[i] = nil
		}
	}
	return errors.Join(errs...)
}

// eventWatch reads the NIC events of a Rails and its forks. A NIC with new events wakes all VirtualCQs, and the first
// one to poll reads them. Losses are counted by rail, and every VirtualQP compares the counts with the losses that it
// has handled.
type eventWatch struct {
	// pending is set while a NIC has unread events.
	pending atomic.Bool
	// changes counts the changes of any rail's losses.
	changes atomic.Uint64
	rails   []railWatch // by rail

	// reading serializes reads. It guards events, and fatal, refusals and refused of all rails.
	reading sync.Mutex
	events  [8]verbs.Event // buffer of read

	// mu guards the fields below. NICs hold their locks when they report events, so NICs must not be called with mu
	// held.
	mu  sync.Mutex
	cqs []*VirtualCQ // subscribed VirtualCQs
}

// railWatch is a rail's part of an eventWatch.
type railWatch struct {
	ctx         verbs.Context
	port        uint8
	readsEvents bool          // first rail of its Context: it reads the events
	portLosses  atomic.Uint64 // losses of the port or the device
	qpLosses    atomic.Uint64 // losses of a QP that no completion reveals
	fatal       bool          // the device has failed, and portLosses includes that
	// refusals is a ring of the numbers of the last QPs that refused a request of their peer.
	refusals [256]uint32
	// refused counts all refusals. The next one is stored at refused modulo len(refusals).
	refused int
}

// losses holds the counts of a rail's losses; see railWatch.
type losses struct {
	portLosses uint64
	qpLosses   uint64
}

// newEventWatch returns the eventWatch of rails.
func newEventWatch(rails []rail) *eventWatch {
	w := &eventWatch{rails: make([]railWatch, len(rails))}
	for i := range rails {
		r := &w.rails[i]
		r.ctx, r.port = rails[i].cfg.Context, rails[i].cfg.Port
		r.readsEvents = !slices.ContainsFunc(rails[:i], func(other rail) bool { return other.cfg.Context == r.ctx })
	}
	return w
}

// join subscribes a VirtualCQ to the events of the NICs. leave does not unsubscribe from the NICs: other Rails may
// have subscribed since, and would lose their events.
func (w *eventWatch) join(c *VirtualCQ) (err error) {
	w.mu.Lock()
	w.cqs = append(w.cqs, c)
	w.mu.Unlock()
	waker := verbs.NewWakerFunc(w.onEvent)
	for i := range w.rails {
		if r := &w.rails[i]; r.readsEvents {
			err = errors.Join(err, r.ctx.NotifyEvents(waker))
		}
	}
	return err
}

// leave unsubscribes a VirtualCQ.
func (w *eventWatch) leave(c *VirtualCQ) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cqs = slices.DeleteFunc(w.cqs, func(other *VirtualCQ) bool { return other == c })
}

// onEvent is called by a NIC with a new event.
func (w *eventWatch) onEvent() {
	w.pending.Store(true)
	w.wake()
}

// wake wakes all subscribed VirtualCQs.
func (w *eventWatch) wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.cqs {
		if c.waker != nil {
			c.waker.Wake()
		}
	}
}

// readPending calls read if a NIC has unread events.
func (w *eventWatch) readPending() {
	if w.pending.Load() {
		w.read()
	}
}

// read reads the events of every NIC and counts the losses of its rails. After a loss it wakes all VirtualCQs:
// one may have polled since the event without seeing it.
func (w *eventWatch) read() {
	w.reading.Lock()
	defer w.reading.Unlock()
	w.pending.Store(false)
	changed := false
	for i := range w.rails {
		if !w.rails[i].readsEvents {
			continue
		}
		ctx := w.rails[i].ctx
		for n := len(w.events); n > 0; {
			var err error
			n, err = ctx.Events(w.events[:])
			for k := i; k < len(w.rails); k++ {
				if one := &w.rails[k]; one.ctx == ctx {
					changed = one.count(w.events[:n], err) || changed
				}
			}
		}
	}
	if changed {
		w.changes.Add(1)
		w.wake()
	}
}

// count counts the losses of a rail among its NIC's events, and reports whether it found any. err is the error of
// reading them.
func (r *railWatch) count(events []verbs.Event, err error) (changed bool) {
	before := r.losses()
	for _, e := range events {
		switch {
		case e.Type == verbs.EventPortErr && (e.Port == 0 || e.Port == r.port):
			r.portLosses.Add(1)
		case e.Type == verbs.EventDeviceFatal:
			r.portLosses.Add(1)
			r.fatal = true
		case e.Type == verbs.EventQPFatal:
			r.qpLosses.Add(1)
		case (e.Type == verbs.EventQPAccessErr || e.Type == verbs.EventQPReqErr) && e.QP != nil:
			r.refusals[r.refused%len(r.refusals)] = e.QP.Num()
			r.refused++
		}
	}
	if errors.Is(err, verbs.ErrDeviceFatal) && !r.fatal {
		r.fatal = true
		r.portLosses.Add(1)
	}
	if err == nil && len(events) == 0 {
		r.fatal = false
	}
	return r.losses() != before
}

// losses returns the counts. VirtualQPs of other goroutines may change them.
func (r *railWatch) losses() losses {
	return losses{portLosses: r.portLosses.Load(), qpLosses: r.qpLosses.Load()}
}

// hasRefused reports whether a QP has recently failed because it rejected its peer's request.
func (w *eventWatch) hasRefused(rail int, qpn uint32) bool {
	w.read()
	w.reading.Lock()
	defer w.reading.Unlock()
	one := &w.rails[rail]
	return slices.Contains(one.refusals[:min(one.refused, len(one.refusals))], qpn)
}
