package reliable

import (
	"slices"

	"ibverbx/reliable/core"
	"ibverbx/reliable/wire"
	"ibverbx/verbs"
)

// connection holds the paths that up to Config.Flows QPs of an engine share, and the state of the
// protocol. It is created with the first of these QPs and destroyed with the last.
//
//	QP, flow 0 --+
//	QP, flow 1 --+-- connection --+-- paths
//	   ...     --+                +-- core.Conn
type connection struct {
	ctx    *pathContext
	engine *engine          // runs the connection
	id     uint32           // the number of the connection; see register
	port   uint8            // the local port of all its QPs
	gid    verbs.GID        // the source address of all its QPs
	qos    verbs.PathConfig // the path attributes of all its QPs
	// firstAddr is the first address of path 0. It identifies the connection when its number is reused.
	firstAddr pathAddr
	flows     []*qp  // its QPs, by flow number, at most Config.Flows; nil without a QP
	usedFlows []bool // the flow numbers used so far; packets of an earlier flow may be late, so no number is reused
	users     int    // counts the QPs in flows

	// For shared connections; see flowHandshake.
	assignsFlows bool     // set on the side that assigns the flow numbers
	to           peerAddr // the peer of the QPs, if assignsFlows
	closed       bool     // set if no further QP may join: the peer has left the connection
	unconfirmed  bool     // set while the paths are connected and the peer has not confirmed them: sending is forbidden

	core *core.Conn // the state of the protocol, nil until connected
	peer *card      // the card of the first peer QP, nil until connected
	// attr holds the attributes of the first handshake QP. Paths are connected with them.
	attr    verbs.QPAttr
	ahs     [2]*sharedAH // the addresses of the peer's control QPs, with different flow labels; nil until connected
	seal    uint32       // the number of the Seal of ahs, 0 without one
	share   int          // the number of receive buffers advertised to the peer
	paths   []path       // the data paths, Config.Paths of them
	arrival pool         // has PathRecv receive buffers per path, if paths do not share receives
	headers pool         // has pathSlots slots per path, one for the header of each outstanding send
	pacer   *core.Pacer  // grants credit to the peer, nil with Config.NoCredits
	outbox  [2][]byte    // the control packets of the next flush, by control QP
	// queue holds the events caused by actions of the core. They follow the current event.
	queue   []core.Event
	payload []byte // the payload of the current EvChunk
	dirty   bool   // set while the connection is in engine.dirty
	failing bool   // set while a failed QP is not in the error state yet
}

// ensureConnection creates the QP's connection, unless it exists or QPs share connections.
func (q *qp) ensureConnection() error {
	if q.conn != nil || q.ctx.cfg.Flows > 1 {
		return nil
	}
	c, err := q.engine.newConnection(&q.cfg)
	if err == nil {
		q.joinConnection(c, 0)
	}
	return err
}

// joinConnection assigns a flow of a connection to the QP.
func (q *qp) joinConnection(c *connection, flow int) {
	for len(c.flows) <= flow {
		c.flows, c.usedFlows = append(c.flows, nil), append(c.usedFlows, false)
	}
	c.flows[flow], c.usedFlows[flow] = q, true
	c.users++
	q.conn, q.flow = c, uint16(flow)
}

// leaveConnection removes the QP from its connection. No request refers to the QP's memory afterwards. The
// last QP destroys the connection.
func (q *qp) leaveConnection() {
	q.handshake.setResendAt(0)
	c := q.conn
	if c == nil {
		return
	}
	connected := q.connected
	q.engine.resources.copier.abandon(c, q.flow)
	if q.shared.srq != nil {
		q.shared.srq.releaseGrants(q)
	}
	q.conn, q.connected, q.ready = nil, false, false
	c.flows[q.flow] = nil
	if c.users--; c.users == 0 {
		c.destroy()
		return
	}
	if connected {
		c.step(&core.Event{Kind: core.EvClose, Flow: q.flow, Status: uint8(verbs.StatusWRFlushErr)})
	}
	c.applyAccess()
}

// newConnection creates a connection with its paths for a QP of this configuration.
func (e *engine) newConnection(cfg *verbs.QPConfig) (*connection, error) {
	ctx, h := e.ctx, &e.resources
	if own := max(h.first.Port, 1); ctx.carrier.datagrams() && max(cfg.Port, 1) != own {
		return nil, ctx.opError("connect QP", 0, verbs.Invalidf("QPConfig.Port is %d, and the UD QPs of the PD use port %d: use a PD per port", cfg.Port, own))
	}
	if err := h.provide(h.connections + 1); err != nil {
		return nil, ctx.opError("connect QP", 0, err)
	}
	c := &connection{ctx: ctx, engine: e, port: cfg.Port, gid: cfg.GID, qos: cfg.Path}
	if err := c.register(); err != nil {
		return nil, err
	}
	h.connections++
	h.divideCredit()
	c.share = h.share
	if err := c.build(); err != nil {
		c.destroy()
		return nil, err
	}
	return c, nil
}

// register assigns the connection's number. The low bits are its index in the table. The high bits
// distinguish it from earlier connections with this index, whose packets may still be in the network.
func (c *connection) register() error {
	e := c.engine
	i := e.freeIndex()
	if i > maxIndex {
		return c.ctx.opError("create QP", 0, verbs.ErrLimit)
	}
	if i == len(e.conns) {
		e.conns, e.generations = append(e.conns, nil), append(e.generations, 0)
	}
	e.connsCreated++
	e.generations[i]++
	e.conns[i], c.id = c, (e.generations[i]<<indexBits|uint32(i))&maxConn
	return nil
}

// restIndices is the number of indices used round-robin, so that an index is not reused soon.
const restIndices = 64

// freeIndex returns the index for the next connection.
func (e *engine) freeIndex() int {
	n := len(e.conns)
	for k := range n {
		if i := int((e.connsCreated + uint32(k)) % uint32(n)); n >= restIndices && e.conns[i] == nil {
			return i
		}
	}
	return n
}

// index is the connection's index in the table.
func (c *connection) index() int { return int(c.id & maxIndex) }

// build creates the parts of the connection.
func (c *connection) build() (err error) {
	cfg := &c.ctx.cfg
	if c.headers, err = newPool(c.engine.resources.pd, cfg.Paths*pathSlots, headerSlot); err != nil {
		return err
	}
	c.paths = make([]path, cfg.Paths)
	if c.ctx.carrier.ownReceives() {
		c.share = cfg.Paths * advertised(cfg.PathRecv)
		if err := c.engine.reserveReceives(cfg.pathShare()); err != nil {
			return c.ctx.opError("connect QP", 0, err)
		}
		if c.arrival, err = newPool(c.engine.resources.pd, cfg.pathShare(), c.engine.resources.arrivalSize()); err != nil {
			c.engine.releaseReceives(cfg.pathShare())
			return err
		}
	}
	for i := range c.paths {
		c.paths[i] = path{conn: c, index: i}
		if err = c.paths[i].open(0); err != nil {
			return err
		}
	}
	c.firstAddr = c.paths[0].addr
	for i := range c.outbox {
		c.outbox[i] = make([]byte, 0, wire.MaxControlLen)
	}
	return nil
}

// destroy frees a connection, even if build has not completed.
func (c *connection) destroy() {
	e := c.engine
	c.leavePacer()
	e.connected = slices.DeleteFunc(e.connected, func(o *connection) bool { return o == c })
	c.closeAHs()
	if c.core != nil {
		stats := c.core.Stats()
		e.closedStats.Add(&stats)
	}
	c.core, c.peer = nil, nil
	for i := range c.paths {
		c.paths[i].close()
	}
	if c.arrival.mr != nil {
		e.releaseReceives(c.ctx.cfg.pathShare())
	}
	c.arrival.free()
	c.headers.free()
	e.conns[c.index()] = nil
	e.resources.connections--
	e.resources.shrink()
	e.resources.divideCredit()
}

func (c *connection) closeAHs() {
	c.engine.resources.ringControls() // their packets use the AHs
	for i, ah := range c.ahs {
		c.engine.resources.releaseAH(ah)
		c.ahs[i] = nil
	}
}

// fits reports whether the connection can carry a QP: both use the same port, address and path attributes.
func (c *connection) fits(q *qp) bool {
	return c.port == q.cfg.Port && c.gid == q.cfg.GID && c.qos == q.cfg.Path
}

// full reports whether the local side can add no further QP.
func (c *connection) full() bool { return c.closed || len(c.flows) >= c.ctx.cfg.Flows }

// flowUnused reports that no QP has had a flow.
func (c *connection) flowUnused(flow int) bool { return flow >= len(c.usedFlows) || !c.usedFlows[flow] }

// connectedTo reports whether the connection is connected to the one in a peer's card.
func (c *connection) connectedTo(peer *card, attr *verbs.QPAttr) bool {
	return c.peer != nil && c.peer.conn == peer.conn && c.peer.firstAddr == peer.firstAddr && c.peer.control == peer.control &&
		c.attr.AH.DGID == attr.AH.DGID && c.attr.AH.DLID == attr.AH.DLID
}

// connect connects all paths to the peer's.
func (c *connection) connect(peer *card, attr *verbs.QPAttr) error {
	c.closeAHs() // of a failed attempt
	c.peer, c.attr, c.closed = peer, *attr, true
	for i := range c.ahs {
		to := attr.AH
		to.Seal = c.qos.Seal // Modify may have named none
		to.FlowLabel = c.flowLabel(len(c.paths)+i, 0)
		ah, err := c.engine.resources.acquireAH(to)
		if err != nil {
			return err
		}
		c.ahs[i], c.seal = ah, ah.seal
	}
	c.applyAccess()
	for i, addr := range peer.paths {
		if err := c.paths[i].connect(addr); err != nil {
			return err
		}
	}
	c.closed = false
	return nil
}

// confirm starts the protocol of a connection that was held, and opens the flows of its QPs.
func (c *connection) confirm() {
	if !c.unconfirmed {
		return
	}
	c.unconfirmed = false
	err := c.start(core.FlowConfig{})
	for _, q := range c.flows {
		if q == nil || !q.handshake.canSend() {
			continue
		}
		attr, failed := q.handshake.query()
		if failed == nil && err == nil {
			failed = q.openFlow(&attr)
		}
		if err != nil || failed != nil {
			q.failFatally()
		}
	}
}

// start starts the protocol of a connected connection. Its core may send from now on.
func (c *connection) start(flow core.FlowConfig) (err error) {
	ctx := c.ctx
	agreed := ctx.cfg
	agreed.ChunkBytes = min(c.engine.resources.chunk, int(c.peer.chunk))
	if m := c.attr.PathMTU.Bytes(); ctx.carrier.datagrams() && m > 0 && m < c.engine.resources.mtu {
		agreed.ChunkBytes = min(agreed.ChunkBytes, m-wire.HeaderLen) // a datagram is a packet
	}
	cfg := agreed.core(&ctx.carrier, flow.SendDepth, c.share, c.peer.credit)
	cfg.PathCredit, cfg.PeerGrants = c.peer.perPath, c.peer.grants
	if ctx.cfg.Flows == 1 {
		cfg.RecvPatience = flow.RecvPatience
		if flow.GiveUp != 0 {
			cfg.GiveUp = flow.GiveUp
		}
	}
	if c.core, err = core.New(cfg); err != nil {
		c.core = nil
		return ctx.opError("connect QP", 0, err)
	}
	c.engine.connected = append(c.engine.connected, c)
	c.joinPacer(c.attr.Port)
	return nil
}

// pathAccess is the access of the paths: the union of the access of all QPs, which share the
// paths.
func (c *connection) pathAccess() (access verbs.Access) {
	for _, q := range c.flows {
		if q != nil {
			access |= q.access
		}
	}
	return access & verbs.AccessRemoteWrite
}

// applyAccess sets the access of all connected paths.
func (c *connection) applyAccess() {
	if c.ctx.carrier.datagrams() {
		return // software checks what each QP allows
	}
	access := c.pathAccess()
	for i := range c.paths {
		if p := c.paths[i].qp; p != nil && p.State() == verbs.StateRTS {
			_ = p.Modify(verbs.QPAttr{Access: access}, verbs.AttrAccess) // only a failed QP refuses
		}
	}
}

// markDirty marks the connection: it may have something to post.
func (c *connection) markDirty() {
	if !c.dirty {
		c.dirty = true
		c.engine.dirty = append(c.engine.dirty, c)
	}
}

// flush posts the pending requests with one doorbell per path. Control packets share a
// doorbell with those of other connections. It reports whether requests wait for a slot in a send queue or in
// the CQ.
func (c *connection) flush() (waits bool) {
	if c.ctx.carrier.ownReceives() {
		for i := range c.paths {
			c.paths[i].topUp()
		}
	}
	for i := range c.paths {
		if p := &c.paths[i]; len(p.chain) > 0 {
			p.ring()
			waits = waits || (len(p.chain) > 0 && p.retries())
		}
	}
	for i := range c.outbox {
		c.stageControl(i)
	}
	return waits
}

// stageControl stages the control packet that waits for control QP i.
func (c *connection) stageControl(i int) {
	b := c.outbox[i]
	c.outbox[i] = b[:0]
	if len(b) > 0 && c.ahs[i] != nil {
		c.engine.resources.control[i].stage(b, c.ahs[i], c.peer.control[i], c.peer.qkey)
	}
}
