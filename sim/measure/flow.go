package measure

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"ibverbx/reliable"
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// FlowConfig describes a flow: messages that one host writes into the memory of another, over
// a QP of its own.
type FlowConfig struct {
	// From and To are hosts of the world, both wrapped or both not.
	From, To *Host
	// MessageBytes is the size of a message, a multiple of 8. Zero means 64 KiB.
	MessageBytes int
	// Depth is how many messages are outstanding at the most. Zero means 128.
	Depth int
	// Bytes is what the flow moves in all. Zero means until all flows are done that do
	// have an end.
	Bytes int
	// Start is when the first message is posted.
	Start time.Duration
	// Every is the time between two messages; their latency counts from when they were
	// due, also if Depth did not let them go then. Zero means that a message is posted as
	// soon as one has ended.
	Every time.Duration
	// AckTimeout is the code of the acknowledgement timeout of an RC QP (verbs.AckTimeout).
	// Zero means that of verbs.QP.Connect. Flows of wrapped hosts do not look at it.
	AckTimeout uint8
}

// Flow is a flow of a world, and what it has measured.
type Flow struct {
	cfg     FlowConfig
	world   *World
	from    port
	to      port
	slots   []slot // ring of messages outstanding, oldest at head
	head    int
	count   int
	posted  int // messages
	bytes   int // of messages that have ended
	startAt int64
	first   int64 // when the first message was posted
	last    int64 // when the last one ended
	stopped bool
	wcs     [64]verbs.WC
	latency Latency
}

// port is one end of a flow.
type port struct {
	host *Host
	cq   verbs.CQ
	qp   verbs.QP
	mem  *verbs.Memory
	mr   verbs.MR
}

// slot is a piece of memory at both ends, for one message at a time.
type slot struct {
	due  int64 // when the message was to be posted
	used bool  // it has held a message
}

// AddFlow connects a flow.
func (w *World) AddFlow(cfg FlowConfig) (*Flow, error) {
	cfg.MessageBytes, cfg.Depth = cmp.Or(cfg.MessageBytes, 64<<10), cmp.Or(cfg.Depth, 128)
	if cfg.From == nil || cfg.To == nil || cfg.MessageBytes%8 != 0 {
		return nil, verbs.Invalidf("FlowConfig: want two hosts, and messages of a multiple of 8 bytes, not %d", cfg.MessageBytes)
	}
	f := &Flow{cfg: cfg, world: w, slots: make([]slot, cfg.Depth)}
	w.flows = append(w.flows, f)
	f.from.host, f.to.host = cfg.From, cfg.To
	for _, p := range []*port{&f.from, &f.to} {
		if err := p.open(&cfg); err != nil {
			return nil, err
		}
	}
	if err := join(&f.from, &f.to, cfg.AckTimeout); err != nil {
		return nil, err
	}
	return f, join(&f.to, &f.from, cfg.AckTimeout)
}

func (p *port) open(cfg *FlowConfig) (err error) {
	if p.cq, err = p.host.Context.CreateCQ(verbs.CQConfig{Depth: 2 * cfg.Depth}); err != nil {
		return err
	}
	if p.qp, err = p.host.pd.CreateQP(verbs.QPConfig{
		Type: verbs.RC, SendCQ: p.cq, RecvCQ: p.cq, MaxSendWR: cfg.Depth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
	}); err != nil {
		return err
	}
	if p.mem, err = verbs.AllocMemory(cfg.Depth*cfg.MessageBytes, nil); err != nil {
		return err
	}
	p.mr, err = p.host.pd.RegisterMemory(p.mem, verbs.AccessAll)
	return err
}

// join connects p to the QP of peer.
func join(p, peer *port, timeout uint8) error {
	remote, err := peer.qp.Endpoint()
	if err != nil {
		return err
	}
	if p.host.stepper != nil || timeout == 0 {
		return p.qp.Connect(remote)
	}
	local, err := p.qp.Endpoint()
	if err != nil {
		return err
	}
	attr := verbs.ConnectAttr(local, remote, 1, gidIndex)
	attr.Timeout, attr.RetryCount = timeout, 7
	return verbs.ConnectWith(p.qp, attr)
}

// gidIndex is the row of softnic's GID table that has the IPv4 address.
const gidIndex = 1

func (f *Flow) close() error {
	var errs []error
	for _, p := range []*port{&f.from, &f.to} {
		if p.qp != nil {
			errs = append(errs, p.qp.Close())
		}
		if p.cq != nil {
			errs = append(errs, p.cq.Close())
		}
		if p.mr != nil {
			errs = append(errs, p.mr.Close())
		}
	}
	return errors.Join(errs...)
}

func (f *Flow) free() error {
	var errs []error
	for _, p := range []*port{&f.from, &f.to} {
		if p.mem != nil {
			errs = append(errs, p.mem.Free())
		}
	}
	return errors.Join(errs...)
}

// done reports whether a flow has moved what it was to move.
func (f *Flow) done() bool { return f.cfg.Bytes == 0 || f.bytes >= f.cfg.Bytes }

// turn takes what has ended and posts what may be posted. It reports whether it did anything.
func (f *Flow) turn() (busy bool, err error) {
	for {
		n, err := f.from.cq.Poll(f.wcs[:])
		if err != nil {
			return busy, err
		}
		for i := range n {
			if err := f.ended(&f.wcs[i]); err != nil {
				return busy, err
			}
		}
		busy = busy || n > 0
		if n < len(f.wcs) {
			break
		}
	}
	for f.mayPost() {
		if err := f.post(); err != nil {
			return busy, err
		}
		busy = true
	}
	return busy, nil
}

// mayPost reports whether another message is to be posted now.
func (f *Flow) mayPost() bool {
	return !f.blocked() && f.world.now >= f.startAt && f.world.now >= f.dueAt()
}

// blocked reports whether the flow must not post before a message has ended, or ever again.
func (f *Flow) blocked() bool {
	return f.count == len(f.slots) || f.stopped || (f.cfg.Bytes > 0 && f.posted*f.cfg.MessageBytes >= f.cfg.Bytes)
}

// dueAt is when the next message is to be posted, if there is room for it.
func (f *Flow) dueAt() int64 { return f.startAt + int64(f.posted)*int64(f.cfg.Every) }

// due is the time at which the flow has something to do of its own.
func (f *Flow) due() int64 {
	at := max(f.startAt, f.dueAt())
	if at <= f.world.now || f.blocked() {
		return never
	}
	return at
}

func (f *Flow) post() error {
	i := (f.head + f.count) % len(f.slots)
	if err := f.check(i); err != nil {
		return err
	}
	s := &f.slots[i]
	s.used, s.due = true, f.world.now
	if f.cfg.Every > 0 {
		s.due = f.dueAt()
	}
	fill(f.from.piece(i, f.cfg.MessageBytes), uint64(f.posted)+1)
	wr := verbs.SendWR{
		WRID: uint64(f.posted), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		RemoteAddr: f.to.mr.Addr() + uint64(i*f.cfg.MessageBytes), RKey: f.to.mr.RKey(),
	}
	wr.SetSGE(verbs.SGE{Addr: f.from.mr.Addr() + uint64(i*f.cfg.MessageBytes), Length: uint32(f.cfg.MessageBytes), LKey: f.from.mr.LKey()})
	if n, err := f.from.qp.PostSend([]verbs.SendWR{wr}); n != 1 {
		return fmt.Errorf("message %d was refused with %d outstanding: %w", f.posted, f.count, err)
	}
	if f.posted == 0 {
		f.first = f.world.now
	}
	f.posted++
	f.count++
	f.from.host.touched = true
	return nil
}

// ended takes the completion of the oldest message.
func (f *Flow) ended(wc *verbs.WC) error {
	if err := wc.Err(); err != nil {
		return err
	}
	if want := uint64(f.posted - f.count); wc.WRID != want {
		return fmt.Errorf("message %d has ended, and it is the turn of %d", wc.WRID, want)
	}
	if err := f.check(f.head); err != nil {
		return err
	}
	f.latency.add(f.world.now - f.slots[f.head].due)
	f.head = (f.head + 1) % len(f.slots)
	f.count--
	f.bytes += f.cfg.MessageBytes
	f.last = f.world.now
	return nil
}

// check compares the bytes of a message that has ended with what was written: right when it
// ends, and again when its memory is used anew, because nothing may have come late.
func (f *Flow) check(i int) error {
	if f.slots[i].used && !bytes.Equal(f.from.piece(i, f.cfg.MessageBytes), f.to.piece(i, f.cfg.MessageBytes)) {
		return fmt.Errorf("at %v the bytes of a message that has ended are not those that were written", time.Duration(f.world.now))
	}
	return nil
}

// checkAll compares what the memory holds of messages that have ended.
func (f *Flow) checkAll() error {
	for k := f.count; k < len(f.slots); k++ {
		if err := f.check((f.head + k) % len(f.slots)); err != nil {
			return err
		}
	}
	return nil
}

func (p *port) piece(i, size int) []byte { return p.mem.Bytes()[i*size : (i+1)*size] }

// fill writes words that differ from message to message.
func fill(b []byte, message uint64) {
	x := message * 0x9e3779b97f4a7c15
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, x)
		x += 0x632be59bd9b4e019
	}
}

// Bytes is what has ended.
func (f *Flow) Bytes() int { return f.bytes }

// First is when the first message was posted, in nanoseconds of virtual time.
func (f *Flow) First() int64 { return f.first }

// Last is when the last message ended.
func (f *Flow) Last() int64 { return f.last }

// Latency returns how long messages took, from when they were due to their completion.
func (f *Flow) Latency() *Latency { return &f.latency }

// Counters returns what package reliable counted at both ends, or nothing if the hosts are not
// wrapped.
func (f *Flow) Counters() (from, to core.Stats) {
	if q, ok := f.from.qp.(reliable.Counted); ok {
		from = q.Stats()
	}
	if q, ok := f.to.qp.(reliable.Counted); ok {
		to = q.Stats()
	}
	return from, to
}
