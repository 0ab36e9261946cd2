package reliable

import (
	"crypto/rand"
	"encoding/binary"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// engineResources are shared by the connections of an engine: receive buffers, in an SRQ if the QPs of paths can use one, two
// control QPs, and UD QPs if they carry the paths. prepare creates them for the engine's first QP, release frees them with its last.
type engineResources struct {
	engine      *engine
	pd          verbs.PD // the inner PD
	qps         int      // counts the QPs
	connections int      // counts the connections

	id         uint32                     // their number in tags; every prepare assigns a new one
	ready      bool                       // set by prepare: the fields below are valid
	srq        verbs.SRQ                  // receives for all paths, nil if their QPs cannot use an SRQ
	arrival    []slab                     // the receive buffers of srq or of data
	inUse      int                        // the number of slabs in use, see provide
	share      int                        // the number of buffers advertised to each peer
	refill     refill                     // lists the buffers to be reposted to srq
	control    [2]controlQP               // the control QPs
	data       []datagramQP               // the UD QPs of paths, Config.Paths of them; none on UC
	ahs        map[verbs.AHAttr]*sharedAH // the address handles in use
	controlLen int                        // the maximum length of a control packet on the port
	chunk      int                        // the maximum payload of a chunk on the port
	mtu        int                        // the MTU of the port
	copier     copier                     // places chunks in dma-bufs, unused unless dmaBufs is set
	first      verbs.QPConfig             // the port, the GID and the path of the first QP
	qkey       uint32                     // the random Q_Key of control and data, sent in cards

	dmaBufs bool // set once a dma-buf is registered
}

// prepare creates the resources for the first QP, unless they exist. The control QPs use its port and
// path.
func (res *engineResources) prepare(cfg *verbs.QPConfig) error {
	if res.ready {
		return nil
	}
	res.id, res.qkey = (res.id+1)&maxConn, newQKey()
	res.first = verbs.QPConfig{Port: cfg.Port, GID: cfg.GID, Path: sharedPath(cfg.Path)}
	port, err := res.engine.ctx.inner.QueryPort(int(max(cfg.Port, 1)))
	res.controlLen = min(wire.MaxControlLen, datagramPayload(&port))
	res.chunk, res.mtu = res.engine.ctx.cfg.ChunkBytes, port.ActiveMTU.Bytes()
	if res.engine.ctx.carrier.datagrams() {
		res.chunk = min(res.chunk, datagramPayload(&port)) // one packet
	}
	if err == nil && res.chunk < minCardChunk {
		err = verbs.Invalidf("port %d: datagrams cannot hold chunks of %d bytes", cfg.Port, minCardChunk)
	}
	if err == nil {
		err = res.engine.inbox.entries.reserve(controlEntries)
	}
	if err != nil {
		return err
	}
	err = res.makeReceives(cfg)
	for i := range res.control {
		if err == nil {
			err = res.control[i].open(res, i, cfg)
		}
	}
	if err == nil && res.dmaBufs {
		err = res.copier.open(res)
	}
	if err != nil {
		res.release()
		return err
	}
	res.ready = true
	return nil
}

// newQKey returns a random Q_Key that a user may set, other than verbs.DefaultQKey.
func newQKey() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // does not fail
	k := binary.BigEndian.Uint32(b[:]) >> 1
	if k == verbs.DefaultQKey {
		k++
	}
	return k
}

// startUD connects a UD QP in RESET with the engine's Q_Key.
func (res *engineResources) startUD(qp verbs.QP) error {
	ep, err := qp.Endpoint()
	if err != nil {
		return err
	}
	return verbs.ConnectWith(qp, verbs.QPAttr{Port: max(res.first.Port, 1), PKeyIndex: res.first.Path.PKeyIndex, QKey: res.qkey, SQPSN: ep.PSN})
}

// sharedPath returns the path of a QP that serves connections to several peers: each packet has the Seal of its AH.
func sharedPath(of verbs.PathConfig) verbs.PathConfig {
	if of.Seal != nil {
		of.Seal = verbs.AnySeal{}
	}
	return of
}

// suits reports whether the shared QPs can serve a QP: either both are sealed or neither is.
func (res *engineResources) suits(cfg *verbs.QPConfig) bool {
	return (cfg.Path.Seal == nil) == (res.first.Path.Seal == nil)
}

// makeReceives creates the SRQ, if the QPs of paths can use one, the UD QPs, and the receive buffers of the first
// connections.
func (res *engineResources) makeReceives(cfg *verbs.QPConfig) error {
	ctx := res.engine.ctx
	if ctx.carrier.srq {
		srq, err := res.pd.CreateSRQ(verbs.SRQConfig{MaxWR: ctx.recvs.depth, MaxSGE: 1})
		if err != nil {
			return err
		}
		res.srq = srq
	}
	if ctx.carrier.datagrams() {
		res.data = make([]datagramQP, ctx.cfg.Paths)
	}
	for i := range res.data {
		if err := res.data[i].open(res, i, cfg); err != nil {
			return err
		}
	}
	for !ctx.carrier.ownReceives() && res.receives() < ctx.recvs.first {
		if err := res.grow(); err != nil {
			return err // the QP joins another engine, if there is one
		}
	}
	return nil
}

// arrivalSize is the length of a receive buffer in bytes.
func (res *engineResources) arrivalSize() int {
	n := max(res.chunk, wire.FetchLen) + wire.HeaderLen
	if res.engine.ctx.carrier.datagrams() {
		n = max(n, wire.ControlLen+maxPathRecord) + verbs.GRHLen
	}
	return n
}

// maxPathRecord is the maximum length of a record on a path, which carries acknowledgements while the control QPs are dead.
const maxPathRecord = headerSlot - wire.ControlLen

// release frees the resources, which are unused.
func (res *engineResources) release() {
	for i := range res.control {
		res.control[i].close()
	}
	res.copier.close()
	res.engine.inbox.entries.release(controlEntries)
	for i := range res.data {
		res.data[i].close()
	}
	res.data = nil
	if res.srq != nil {
		_ = res.srq.Close() // no QP uses it
		res.srq = nil
	}
	res.inUse = 0
	for i := range res.arrival {
		res.engine.releaseReceives(len(res.arrival[i].parked))
		res.arrival[i].free()
	}
	res.arrival, res.share, res.refill, res.ready = nil, 0, nil, false
}

// enableDMABufs opens the copier now or with the first QP.
func (res *engineResources) enableDMABufs() error {
	if res.dmaBufs = true; res.ready {
		return res.copier.open(res)
	}
	return nil
}

// isCurrent reports whether id, from a tag, was assigned by the last prepare.
func (res *engineResources) isCurrent(id uint32) bool { return res.ready && res.id == id }

// topUp reposts free receive buffers, where enough of them are free.
func (res *engineResources) topUp() {
	switch {
	case res.srq == nil:
		for i := range res.data {
			res.data[i].topUp(res.receives() / len(res.data))
		}
	case len(res.refill) >= lowWater(res.receives()):
		res.engine.doorbells.refilled(res.refill.post(res.srq))
	}
	for i := range res.control {
		res.control[i].topUp(controlRecvs)
	}
}

// ringControls rings the doorbells of the control QPs.
func (res *engineResources) ringControls() {
	for i := range res.control {
		res.control[i].ring()
	}
}

// arrived processes a message in a shared receive buffer.
func (res *engineResources) arrived(slot uint32, wc *verbs.WC) {
	r := res.engine.routes.Find(wc.QPN)
	n := uint32(res.engine.ctx.recvs.slab)
	switch b := res.arrival[slot/n].slot(int(slot % n)); {
	case r.path != nil:
		r.path.receive(wc, b)
	case r.data != nil:
		lives := r.data.resets
		if r.data.arrived(b, wc); res.srq == nil && r.data.resets != lives {
			return // reclaim has recycled the buffer
		}
	}
	if res.recycle(int(slot)); res.inUse < len(res.arrival) {
		res.trim()
	}
}

// placement returns the status of a valid EvChunk: its bytes are placed at once by the CPU, later by the
// copier in a dma-buf, or not while the copier is full.
func (res *engineResources) placement(dmaBuf bool) uint8 {
	switch {
	case !dmaBuf:
		return 0
	case res.copier.hasSlot():
		return core.StatusPlacing
	}
	return core.StatusNoRecv
}

// reviveAt is the next time to revive a UD QP, core.Never if all of them work.
func (res *engineResources) reviveAt() int64 {
	at := core.Never
	for i := range res.control {
		if c := &res.control[i]; c.failed {
			at = min(at, c.reviveAt)
		}
	}
	for i := range res.data {
		if d := &res.data[i]; d.failed {
			at = min(at, d.reviveAt)
		}
	}
	return at
}

// revive returns failed UD QPs to service.
func (res *engineResources) revive() {
	for i := range res.control {
		if c := &res.control[i]; c.failed && res.engine.now >= c.reviveAt {
			c.revive()
		}
	}
	for i := range res.data {
		res.data[i].maintain()
	}
}
