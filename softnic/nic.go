package softnic

import (
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"math/rand/v2"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// NIC is a software RDMA NIC with one port. It implements verbs.Device; Open returns a context on it.
// All methods are safe for concurrent use. Get one from New: methods that inject faults into the zero value panic.
type NIC struct {
	core *core
	name string
	cfg  Config
	// ordinal numbers the NICs of the link from 1.
	ordinal uint32
	guid    verbs.GUID
	gids    []verbs.GIDEntry
	// mtuGiven is set if the MTU was configured.
	mtuGiven bool
	rng      *rand.Rand

	// The core's lock guards the fields below.
	closed   bool
	failed   bool
	portUp   bool
	qps      slots[*qp]
	mrs      keyTable
	ahs      slots[*ah]
	contexts creationOrder[*hostContext]
	stats    Stats
	// queued is the number of the NIC's packets in flight, on links that queue packets.
	queued int
	// waiting holds the QPs that wait for queued to fall.
	waiting workList
	// budget is shared by all QPs.
	budget budget
	// probeBackoff is the number of doublings of the delay before the first probe.
	probeBackoff uint8
	// scratch is the packet being built.
	scratch packet
	stage   scratchMemory
	// observe is called for every access to memory, unless nil.
	observe func(MemoryAccess)
	// egress is the switch port in front of the NIC, nil without one.
	egress *egress
	// udp holds the sockets for plain packets, on a UDPLink.
	udp *udpPort
	// pds counts protection domains ever created.
	pds uint32
	// sealed holds the sockets for sealed packets, nil until the first sealed QP.
	sealed *udpPort
	// ports holds udp, sealed and the ports of multicast groups, without nil.
	ports []*udpPort
	// polled holds the ports with QPs. The slice is replaced, never modified.
	polled []*udpPort
	// sealings holds the NIC's parts in sealed sessions.
	sealings sealings
}

var _ verbs.Device = (*NIC)(nil)

// New creates a NIC and attaches it to a link. It returns verbs.ErrInvalid for an invalid cfg or a nil
// link, and the system's error if a socket cannot be opened. Close the NIC to release it.
func New(link Link, cfg Config) (*NIC, error) {
	err := cfg.validate()
	if err == nil && !made(link) {
		err = verbs.Invalidf("no link: make one with NewMemoryLink, NewFaultLink, NewUDPLink or NewShmLink")
	}
	if err != nil {
		return nil, verbs.NewOpError("create NIC", cfg.Name, 0, err)
	}
	n := &NIC{
		name: cfg.Name, cfg: cfg, mtuGiven: cfg.MTU != 0, portUp: true,
		waiting: workList{bit: onWaiting}, budget: newBudget(),
	}
	if err := link.attach(n); err != nil {
		return nil, verbs.NewOpError("create NIC", cfg.Name, 0, err)
	}
	return n, nil
}

// setAddr completes construction once the link has assigned a number and an address. Row 0 of the GID
// table is the GUID's link-local address, row 1 the routable one.
func (n *NIC) setAddr(gid verbs.GID, nonce uint32) {
	n.guid = verbs.GUID(0x0200_00ff_fe00_0000 | uint64(nonce&0xff)<<16 | uint64(nonce>>8&0xffff)<<40 | uint64(n.ordinal&0xffff))
	n.cfg = n.cfg.withDefaults(n.ordinal)
	n.name = n.cfg.Name
	n.rng = newRand(n.cfg.Seed)
	numbers := n.rng
	if n.cfg.Seed != 0 {
		numbers = newRand(1) // the same on every NIC, so programs cannot rely on unique QP numbers
	}
	n.qps.init(numbers, firstQPN, maxQP)
	n.ahs.init(n.rng, 1, maxAH)
	n.mrs.init(n.rng)
	n.scratch.PKey, n.scratch.Migrated = roce.PKeyDefault, true
	local := verbs.GID{0: 0xfe, 1: 0x80}
	binary.BigEndian.PutUint64(local[8:], uint64(n.GUID()))
	n.gids = []verbs.GIDEntry{
		{GID: local, Index: 0, Type: verbs.GIDTypeRoCEv2},
		{GID: gid, Index: 1, Type: verbs.GIDTypeRoCEv2},
	}
}

// newRand returns the generator for a NIC's keys and PSNs. It is unpredictable if the seed is 0.
func newRand(seed uint64) *rand.Rand {
	var key [32]byte
	if seed == 0 {
		_, _ = crand.Read(key[:]) // never fails: it aborts the process instead
	} else {
		binary.LittleEndian.PutUint64(key[:], seed)
	}
	return rand.New(rand.NewChaCha8(key))
}

// Name returns the device's name (Config.Name).
func (n *NIC) Name() string { return n.name }

// GUID returns a locally administered GUID.
func (n *NIC) GUID() verbs.GUID { return n.guid }

// Open returns a new context on the NIC. It returns verbs.ErrClosed after Close and verbs.ErrDeviceFatal
// after Fail.
func (n *NIC) Open() (verbs.Context, error) {
	if n.core == nil {
		return nil, verbs.NewOpError("open device", "", 0, verbs.ErrClosed)
	}
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

// Close closes all contexts on the NIC and detaches it from its link.
func (n *NIC) Close() error {
	if n.core == nil {
		return verbs.NewOpError("close device", "", 0, verbs.ErrClosed)
	}
	n.core.mu.Lock()
	if n.closed {
		n.core.mu.Unlock()
		return nil
	}
	for _, x := range n.contexts.inOrder() {
		x.destroy()
	}
	n.closed = true
	last := n.core.detach(n)
	n.core.settle()
	if w := n.core.udpNIC; w != nil {
		w.flush() // packets between Cork and Uncork, before the sockets close
	}
	n.core.mu.Unlock()
	if last != nil {
		last.end()
	}
	var err error
	for _, u := range n.ports {
		err = errors.Join(err, u.close())
	}
	if w := n.core.udpNIC; w != nil {
		w.discovery.close(n.core)
	}
	if l := n.core.traits.shm; l != nil {
		err = errors.Join(err, l.close())
	}
	return verbs.NewOpError("close NIC", n.name, 0, err)
}

// SetPort brings the port up or down. While down, it neither sends nor receives; QPs keep their state
// and retry. Contexts get a port event.
func (n *NIC) SetPort(up bool) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	if n.closed || n.portUp == up {
		return
	}
	n.revoke()
	n.portUp = up
	n.grantAll()
	typ := verbs.EventPortErr
	if up {
		typ = verbs.EventPortActive
	}
	n.raise(verbs.Event{Type: typ, Port: 1})
	n.core.settle()
}

// raise queues an event for every context.
func (n *NIC) raise(e verbs.Event) {
	for _, x := range n.contexts.inOrder() {
		x.raise(e)
	}
}

// Fail simulates a hardware failure: every QP enters the error state, contexts get EventDeviceFatal, and
// creating objects on the NIC fails until Recover.
func (n *NIC) Fail() {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	if n.closed || n.failed {
		return
	}
	n.failed = true
	n.raise(verbs.Event{Type: verbs.EventDeviceFatal})
	for q := range n.qps.all() {
		q.enterError()
	}
	n.core.settle()
}

// Recover undoes Fail, like a firmware reset that the driver survives. Open contexts work again, with
// their PDs, regions, CQs and SRQs. Their QPs stay in the error state until they are reset or closed,
// and receives in SRQs stay posted. Contexts get EventPortActive if the port is up. A NIC that has not
// failed is not changed.
func (n *NIC) Recover() {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	if n.closed || !n.failed {
		return
	}
	n.failed = false
	if n.portUp {
		n.raise(verbs.Event{Type: verbs.EventPortActive, Port: 1})
	}
	n.core.settle()
}

// Reset is Fail followed by Recover. Afterwards the QPs are in the error state, and the events of both
// calls are queued.
func (n *NIC) Reset() {
	n.Fail()
	n.Recover()
}

// Stats returns the NIC's counters since its creation.
func (n *NIC) Stats() Stats {
	if n.core == nil {
		return Stats{}
	}
	l := &n.core.mu
	l.hold()
	defer l.Unlock()
	for _, p := range l.open {
		p.Lock()
		p.fold()
		p.Unlock()
	}
	return n.stats
}

// QPStats returns the counters of an open QP. ok is false if the QP does not exist.
func (n *NIC) QPStats(qpn uint32) (s QPStats, ok bool) {
	if n.core == nil {
		return s, false
	}
	n.core.mu.hold()
	defer n.core.mu.Unlock()
	if q := n.qps.get(qpn); q != nil {
		return q.trouble, true
	}
	return s, false
}

// receive dispatches a packet from the link. It counts and drops packets that no QP accepts.
func (n *NIC) receive(p *packet) {
	if !n.portUp {
		n.stats.PortDownDrops++
		return
	}
	q := n.qps.get(p.DestQPN)
	if q != nil && q.paced && p.Opcode == roce.RC|roce.OpAck && receivable[q.state] && p.assoc == nil {
		n.stats.PacketsReceived++
		if q.typ == verbs.UD || q.isFromPeer(p.path) {
			q.receivePace(p)
		} else {
			n.stats.WrongSource++
		}
		return
	}
	if q == nil || q.transport != p.Opcode&roce.TransportMask {
		n.stats.UnknownQP++
		return
	}
	if !receivable[q.state] {
		n.stats.NotReady++
		return
	}
	n.stats.PacketsReceived++
	if (p.assoc != nil || q.sealing != nil) && !q.accepts(p.assoc) {
		return
	}
	if q.typ == verbs.UD {
		q.receiveDatagram(p)
		return
	}
	if p.assoc == nil && !q.isFromPeer(p.path) {
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

// receivable is set for the states of a QP that accepts packets.
var receivable = [...]bool{
	verbs.StateRTR: true, verbs.StateRTS: true, verbs.StateSQD: true, verbs.StateSQE: true, verbs.StateErr: false,
}
