package measure

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"

	"ibverbx"
	"ibverbx/verbs"
)

// wire joins fake devices: PostSend executes every request synchronously. It is a NIC without a
// network, for one goroutine, with faults chosen by the test. It panics where a real NIC would
// wait, so a test without a panic proves that requests never wait.
type wire struct {
	qps  map[uint32]*fakeQP
	mem  map[uint32]*verbs.Memory // by key; lkey and rkey are the same
	sent int                      // requests with payload so far: messages, unless fragmented

	// after, if not nil, is called with each message at its destination.
	after func(message int, b []byte)
	// drop, if not nil, selects messages to drop.
	drop func(message int) bool
	// hang makes requests after that many messages disappear without a completion.
	hang int
	// fail makes that message fail with a remote access error.
	fail int
	// imm, if not nil, changes immediates in transit.
	imm func(uint32) uint32
	// length, if not nil, changes the message length reported to receivers.
	length func(uint32) uint32
	// polls counts CQ polls per device.
	polls map[string]int
	// attr, if not nil, changes the device attributes.
	attr func(*verbs.DeviceAttr)
	// open counts objects created and not yet closed.
	open int
}

func newWire() *wire {
	return &wire{polls: map[string]int{}, qps: map[uint32]*fakeQP{}, mem: map[uint32]*verbs.Memory{}, hang: -1, fail: -1}
}

// pair returns two ends on the wire with the given number of devices each.
func (w *wire) pair(rails int) (a, b []ibverbx.RailConfig) {
	for i := range rails {
		a = append(a, ibverbx.RailConfig{Context: &fakeContext{wire: w, name: fmt.Sprintf("fake%d", 2*i)}})
		b = append(b, ibverbx.RailConfig{Context: &fakeContext{wire: w, name: fmt.Sprintf("fake%d", 2*i+1)}})
	}
	return a, b
}

func (w *wire) opened() { w.open++ }

type fakeDevice struct {
	verbs.Device
	name string
}

func (d fakeDevice) Name() string { return d.name }

type fakeContext struct {
	verbs.Context
	wire *wire
	name string
}

func (c *fakeContext) Device() verbs.Device { return fakeDevice{name: c.name} }

func (c *fakeContext) QueryDevice() (verbs.DeviceAttr, error) {
	a := verbs.DeviceAttr{
		Provider: "fake", Link: "call", MaxQP: 4096, MaxQPWR: 4096, MaxSGE: verbs.MaxSGE, MaxInline: 256, MaxCQE: 1 << 20, MaxMsgSize: 1 << 30,
		MaxQPRdAtomic: 16, MaxQPInitRdAtomic: 16, Atomic: verbs.AtomicHCA, Capabilities: verbs.CapUC | verbs.CapUD,
	}
	if c.wire.attr != nil {
		c.wire.attr(&a)
	}
	return a, nil
}

func (c *fakeContext) QueryPort(int) (verbs.PortAttr, error) {
	return verbs.PortAttr{State: verbs.PortActive, ActiveMTU: verbs.MTU2048, GIDs: 2, LinkLayer: verbs.LinkLayerEthernet}, nil
}

func fakeGID() verbs.GID { return verbs.GIDFromAddr(netip.MustParseAddr("192.0.2.1")) }

// Events returns 0: a fake device never fails as a whole.
func (c *fakeContext) Events([]verbs.Event) (int, error) { return 0, nil }

func (c *fakeContext) NotifyEvents(*verbs.Waker) error { return nil }

func (c *fakeContext) QueryGID(_, index int) (verbs.GIDEntry, error) {
	if index != 1 {
		return verbs.GIDEntry{}, verbs.ErrNotFound
	}
	return verbs.GIDEntry{GID: fakeGID(), Index: 1, Type: verbs.GIDTypeRoCEv2}, nil
}

func (c *fakeContext) AllocPD() (verbs.PD, error) {
	c.wire.opened()
	return &fakePD{wire: c.wire}, nil
}

func (c *fakeContext) CreateCQ(cfg verbs.CQConfig) (verbs.CQ, error) {
	c.wire.opened()
	return &fakeCQ{wire: c.wire, device: c.name, ring: make([]verbs.WC, cfg.Depth)}, nil
}

type fakePD struct {
	verbs.PD
	wire *wire
}

func (p *fakePD) Close() error { p.wire.open--; return nil }

func (p *fakePD) RegisterMemory(m *verbs.Memory, _ verbs.Access) (verbs.MR, error) {
	p.wire.opened()
	key := uint32(len(p.wire.mem) + 1)
	p.wire.mem[key] = m
	return &fakeMR{wire: p.wire, mem: m, key: key}, nil
}

func (p *fakePD) CreateAH(a verbs.AHAttr) (verbs.AH, error) {
	p.wire.opened()
	if a.SGIDIndex != 1 {
		return nil, verbs.ErrNotFound
	}
	return &fakeAH{wire: p.wire}, nil
}

func (p *fakePD) CreateQP(cfg verbs.QPConfig) (verbs.QP, error) {
	p.wire.opened()
	q := &fakeQP{wire: p.wire, cfg: cfg, num: uint32(len(p.wire.qps) + 1), recvs: make([]verbs.RecvWR, cfg.MaxRecvWR)}
	p.wire.qps[q.num] = q
	return q, nil
}

type fakeMR struct {
	wire *wire
	mem  *verbs.Memory
	key  uint32
}

func (m *fakeMR) Addr() uint64 { return m.mem.Addr() }
func (m *fakeMR) Len() uint64  { return uint64(m.mem.Len()) }
func (m *fakeMR) LKey() uint32 { return m.key }
func (m *fakeMR) RKey() uint32 { return m.key }
func (m *fakeMR) Close() error { m.wire.open--; return nil }

type fakeAH struct{ wire *wire }

func (a *fakeAH) Handle() verbs.AHHandle { return 7 }
func (a *fakeAH) Close() error           { a.wire.open--; return nil }

// fakeCQ is a ring that panics on overrun.
type fakeCQ struct {
	verbs.CQ
	wire       *wire
	device     string
	ring       []verbs.WC
	head, tail int
}

func (c *fakeCQ) push(wc verbs.WC) {
	if c.tail-c.head == len(c.ring) {
		panic("fake CQ overrun")
	}
	c.ring[c.tail%len(c.ring)] = wc
	c.tail++
}

func (c *fakeCQ) Poll(dst []verbs.WC) (n int, err error) {
	c.wire.polls[c.device]++
	for ; n < len(dst) && c.head < c.tail; n++ {
		dst[n] = c.ring[c.head%len(c.ring)]
		c.head++
	}
	return n, nil
}

func (c *fakeCQ) Depth() int   { return len(c.ring) }
func (c *fakeCQ) Close() error { c.wire.open--; return nil }

type fakeQP struct {
	verbs.QP
	wire       *wire
	cfg        verbs.QPConfig
	num        uint32
	state      verbs.QPState
	peer       uint32
	mtu        verbs.MTU
	recvs      []verbs.RecvWR
	head, tail int
}

func (q *fakeQP) Close() error         { q.wire.open--; return nil }
func (q *fakeQP) Num() uint32          { return q.num }
func (q *fakeQP) Type() verbs.QPType   { return q.cfg.Type }
func (q *fakeQP) State() verbs.QPState { return q.state }

func (q *fakeQP) Modify(attr verbs.QPAttr, _ verbs.QPAttrMask) error {
	q.state = attr.State
	return nil
}

func (q *fakeQP) Endpoint() (verbs.Endpoint, error) {
	return verbs.Endpoint{QPN: q.num, MTU: verbs.MTU2048, GID: fakeGID(), QKey: 0x1234}, nil
}

func (q *fakeQP) Connect(remote verbs.Endpoint) error {
	q.peer, q.mtu = remote.QPN, remote.MTU
	return nil
}

func (q *fakeQP) PostRecv(wrs []verbs.RecvWR) (int, error) {
	for i := range wrs {
		if q.tail-q.head == len(q.recvs) {
			return i, verbs.ErrQueueFull
		}
		q.recvs[q.tail%len(q.recvs)] = wrs[i]
		q.tail++
	}
	return len(wrs), nil
}

func (q *fakeQP) PostSend(wrs []verbs.SendWR) (int, error) {
	if len(wrs) > q.cfg.MaxSendWR {
		panic(fmt.Sprintf("a chain of %d on a send queue of %d", len(wrs), q.cfg.MaxSendWR))
	}
	for i := range wrs {
		q.carry(&wrs[i])
	}
	return len(wrs), nil
}

func (q *fakeQP) carry(wr *verbs.SendWR) {
	w := q.wire
	message := -2 // not a message: a record, or a notification on a separate lane
	if wr.NumSGE > 0 && wr.Flags&verbs.SendInline == 0 {
		message = w.sent
		w.sent++
	}
	if w.hang >= 0 && message >= w.hang {
		return
	}
	cq := q.cfg.SendCQ.(*fakeCQ)
	wc := verbs.WC{WRID: wr.WRID, QPN: q.num}
	if message == w.fail {
		wc.Status = verbs.StatusRemAccessErr
		cq.push(wc)
		return
	}
	if w.drop == nil || !w.drop(message) {
		b := q.move(wr)
		if w.after != nil {
			w.after(message, b)
		}
	}
	if wr.Flags&verbs.SendSignaled != 0 {
		cq.push(wc)
	}
}

// move copies a request's data and returns the destination bytes.
func (q *fakeQP) move(wr *verbs.SendWR) []byte {
	w := q.wire
	var local []byte
	switch {
	case wr.Flags&verbs.SendInline != 0:
		local = unsafe.Slice(*(**byte)(unsafe.Pointer(&wr.SGE[0].Addr)), wr.SGE[0].Length)
	case wr.NumSGE > 0:
		local = w.bytes(wr.SGE[0].LKey, wr.SGE[0].Addr, wr.SGE[0].Length)
	}
	switch wr.Opcode {
	case verbs.OpSend:
		return q.deliver(wr, local)
	case verbs.OpAtomicFetchAndAdd:
		remote := w.bytes(wr.RKey, wr.RemoteAddr, 8)
		old := binary.NativeEndian.Uint64(remote)
		binary.NativeEndian.PutUint64(local, old)
		binary.NativeEndian.PutUint64(remote, old+wr.CompareAdd)
		return remote
	default:
		var remote []byte
		if len(local) > 0 {
			remote = w.bytes(wr.RKey, wr.RemoteAddr, wr.SGE[0].Length)
		}
		if wr.Opcode == verbs.OpRDMARead {
			local, remote = remote, local
		}
		copy(remote, local)
		if wr.Opcode == verbs.OpRDMAWriteWithImm {
			q.notify(wr)
		}
		return remote
	}
}

func (q *fakeQP) deliver(wr *verbs.SendWR, b []byte) []byte {
	to, grh := q.peer, uint32(0)
	if q.cfg.Type == verbs.UD {
		if wr.AH != 7 || wr.RemoteQKey != 0x1234 {
			panic("UD request without an address")
		}
		to, grh = wr.RemoteQPN, verbs.GRHLen
	}
	p := q.wire.qps[to]
	r := p.takeRecv()
	dst := q.wire.bytes(r.SGE[0].LKey, r.SGE[0].Addr, r.SGE[0].Length)[grh:]
	n := copy(dst, b)
	p.cfg.RecvCQ.(*fakeCQ).push(verbs.WC{WRID: r.WRID, QPN: p.num, Opcode: verbs.WCRecv, ByteLen: p.reportedLength(uint32(n)) + grh})
	return dst
}

// notify consumes a receive of the peer for a WRITE_WITH_IMM.
func (q *fakeQP) notify(wr *verbs.SendWR) {
	imm := wr.Imm
	if q.wire.imm != nil {
		imm = q.wire.imm(imm)
	}
	p := q.wire.qps[q.peer]
	n := uint32(0)
	if wr.NumSGE > 0 {
		n = wr.SGE[0].Length
	}
	p.cfg.RecvCQ.(*fakeCQ).push(verbs.WC{
		WRID: p.takeRecv().WRID, QPN: p.num, Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, Imm: imm, ByteLen: p.reportedLength(n),
	})
}

// reportedLength returns the length that a completion reports for n bytes of payload.
func (q *fakeQP) reportedLength(n uint32) uint32 {
	if q.wire.length != nil {
		return q.wire.length(n)
	}
	return n
}

func (q *fakeQP) takeRecv() *verbs.RecvWR {
	if q.head == q.tail {
		panic("message without a receive")
	}
	r := &q.recvs[q.head%len(q.recvs)]
	q.head++
	return r
}

// bytes returns registered memory, and panics where a NIC would report an error.
func (w *wire) bytes(key uint32, addr uint64, n uint32) []byte {
	m := w.mem[key]
	off := addr - m.Addr()
	return m.Bytes()[off : off+uint64(n)]
}
