package reliable

import (
	"crypto/rand"
	"encoding/binary"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// hub is what the connections of an engine share: receive buffers, in an SRQ if the QPs of paths can use one, two
// control QPs, and UD QPs if they carry the paths. prepare makes these parts with the engine's first QP, release frees them with its last.
type hub struct {
	engine *engine
	pd     verbs.PD // the inner PD
	users  int      // counts the QPs
	shares int      // counts the connections, which share the receive buffers

	id         uint32                     // the number of the hub in tags; every prepare gives it a new one
	ready      bool                       // reports that prepare has succeeded: the fields below are valid
	srq        verbs.SRQ                  // takes the messages of all paths, nil if their QPs cannot use one
	arrival    []slab                     // has the receive buffers of srq or of data
	inUse      int                        // the number of slabs in use, see supply
	share      int                        // the number of buffers that each peer may use
	refill     refill                     // lists the buffers of arrival that wait to be posted to srq
	control    [2]controlQP               // the control QPs
	data       []datagramQP               // the UD QPs of paths, Config.Paths of them; none on UC
	ahs        map[verbs.AHAttr]*sharedAH // the address handles in use
	controlLen int                        // the longest control packet on the port
	chunk      int                        // the longest payload of a chunk on the port
	mtu        int                        // the MTU of the port
	copier     copier                     // places chunks in dma-bufs, unused as long as dmaBufs is not set
	first      verbs.QPConfig             // has the port, the GID and the path of the first QP
	qkey       uint32                     // the Q_Key of control and data, chosen at random: cards name it

	dmaBufs bool // reports that a dma-buf was registered
}

// prepare makes the shared parts for the first QP, unless they exist. The control QPs have its port and its
// path.
func (h *hub) prepare(cfg *verbs.QPConfig) error {
	if h.ready {
		return nil
	}
	h.id, h.qkey = (h.id+1)&maxConn, newQKey()
	h.first = verbs.QPConfig{Port: cfg.Port, GID: cfg.GID, Path: sharedPath(cfg.Path)}
	port, err := h.engine.ctx.inner.QueryPort(int(max(cfg.Port, 1)))
	h.controlLen = min(wire.MaxControlLen, datagramPayload(&port))
	h.chunk, h.mtu = h.engine.ctx.cfg.ChunkBytes, port.ActiveMTU.Bytes()
	if h.engine.ctx.carrier.datagrams() {
		h.chunk = min(h.chunk, datagramPayload(&port)) // one packet
	}
	if err == nil && h.chunk < minCardChunk {
		err = verbs.Invalidf("port %d has no room for chunks of %d bytes", cfg.Port, minCardChunk)
	}
	if err == nil {
		err = h.engine.inbox.room.reserve(controlEntries)
	}
	if err != nil {
		return err
	}
	err = h.makeReceives(cfg)
	for i := range h.control {
		if err == nil {
			err = h.control[i].open(h, i, cfg)
		}
	}
	if err == nil && h.dmaBufs {
		err = h.copier.open(h)
	}
	if err != nil {
		h.release()
		return err
	}
	h.ready = true
	return nil
}

// newQKey returns a random Q_Key: one that a user may set, and not the one that every host knows.
func newQKey() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // does not fail
	k := binary.BigEndian.Uint32(b[:]) >> 1
	if k == verbs.DefaultQKey {
		k++
	}
	return k
}

// serve takes a UD QP that is in RESET into service, with the Q_Key of the hub.
func (h *hub) serve(qp verbs.QP) error {
	ep, err := qp.Endpoint()
	if err != nil {
		return err
	}
	return verbs.ConnectWith(qp, verbs.QPAttr{Port: max(h.first.Port, 1), PKeyIndex: h.first.Path.PKeyIndex, QKey: h.qkey, SQPSN: ep.PSN})
}

// sharedPath returns the path of a QP that serves connections to several peers: each packet has the Seal of its AH.
func sharedPath(of verbs.PathConfig) verbs.PathConfig {
	if of.Seal != nil {
		of.Seal = verbs.AnySeal{}
	}
	return of
}

// suits reports whether the shared QPs can serve a QP: its packets are sealed, or not, as theirs.
func (h *hub) suits(cfg *verbs.QPConfig) bool {
	return (cfg.Path.Seal == nil) == (h.first.Path.Seal == nil)
}

// makeReceives makes the shared receive queue, if the QPs of paths can use one, the UD QPs, and the receive buffers of one
// connection.
func (h *hub) makeReceives(cfg *verbs.QPConfig) error {
	ctx := h.engine.ctx
	if ctx.carrier.srq {
		srq, err := h.pd.CreateSRQ(verbs.SRQConfig{MaxWR: ctx.recvs.depth, MaxSGE: 1})
		if err != nil {
			return err
		}
		h.srq = srq
	}
	if ctx.carrier.datagrams() {
		h.data = make([]datagramQP, ctx.cfg.Paths)
	}
	for i := range h.data {
		if err := h.data[i].open(h, i, cfg); err != nil {
			return err
		}
	}
	for !ctx.carrier.ownReceives() && h.receives() < ctx.recvs.first {
		if err := h.grow(); err != nil {
			return err // the QP joins another engine, if there is one
		}
	}
	return nil
}

// arrivalSize is the length of a receive buffer in bytes.
func (h *hub) arrivalSize() int {
	n := max(h.chunk, wire.FetchLen) + wire.HeaderLen
	if h.engine.ctx.carrier.datagrams() {
		n = max(n, wire.ControlLen+maxPathRecord) + verbs.GRHLen
	}
	return n
}

// maxPathRecord is the length of the longest record that travels on a path: acknowledgements do so when the control QPs are dead.
const maxPathRecord = headerSlot - wire.ControlLen

// release frees the shared parts. No QP uses them any more.
func (h *hub) release() {
	for i := range h.control {
		h.control[i].close()
	}
	h.copier.close()
	h.engine.inbox.room.release(controlEntries)
	for i := range h.data {
		h.data[i].close()
	}
	h.data = nil
	if h.srq != nil {
		_ = h.srq.Close() // no QP uses it
		h.srq = nil
	}
	h.inUse = 0
	for i := range h.arrival {
		h.engine.refund(len(h.arrival[i].parked))
		h.arrival[i].free()
	}
	h.arrival, h.share, h.refill, h.ready = nil, 0, nil, false
}

// takesDMABufs makes the copier, if there is a QP.
func (h *hub) takesDMABufs() error {
	if h.dmaBufs = true; h.ready {
		return h.copier.open(h)
	}
	return nil
}

// is reports whether a tag names the hub, and its parts are still those of that time.
func (h *hub) is(id uint32) bool { return h.ready && h.id == id }

// topUp posts free receive buffers, where enough of them are free.
func (h *hub) topUp() {
	if h.srq != nil && len(h.refill) >= lowWater(h.receives()) {
		h.engine.doorbells.refilled(h.refill.post(h.srq))
	}
	for i := range h.data {
		d := &h.data[i]
		if h.srq == nil && !d.failed && len(d.refill) >= lowWater(h.receives()/len(h.data)) {
			h.engine.doorbells.refilled(d.refill.post(d.qp))
		}
	}
	for i := range h.control {
		h.control[i].topUp()
	}
}

// ringControls rings the doorbells of the control QPs.
func (h *hub) ringControls() {
	for i := range h.control {
		h.control[i].ring()
	}
}

// arrived takes a message in a receive buffer of the SRQ.
func (h *hub) arrived(slot uint32, wc *verbs.WC) {
	r := h.engine.routes.Find(wc.QPN)
	n := uint32(h.engine.ctx.recvs.slab)
	switch b := h.arrival[slot/n].slot(int(slot % n)); {
	case r.path != nil:
		r.path.receive(wc, b)
	case r.data != nil:
		lives := r.data.lives
		if r.data.arrived(b, wc); h.srq == nil && r.data.lives != lives {
			return // reclaim has posted it
		}
	}
	if h.recycle(int(slot)); h.inUse < len(h.arrival) {
		h.trim()
	}
}

// placement returns the status of an EvChunk whose bytes can be placed: at once by the CPU, later by the
// copier if they go to a dma-buf, or not now.
func (h *hub) placement(dmaBuf bool) uint8 {
	switch {
	case !dmaBuf:
		return 0
	case h.copier.room():
		return core.StatusPlacing
	}
	return core.StatusNoRecv
}

// reviveAt is when a control QP is to be revived next, core.Never if all of them work.
func (h *hub) reviveAt() int64 {
	at := core.Never
	for i := range h.control {
		if c := &h.control[i]; c.failed {
			at = min(at, c.reviveAt)
		}
	}
	for i := range h.data {
		if d := &h.data[i]; d.failed {
			at = min(at, d.reviveAt)
		}
	}
	return at
}

// revive takes failed control QPs back into service.
func (h *hub) revive() {
	for i := range h.control {
		if c := &h.control[i]; c.failed && h.engine.now >= c.reviveAt {
			c.revive()
		}
	}
	for i := range h.data {
		h.data[i].lookAfter()
	}
}
