package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// Comm is one direction of a connection between two ranks. All methods are safe for concurrent use.
type Comm struct {
	shard   *Shard
	part    *part
	group   *group
	number  uint32
	session *peer.Session
	conn    *bootstrap.Conn
	// sends is set on the sending side.
	sends bool
	// memory and page hold grants: the received ones of a sender, by receive, or the one that a receiver is sending.
	memory *verbs.Memory
	page   *ibverbx.Region
	remove func() // from the metrics
	// result is the Result of a failed connection, otherwise OK.
	result atomic.Int32
	// done counts completed requests, and granted the receives granted by the peer. The lock of the part guards changes of these three.
	done, granted atomic.Uint32
	queue         submissions

	// The lock of the part guards everything below.
	words   *Words // nil before Adopt and after Close
	failed  error  // the cause
	closed  bool
	used    uint32               // the number of posted requests
	grants  [Depth]grant         // of a sender, by sequence number
	remote  ibverbx.RemoteRegion // of the request being posted
	keys    [maxRails]uint32     // of remote
	posted  [Depth]posted        // by request
	regions map[*Region]struct{} // registered and not yet deregistered
	down    [maxRails]bool       // the rails that the connection has lost
	send    [1]ibverbx.SendWR    // of the request being posted
	recv    [1]ibverbx.RecvWR    // likewise
}

// posted is a posted request.
type posted struct {
	region *Region // nil without data
	size   uint64
	seq    uint32
	// busy is set until the request completes.
	busy bool
}

// grant is a posted receive, as a message to the sender:
//
//	0          4         8         16       24        56
//	| sequence | rails   | address | length | keys ...|
//
// Numbers are little-endian.
type grant struct {
	seq          uint32
	rails        uint32
	addr, length uint64
	keys         [maxRails]uint32
}

const grantSize = 56

// grantBit distinguishes the requests that carry grants.
const grantBit = 1 << 32

func (g *grant) encode(b []byte) {
	le := binary.LittleEndian
	le.PutUint32(b, g.seq)
	le.PutUint32(b[4:], g.rails)
	le.PutUint64(b[8:], g.addr)
	le.PutUint64(b[16:], g.length)
	for i, k := range g.keys {
		le.PutUint32(b[24+4*i:], k)
	}
}

func (g *grant) decode(b []byte) {
	le := binary.LittleEndian
	g.seq, g.rails, g.addr, g.length = le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:])
	for i := range g.keys {
		g.keys[i] = le.Uint32(b[24+4*i:])
	}
}

// Errors of requests.
var (
	errProtocol = errors.New("the peer violated the protocol of the plugin")
	errTooLong  = errors.New("a message is longer than its receive")
	errDropped  = errors.New("memory was deregistered while a request used it")
)

// Region is memory registered for a Comm.
type Region struct {
	comm   *Comm
	memory *verbs.Memory
	region *ibverbx.Region
	addr   uint64
	length uint64
	// The lock of the part guards everything below.
	// remote describes the region in an epoch of the part.
	remote *ibverbx.RemoteRegion
	epoch  uint64
	// busy counts the requests that use the region.
	busy int
	// gone is set by Deregister.
	gone bool
}

// prepare makes a Comm ready for requests.
func (c *Comm) prepare() (err error) {
	a := &c.session.Agreed
	if a.SendDepth < Depth || a.RecvDepth < Depth {
		return verbs.Invalidf("queues of %d and %d requests, want %d", a.SendDepth, a.RecvDepth, Depth)
	}
	if c.memory, err = verbs.AllocMemory(Depth*grantSize, nil); err != nil {
		return err
	}
	if c.page, err = c.group.rails.Register(c.memory, verbs.AccessLocalWrite); err != nil {
		return err
	}
	c.regions = map[*Region]struct{}{}
	if !c.shard.acquire() {
		return ErrGone
	}
	if server := c.shard.plugin.server; server != nil {
		c.remove = server.Collector().AddSession(c.conn.Peer().Addr.String(), c.session)
	}
	p := c.part
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.sends {
		for i := range Depth {
			if err := c.awaitGrant(i); err != nil {
				c.shard.release() // the caller is a user as well
				return err
			}
		}
	}
	c.group.comms.Set(c.session.QP.Num(), c)
	p.all[c] = struct{}{}
	c.number = c.shard.plugin.comms.add(c)
	return nil
}

// awaitGrant posts the receive of a grant.
func (c *Comm) awaitGrant(slot int) error {
	c.recv[0] = ibverbx.RecvWR{WRID: uint64(slot) | grantBit}
	c.recv[0].SetSGE(c.page.SGE(uint64(slot*grantSize), grantSize))
	_, err := c.session.QP.PostRecv(c.recv[:])
	return err
}

// Comm returns the Comm with a number, nil if it is unknown.
func (p *Plugin) Comm(n uint32) *Comm { return p.comms.get(n) }

// Number returns the number of the Comm.
func (c *Comm) Number() uint32 { return c.number }

// Sends reports whether the Comm is the sending side.
func (c *Comm) Sends() bool { return c.sends }

// Adopt makes the Comm report to w until Close. Requests need it.
func (c *Comm) Adopt(w *Words) {
	p := c.part
	p.mu.Lock()
	defer p.mu.Unlock()
	c.words = w
	w.Result.Store(c.result.Load())
	w.Granted.Store(c.granted.Load())
	if w.Worker = MaxWorkers; p.worker != nil {
		w.Worker = p.worker.number
	}
}

// Register registers memory and returns its number. Region returns it.
func (c *Comm) Register(b []byte) (uint32, error) {
	mem, err := verbs.AdoptMemory(b)
	if err != nil {
		return 0, err
	}
	region, err := c.group.rails.Register(mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return 0, errors.Join(err, mem.Free())
	}
	r := &Region{comm: c, memory: mem, region: region, addr: mem.Addr(), length: region.Len()}
	p := c.part
	p.mu.Lock()
	r.epoch, r.remote = p.epoch, region.Remote() // failover adds keys with the lock held
	closed := c.closed
	if !closed {
		c.regions[r] = struct{}{}
	}
	p.mu.Unlock()
	if closed {
		return 0, errors.Join(verbs.ErrClosed, r.close())
	}
	return c.shard.plugin.regions.add(r), nil
}

// Region returns the Region with a number, nil if it is unknown.
func (p *Plugin) Region(n uint32) *Region { return p.regions.get(n) }

// Deregister cancels the registration with a number. If requests still use the memory, it first closes the connection's VirtualQP, so that
// no data lands afterwards; the requests fail.
func (p *Plugin) Deregister(n uint32) error {
	r := p.regions.remove(n)
	if r == nil {
		return nil // closed with its Comm
	}
	c := r.comm
	c.part.mu.Lock()
	_, open := c.regions[r]
	delete(c.regions, r)
	if r.gone = true; open && r.busy > 0 {
		c.fail(errDropped)
		_ = c.session.QP.Close() // Session.Close returns its error again
	}
	c.part.mu.Unlock()
	if !open {
		return nil
	}
	return r.close()
}

func (r *Region) close() error { return errors.Join(r.region.Close(), r.memory.Free()) }

// contains reports whether the region has size bytes at addr.
func (r *Region) contains(addr, size uint64) bool {
	return addr >= r.addr && addr-r.addr <= r.length && size <= r.length-(addr-r.addr)
}

// Send posts request number i: size bytes at addr, in r. They are cut to the length of the receive. It returns Again while the peer has
// not granted a receive.
func (c *Comm) Send(addr, size uint64, r *Region, i int) Result {
	if !c.sends {
		return InternalError
	}
	return c.request(addr, size, r, i)
}

// Recv posts request number i: a receive of up to size bytes at addr, in r.
func (c *Comm) Recv(addr, size uint64, r *Region, i int) Result {
	if c.sends {
		return InternalError
	}
	return c.request(addr, size, r, i)
}

// post posts a request. The lock of the part is held.
func (c *Comm) post(addr, size uint64, r *Region, i int) Result {
	switch {
	case c.failed != nil:
		return Result(c.result.Load())
	case c.words == nil || uint(i) >= Depth:
		return InternalError
	case r != nil && r.gone:
		c.fail(errDropped)
		return InternalError
	case c.sends:
		return c.write(addr, size, r, i)
	}
	return c.grant(addr, size, r, i)
}

// write posts the WRITE of a send.
func (c *Comm) write(addr, size uint64, r *Region, i int) Result {
	switch {
	case size > math.MaxInt32:
		return InternalError
	case c.used == c.granted.Load():
		return Again
	}
	g := &c.grants[c.used%Depth]
	size = min(size, g.length)
	wr := &c.send[0]
	*wr = ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: g.seq}
	if size > 0 {
		if r == nil || r.comm != c || !r.contains(addr, size) {
			return InternalError
		}
		c.keys = g.keys
		c.remote = ibverbx.RemoteRegion{Addr: g.addr, Length: g.length, RKeys: c.keys[:g.rails]}
		wr.NumSGE, wr.SGE[0], wr.Remote = 1, r.region.SGE(addr-r.addr, uint32(size)), &c.remote
	} else {
		r = nil
	}
	if _, err := c.session.QP.PostSend(c.send[:]); err != nil {
		return c.refused(err)
	}
	c.use(i, r, size)
	return OK
}

// grant posts the grant of a receive.
func (c *Comm) grant(addr, size uint64, r *Region, i int) Result {
	if c.used-c.done.Load() == Depth {
		return Again
	}
	size = min(size, math.MaxInt32) // test reports sizes as int
	g := grant{seq: c.used, rails: uint32(c.group.rails.Len()), addr: addr, length: size}
	if size > 0 {
		if r == nil || r.comm != c || !r.contains(addr, size) {
			return InternalError
		}
		if r.epoch != c.part.epoch {
			r.epoch, r.remote = c.part.epoch, r.region.Remote()
		}
		copy(g.keys[:], r.remote.RKeys)
	} else {
		r = nil
	}
	g.encode(c.memory.Bytes())
	wr := &c.send[0]
	*wr = ibverbx.SendWR{WRID: grantBit, Opcode: verbs.OpSend, Flags: verbs.SendInline, NumSGE: 1}
	wr.SGE[0] = c.page.SGE(0, grantSize)
	// The sender may respond before the receive is posted: the engine keeps the notification, and no poll is possible in between.
	if _, err := c.session.QP.PostSend(c.send[:]); err != nil {
		return c.refused(err)
	}
	c.recv[0] = ibverbx.RecvWR{WRID: uint64(i)}
	if _, err := c.session.QP.PostRecv(c.recv[:]); err != nil {
		c.fail(err)
		return Result(c.result.Load())
	}
	c.use(i, r, size)
	return OK
}

// use records a posted request.
func (c *Comm) use(i int, r *Region, size uint64) {
	c.posted[i] = posted{region: r, size: size, seq: c.used, busy: true}
	c.used++
	if r != nil {
		r.busy++
	}
}

// refused returns the result of a post that the engine has refused.
func (c *Comm) refused(err error) Result {
	if errors.Is(err, verbs.ErrQueueFull) {
		return Again
	}
	if failed := c.session.QP.Err(); failed != nil {
		err = failed
	}
	c.fail(err)
	return Result(c.result.Load())
}

// completed handles a completion.
func (c *Comm) completed(wc *ibverbx.WC) {
	if c.failed != nil || c.closed {
		return
	}
	carries := wc.WRID&grantBit != 0
	switch {
	case wc.Status != verbs.StatusSuccess && carries && c.used != c.done.Load():
		return // outstanding requests may have succeeded before the peer left; they complete by themselves
	case wc.Status != verbs.StatusSuccess:
		c.fail(wc.Err())
		return
	case carries && c.sends:
		c.takeGrant(int(wc.WRID&^grantBit), wc.ByteLen)
		return
	case carries:
		return
	}
	i := int(wc.WRID)
	p := &c.posted[i]
	if !c.sends {
		switch {
		case wc.Imm != p.seq:
			c.fail(fmt.Errorf("%w: message %d arrived, want %d", errProtocol, wc.Imm, p.seq))
			return
		case uint64(wc.ByteLen) > p.size:
			c.fail(fmt.Errorf("%w: %d bytes for a receive of %d", errTooLong, wc.ByteLen, p.size))
			return
		}
		p.size = uint64(wc.ByteLen)
	}
	if p.region != nil {
		p.region.busy--
		p.region = nil
	}
	p.busy = false
	c.done.Store(c.done.Load() + 1)
	c.words.Requests[i].finish(OK, p.size)
}

// takeGrant handles a received grant.
func (c *Comm) takeGrant(slot int, length uint32) {
	n := c.granted.Load()
	g := &c.grants[n%Depth]
	if length != grantSize || n-c.used >= Depth {
		c.fail(fmt.Errorf("%w: a grant of %d bytes, or too many", errProtocol, length))
		return
	}
	g.decode(c.memory.Bytes()[slot*grantSize:])
	if g.seq != n || g.rails < 1 || g.rails > maxRails || g.length > math.MaxUint64-g.addr {
		c.fail(fmt.Errorf("%w: grant %d with %d keys, want number %d", errProtocol, g.seq, g.rails, n))
		return
	}
	if err := c.awaitGrant(slot); err != nil {
		if c.used == c.done.Load() { // otherwise tick fails the connection later: outstanding requests may have succeeded
			c.refused(err)
		}
		return
	}
	c.granted.Store(n + 1)
	if c.words != nil {
		c.words.Granted.Store(n + 1)
	}
}
