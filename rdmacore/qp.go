//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"ibverbx/verbs"
)

// qp is a queue pair. post.go fills its queues, qp_state.go moves it between states.
type qp struct {
	pd             *pd
	h, key         handle
	num            uint32
	typ            verbs.QPType
	sendCQ, recvCQ *cq
	srq            *srq
	port           uint8
	gid            verbs.GIDEntry // the source address of packets
	path           verbs.PathConfig
	maxMsg         uint64
	maxInline      int
	maxSendSGE     int
	maxRecvSGE     int

	// ctl guards attr and psn.
	ctl  sync.Mutex
	attr verbs.QPAttr // as set by Modify; the device has the current State
	psn  uint32       // the PSN reported by Endpoint

	send sendSide
	recv recvSide
}

// sendSide records whether sends can be posted, and otherwise the reason. Posts pass a gate in C,
// which follows ready. They read sendSide only when the gate is shut.
type sendSide struct {
	side                     // ready from RTS on
	state     verbs.QPState  // the last state set by Modify
	heapWRs   *verbs.SendWR  // never set; see cq.into
	datagrams []verbs.SendWR // buffer for UD requests with the library's handles
}

// recvSide is the counterpart of sendSide for receives.
type recvSide struct {
	side                  // ready unless the state is RESET or the QP has an SRQ
	heapWRs *verbs.RecvWR // never set; see cq.into
}

// side has the common fields of both sides.
type side struct {
	mu     sync.Mutex
	ready  bool // requests can be posted; the gate in C follows it
	closed bool
	depth  int // in requests
}

// gateSide names one of the two gates of a QP.
type gateSide int

const (
	sendGate gateSide = iota
	recvGate
)

// gate opens or shuts a side, whose lock is held. When it returns, no goroutine is posting
// through a shut gate.
func (q *qp) gate(side gateSide, open bool) {
	for !cSetGate(q.h, side, open) {
		runtime.Gosched()
	}
}

var _ verbs.QP = (*qp)(nil)

// Opcodes that may be posted, by transport (IBTA 1.4 table 38).
const (
	legalUD = 1<<verbs.OpSend | 1<<verbs.OpSendWithImm
	legalUC = legalUD | 1<<verbs.OpRDMAWrite | 1<<verbs.OpRDMAWriteWithImm
	legalRC = legalUC | 1<<verbs.OpRDMARead | 1<<verbs.OpAtomicCmpAndSwp | 1<<verbs.OpAtomicFetchAndAdd
)

// datagramBatch is the number of datagrams posted per call into C.
const datagramBatch = 64

func (d *pd) createQP(cfg verbs.QPConfig) (*qp, error) {
	x := d.ctx
	q := &qp{pd: d, typ: cfg.Type, port: max(cfg.Port, 1), path: cfg.Path, maxSendSGE: cmp.Or(cfg.MaxSendSGE, 1), maxRecvSGE: cmp.Or(cfg.MaxRecvSGE, 1)}
	if cfg.Path.Seal != nil {
		return nil, fmt.Errorf("%w: QPConfig.Path.Seal is set: only software NICs seal packets", verbs.ErrNotSupported)
	}
	legal, err := x.checkQPConfig(&cfg)
	if err != nil {
		return nil, err
	}
	if err := q.choosePath(&cfg); err != nil {
		return nil, err
	}
	if err := q.acquire(cfg); err != nil {
		return nil, err
	}
	in := qpInit{
		typ: cfg.Type, sendCQ: q.sendCQ.h, recvCQ: q.recvCQ.h, maxSendWR: cfg.MaxSendWR, maxRecvWR: cfg.MaxRecvWR,
		maxSendSGE: q.maxSendSGE, maxRecvSGE: q.maxRecvSGE, maxInline: cfg.MaxInline, maxMsg: q.maxMsg, legal: legal, signalAll: cfg.SignalAll,
	}
	if q.srq != nil {
		in.srq = q.srq.h
	}
	x.qpNumbers.Lock()
	made, errno := cCreateQP(x.lib, d.h, &in)
	x.qpNumbers.Unlock()
	if errno != 0 {
		x.mu.Lock()
		defer x.mu.Unlock()
		q.release()
		return nil, errnoErr(errno)
	}
	q.h, q.key, q.num, q.maxInline = made.h, made.key, made.num, made.maxInline
	runtime.AddCleanup(q, cFreeQP, q.h) // not earlier: a goroutine may be posting during Close
	q.psn = randomPSN()
	q.send.depth, q.recv.depth = cfg.MaxSendWR, cfg.MaxRecvWR
	if q.typ == verbs.UD {
		q.send.datagrams = make([]verbs.SendWR, datagramBatch)
	}
	x.events.add(q.key, verbs.Event{QP: q})
	x.mu.Lock()
	defer x.mu.Unlock()
	d.qps.add(q)
	return q, nil
}

func randomPSN() uint32 { return rand.Uint32() & 0xffffff }

// checkQPConfig returns the opcodes that the QP accepts, or an error about the Config.
func (x *nicContext) checkQPConfig(cfg *verbs.QPConfig) (legal uint8, err error) {
	switch cfg.Type {
	case verbs.RC:
		legal = legalRC
	case verbs.UC:
		legal = legalUC
	case verbs.UD:
		legal = legalUD
	default:
		return 0, verbs.Invalidf("QPConfig.Type is %d: want RC, UC or UD", cfg.Type)
	}
	if needs := map[verbs.QPType]verbs.Capabilities{verbs.UC: verbs.CapUC, verbs.UD: verbs.CapUD}[cfg.Type]; needs&^x.capabilities() != 0 {
		return 0, fmt.Errorf("%w: the device has no %s QPs", verbs.ErrNotSupported, cfg.Type)
	}
	if cfg.SRQ != nil && cfg.MaxRecvWR != 0 {
		return 0, verbs.Invalidf("QPConfig.MaxRecvWR is %d: with an SRQ it must be 0", cfg.MaxRecvWR)
	}
	for _, f := range [...]struct {
		name       string
		value, max int
	}{
		{"MaxSendWR", cfg.MaxSendWR, x.attr.MaxQPWR},
		{"MaxRecvWR", cfg.MaxRecvWR, x.attr.MaxQPWR},
		{"MaxSendSGE", cfg.MaxSendSGE, x.attr.MaxSGE},
		{"MaxRecvSGE", cfg.MaxRecvSGE, x.attr.MaxSGE},
		{"MaxInline", cfg.MaxInline, 1 << 20},
		{"Port", int(cfg.Port), x.attr.Ports},
	} {
		if f.value < 0 || f.value > f.max {
			return 0, verbs.Invalidf("QPConfig.%s is %d: want 0 to %d", f.name, f.value, f.max)
		}
	}
	return legal, nil
}

// choosePath determines the source address and the maximum message length of the QP: the port's
// limit, or one packet on UD.
func (q *qp) choosePath(cfg *verbs.QPConfig) error {
	x := q.pd.ctx
	port, err := x.port(int(q.port))
	if err != nil {
		return err
	}
	index, err := cfg.Path.Check(&port, cfg.GID)
	if err != nil {
		return err
	}
	rows, err := x.gids(int(q.port), port)
	if err != nil {
		return err
	}
	if index >= 0 {
		rows = slices.DeleteFunc(rows, func(r verbs.GIDEntry) bool { return r.Index != index })
		if len(rows) == 0 {
			return verbs.Invalidf("Path.GIDIndex is %d: that row of the GID table of port %d is empty", index, q.port)
		}
	}
	choice, err := ChooseGID(port.LinkLayer, rows, cfg.GID)
	if err != nil {
		return fmt.Errorf("port %d: %w", q.port, err)
	}
	q.gid, q.maxMsg = choice.Entry, port.MaxMsg
	if q.typ == verbs.UD {
		q.maxMsg = uint64(port.ActiveMTU.Bytes())
	}
	return nil
}

// acquire counts the QP as a user of its CQs and its SRQ. They must be open and belong to its
// context.
func (q *qp) acquire(cfg verbs.QPConfig) error {
	x := q.pd.ctx
	send, sendOK := cfg.SendCQ.(*cq)
	recv, recvOK := cfg.RecvCQ.(*cq)
	if !sendOK || send == nil || send.ctx != x {
		return verbs.Invalidf("QPConfig.SendCQ is nil or of another context")
	}
	if !recvOK || recv == nil || recv.ctx != x {
		return verbs.Invalidf("QPConfig.RecvCQ is nil or of another context")
	}
	var shared *srq
	if cfg.SRQ != nil {
		s, ok := cfg.SRQ.(*srq)
		if !ok || s == nil || s.pd != q.pd {
			return verbs.Invalidf("QPConfig.SRQ is nil or of another PD")
		}
		shared = s
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case send.closed || recv.closed:
		return verbs.Invalidf("QPConfig.SendCQ or RecvCQ is closed")
	case shared != nil && shared.closed:
		return verbs.Invalidf("QPConfig.SRQ is closed")
	}
	q.sendCQ, q.recvCQ, q.srq = send, recv, shared
	send.users++
	recv.users++
	if shared != nil {
		shared.users++
	}
	return nil
}

// release undoes acquire. The lock of the context is held.
func (q *qp) release() {
	q.sendCQ.users--
	q.recvCQ.users--
	if q.srq != nil {
		q.srq.users--
	}
}

func (q *qp) Num() uint32        { return q.num }
func (q *qp) Type() verbs.QPType { return q.typ }

func (q *qp) opError(op string, err error) error {
	return verbs.NewOpError(op, q.pd.ctx.dev.Name(), q.num, err)
}

// do runs f if the QP is open, and keeps it open until f returns.
func (q *qp) do(op string, f func() error) error {
	x := q.pd.ctx
	x.lifecycle.RLock()
	defer x.lifecycle.RUnlock()
	q.ctl.Lock()
	defer q.ctl.Unlock()
	if q.send.closed { // writers hold ctl too
		return q.opError(op, verbs.ErrClosed)
	}
	return q.opError(op, f())
}

func (q *qp) Close() error {
	return ignoreClosed(q.pd.ctx.do("close QP", q.destroy))
}

func (q *qp) destroy() error {
	x := q.pd.ctx
	x.qpNumbers.Lock()
	defer x.qpNumbers.Unlock()
	q.ctl.Lock()
	defer q.ctl.Unlock()
	if q.send.closed {
		return nil
	}
	q.stop(true)
	errno := x.events.removeDuring(q.key, func() syscall.Errno {
		defer q.lockCQs()()
		errno := x.destroyed(cDestroyQP(x.lib, q.h))
		if errno == 0 {
			q.discardCompletions()
		}
		return errno
	})
	if errno != 0 {
		q.reopen()
		return errnoErr(errno)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	q.release()
	dropFrom(q.pd, q.pd.qps, q)
	return nil
}

// stop makes both queues reject requests, and waits for ongoing posts.
func (q *qp) stop(closed bool) {
	for gate, s := range [...]*side{sendGate: &q.send.side, recvGate: &q.recv.side} {
		s.mu.Lock()
		s.ready, s.closed = false, closed
		q.gate(gateSide(gate), false)
		s.mu.Unlock()
	}
}

// reopen undoes stop, within the limits of the state.
func (q *qp) reopen() {
	for _, s := range [...]*side{&q.send.side, &q.recv.side} {
		s.mu.Lock()
		s.closed = false
		s.mu.Unlock()
	}
	q.reached(q.send.state)
}

// lockCQs locks the CQs of the QP against polling.
func (q *qp) lockCQs() (unlock func()) {
	first, second := q.sendCQ, q.recvCQ
	if first == second {
		first.mu.Lock()
		return first.mu.Unlock
	}
	if first.order > second.order {
		first, second = second, first
	}
	first.mu.Lock()
	second.mu.Lock()
	return func() {
		second.mu.Unlock()
		first.mu.Unlock()
	}
}

// discardCompletions removes the QP's completions from its CQs. Hardware drivers do so themselves.
// The CQs are locked.
func (q *qp) discardCompletions() {
	q.sendCQ.discard(q.num)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.discard(q.num)
	}
}
