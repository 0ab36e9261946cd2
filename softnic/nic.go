package softnic

import (
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// NIC is a software RDMA NIC with one port. It implements verbs.Device; Open gives a
// context on it. All methods are safe for concurrent use.
type NIC struct {
	core    *core
	link    Link
	name    string
	cfg     Config
	ordinal uint32
	guid    verbs.GUID
	gids    []verbs.GIDEntry
	// mtuGiven says that the MTU is not a default.
	mtuGiven bool
	rng      *rand.Rand

	// All below is guarded by the core's lock.
	closed   bool
	failed   bool
	portUp   bool
	qps      slots[*qp]
	mrs      keyTable
	ahs      slots[*ah]
	contexts family[*hostContext]
	stats    Stats
	queued   int      // packets under way, on a link that queues
	waiting  workList // QPs that wait for that to fall
	budget   budget   // of all QPs
	patience uint8    // how often the time to the first probe is doubled
	scratch  packet   // the packet being built
	word     [8]byte  // the answer of an atomic on its way to memory
	grh      [verbs.GRHLen]byte
	observe  func(Touch) // nil if nobody looks
	egress   *egress     // the port of a switch that leads here, nil if there is none
	udp      *udpPort    // the sockets, on a UDPLink
}

var _ verbs.Device = (*NIC)(nil)

// New plugs a new NIC into a link.
func New(link Link, cfg Config) (*NIC, error) {
	if err := cfg.validate(); err != nil {
		return nil, verbs.NewOpError("make NIC", cfg.Name, 0, err)
	}
	if !made(link) {
		return nil, verbs.NewOpError("make NIC", cfg.Name, 0, verbs.Invalidf("no link: make one with NewMemoryLink, NewFaultLink or NewUDPLink"))
	}
	c := link.shared()
	n := &NIC{core: c, link: link, portUp: true}
	n.cfg, n.name, n.mtuGiven = cfg, cfg.Name, cfg.MTU != 0
	if err := c.attach(n, cfg.Addr); err != nil {
		return nil, verbs.NewOpError("make NIC", cfg.Name, 0, err)
	}
	return n, nil
}

// made reports whether link comes from NewMemoryLink, NewFaultLink or NewUDPLink.
func made(link Link) bool {
	switch l := link.(type) {
	case *MemoryLink:
		return l != nil && l.core.link != nil
	case *FaultLink:
		return l != nil && l.core.link != nil
	case *UDPLink:
		return l != nil && l.core.link != nil
	}
	return false
}

// setAddr finishes the construction, once the link has given the NIC its number and
// address. Row 0 of the GID table is the link-local address of the GUID, row 1 the
// routable one.
func (n *NIC) setAddr(gid verbs.GID, nonce uint32) {
	n.guid = verbs.GUID(0x0200_00ff_fe00_0000 | uint64(nonce&0xff)<<16 | uint64(nonce>>8&0xffff)<<40 | uint64(n.ordinal&0xffff))
	n.cfg = n.cfg.withDefaults(n.ordinal)
	n.name = n.cfg.Name
	n.rng = newRand(n.cfg.Seed)
	n.qps.init(firstQPN, maxQP)
	n.ahs.init(1, maxAH)
	n.mrs.init(n.rng)
	n.scratch.PKey, n.scratch.Migrated = roce.PKeyDefault, true
	local := verbs.GID{0: 0xfe, 1: 0x80}
	binary.BigEndian.PutUint64(local[8:], uint64(n.GUID()))
	n.gids = []verbs.GIDEntry{
		{GID: local, Index: 0, Type: verbs.GIDTypeRoCEv2},
		{GID: gid, Index: 1, Type: verbs.GIDTypeRoCEv2},
	}
}

// newRand returns the source of a NIC's keys and PSNs: the seed's, or one that only
// this process knows.
func newRand(seed uint64) *rand.Rand {
	var key [32]byte
	if seed == 0 {
		_, _ = crand.Read(key[:]) // never fails: it ends the process instead
	} else {
		binary.LittleEndian.PutUint64(key[:], seed)
	}
	return rand.New(rand.NewChaCha8(key))
}

// Name returns the device's name.
func (n *NIC) Name() string { return n.name }

// GUID returns a locally administered GUID.
func (n *NIC) GUID() verbs.GUID { return n.guid }

// Open returns a new context on the NIC.
func (n *NIC) Open() (verbs.Context, error) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	if n.closed {
		return nil, verbs.NewOpError("open device", n.name, 0, verbs.ErrClosed)
	}
	if n.failed {
		return nil, verbs.NewOpError("open device", n.name, 0, verbs.ErrDeviceFatal)
	}
	x := &hostContext{nic: n, core: n.core}
	n.contexts.add(x)
	return x, nil
}

// Close closes the contexts that are open on the NIC and unplugs it.
func (n *NIC) Close() error {
	n.core.mu.Lock()
	if n.closed {
		n.core.mu.Unlock()
		return nil
	}
	for _, x := range n.contexts.inOrder() {
		x.destroy()
	}
	n.closed = true
	end := n.core.detach(n)
	n.core.settle()
	n.core.mu.Unlock()
	end()
	if n.udp != nil {
		return verbs.NewOpError("close NIC", n.name, 0, n.udp.close())
	}
	return nil
}

// SetPort takes the port down or up. While it is down it neither sends nor receives;
// QPs keep their state and retry. Contexts get a port event.
func (n *NIC) SetPort(up bool) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	if n.closed || n.portUp == up {
		return
	}
	n.portUp = up
	typ := verbs.EventPortErr
	if up {
		typ = verbs.EventPortActive
	}
	for _, x := range n.contexts.inOrder() {
		x.raise(verbs.Event{Type: typ, Port: 1})
	}
	n.core.settle()
}

// Fail makes the device fail as hardware does: every QP goes to the error state, the
// contexts get EventDeviceFatal, and nothing can be made on it any more.
func (n *NIC) Fail() {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	if n.closed || n.failed {
		return
	}
	n.failed = true
	for _, x := range n.contexts.inOrder() {
		x.raise(verbs.Event{Type: verbs.EventDeviceFatal})
	}
	for q := range n.qps.all() {
		q.enterError()
	}
	n.core.settle()
}

// Stats returns the counters of the NIC.
func (n *NIC) Stats() Stats {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	return n.stats
}

// receive takes a packet from the link. What cannot be for anybody here is counted
// and dropped.
func (n *NIC) receive(p *packet) {
	if !n.portUp {
		n.stats.PortDownDrops++
		return
	}
	q := n.qps.get(p.DestQPN)
	if q == nil || q.transport != p.Opcode&roce.TransportMask {
		n.stats.UnknownQP++
		return
	}
	if !receivable[q.state] {
		n.stats.NotReady++
		return
	}
	n.stats.PacketsReceived++
	if q.typ == verbs.UD {
		q.receiveDatagram(p)
		return
	}
	if !q.knows(p.path) {
		n.stats.WrongSource++
		return
	}
	if q.state == verbs.StateRTR {
		q.established()
	}
	op := p.Opcode & roce.OperationMask
	switch {
	case q.typ == verbs.UC:
		q.receiveUC(p, op)
	case traits[op]&opResponse != 0:
		q.receiveResponse(p, op)
	default:
		q.receiveRequest(p, op)
	}
}

// receivable says in which states a QP takes packets.
var receivable = [...]bool{
	verbs.StateRTR: true, verbs.StateRTS: true, verbs.StateSQD: true, verbs.StateSQE: true, verbs.StateErr: false,
}
