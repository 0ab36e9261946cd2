package measure

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"time"

	"ibverbx/verbs"
)

// settle is the time between the connection of flows and their first post, in which hosts exchange the messages of a new connection.
const settle = 50 * time.Microsecond

// flowConfig describes a flow: WRITEs or READs of one host to the memory of another, over a dedicated QP.
type flowConfig struct {
	// From is the host that posts.
	From *host
	// To is the other host. It is wrapped if From is.
	To *host
	// Read makes the messages READs. Their bytes travel from To to From.
	Read bool
	// MessageBytes is the size of a message, a multiple of 8. Zero means 64 KiB.
	MessageBytes int
	// Depth is the largest number of outstanding messages. Zero means 128.
	Depth int
	// Bytes is the payload to move. Zero means that the flow runs until all other flows are done.
	Bytes int
	// Every is the time between two messages. Latency counts from the due time of a message, even if Depth delays its post. Zero means that
	// each completion starts a message.
	Every time.Duration
	// Start is the due time of the first message after the start of the run.
	Start time.Duration
	// AckTimeout is the code of the acknowledgement timeout of an RC QP (verbs.AckTimeout).
	// Zero means that of verbs.QP.Connect. Wrapped hosts ignore it.
	AckTimeout uint8
}

// flow is a flow of a world and its measurements.
type flow struct {
	cfg     flowConfig
	world   *world
	from    port
	to      port
	slots   []slot // ring of outstanding messages, oldest at head
	head    int    // slot of the oldest message
	count   int    // outstanding messages
	posted  int    // messages posted so far
	bytes   int    // payload of messages that have ended
	startAt int64  // time at which the first message is due
	first   int64  // time of the first post
	last    int64  // time of the last completion
	stopped bool   // no more messages are posted
	wcs     [64]verbs.WC
	latency latencies
}

// port is one end of a flow.
type port struct {
	host *host
	cq   verbs.CQ
	qp   verbs.QP
	mem  *verbs.Memory
	mr   verbs.MR
}

// slot is a piece of memory at both ends, for one message at a time.
type slot struct {
	due  int64 // time at which the message was to be posted
	used bool  // it has held a message
}

// addFlow connects a flow.
func (w *world) addFlow(cfg flowConfig) (*flow, error) {
	cfg.MessageBytes, cfg.Depth = cmp.Or(cfg.MessageBytes, 64<<10), cmp.Or(cfg.Depth, 128)
	f := &flow{cfg: cfg, world: w, slots: make([]slot, cfg.Depth), from: port{host: cfg.From}, to: port{host: cfg.To}}
	w.flows = append(w.flows, f)
	for _, p := range []*port{&f.from, &f.to} {
		if err := p.open(&cfg); err != nil {
			return nil, err
		}
	}
	return f, f.bothWays(func(from, to *port) error { return join(from, to, cfg.AckTimeout) })
}

// bothWays calls do for each direction of the flow.
func (f *flow) bothWays(do func(from, to *port) error) error {
	if err := do(&f.from, &f.to); err != nil {
		return err
	}
	return do(&f.to, &f.from)
}

// open creates the queues and the memory of a port. The world closes them.
func (p *port) open(cfg *flowConfig) (err error) {
	closers := &p.host.world.open
	if p.cq, err = p.host.context.CreateCQ(verbs.CQConfig{Depth: 2 * cfg.Depth}); err != nil {
		return err
	}
	closers.Add(p.cq.Close)
	if p.qp, err = p.host.pd.CreateQP(verbs.QPConfig{
		Type: verbs.RC, SendCQ: p.cq, RecvCQ: p.cq, MaxSendWR: cfg.Depth, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1,
	}); err != nil {
		return err
	}
	closers.Add(p.qp.Close)
	if p.mem, err = verbs.AllocMemory(cfg.Depth*cfg.MessageBytes, nil); err != nil {
		return err
	}
	closers.Add(p.mem.Free)
	if p.mr, err = p.host.pd.RegisterMemory(p.mem, verbs.AccessAll); err != nil {
		return err
	}
	closers.Add(p.mr.Close)
	return nil
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

// gidIndex is the entry of softnic's GID table with the IPv4 address.
const gidIndex = 1

// done reports whether a flow has moved all its bytes.
func (f *flow) done() bool { return f.cfg.Bytes == 0 || f.bytes >= f.cfg.Bytes }

// turn polls and posts. It reports whether it did anything.
func (f *flow) turn() (busy bool, err error) {
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

// mayPost reports whether a message is due and can be posted.
func (f *flow) mayPost() bool {
	return !f.blocked() && f.world.now >= f.dueAt()
}

// blocked reports whether the flow cannot post before a completion, or ever again.
func (f *flow) blocked() bool {
	return f.count == len(f.slots) || f.stopped || (f.cfg.Bytes > 0 && f.posted*f.cfg.MessageBytes >= f.cfg.Bytes)
}

// dueAt is the time at which the next message is due.
func (f *flow) dueAt() int64 { return f.startAt + int64(f.posted)*int64(f.cfg.Every) }

// due is the time of the flow's next timed post, never if it waits for something else.
func (f *flow) due() int64 {
	at := f.dueAt()
	if at <= f.world.now || f.blocked() {
		return never
	}
	return at
}

func (f *flow) post() error {
	i := (f.head + f.count) % len(f.slots)
	if err := f.check(i); err != nil {
		return err
	}
	s := &f.slots[i]
	s.used, s.due = true, f.world.now
	if f.cfg.Every > 0 {
		s.due = f.dueAt()
	}
	op := verbs.OpRDMAWrite
	if f.cfg.Read {
		op = verbs.OpRDMARead
	}
	fill(f.source().piece(i, f.cfg.MessageBytes), uint64(f.posted)+1)
	wr := verbs.SendWR{
		WRID: uint64(f.posted), Opcode: op, Flags: verbs.SendSignaled,
		RemoteAddr: f.to.mr.Addr() + uint64(i*f.cfg.MessageBytes), RKey: f.to.mr.RKey(),
	}
	wr.SetSGE(verbs.SGE{Addr: f.from.mr.Addr() + uint64(i*f.cfg.MessageBytes), Length: uint32(f.cfg.MessageBytes), LKey: f.from.mr.LKey()})
	if n, err := f.from.qp.PostSend([]verbs.SendWR{wr}); n != 1 {
		return fmt.Errorf("post of message %d with %d outstanding: %w", f.posted, f.count, err)
	}
	if f.posted == 0 {
		f.first = f.world.now
	}
	f.posted++
	f.count++
	f.from.host.touched = true
	return nil
}

// source is the port from which the bytes travel.
func (f *flow) source() *port {
	if f.cfg.Read {
		return &f.to
	}
	return &f.from
}

// sink is the port to which the bytes travel.
func (f *flow) sink() *port {
	if f.cfg.Read {
		return &f.from
	}
	return &f.to
}

// ended handles the completion of the oldest message.
func (f *flow) ended(wc *verbs.WC) error {
	if err := wc.Err(); err != nil {
		return err
	}
	if want := uint64(f.posted - f.count); wc.WRID != want {
		return fmt.Errorf("completion of message %d, want %d", wc.WRID, want)
	}
	if err := f.check(f.head); err != nil {
		return err
	}
	f.latency = append(f.latency, f.world.now-f.slots[f.head].due)
	f.head = (f.head + 1) % len(f.slots)
	f.count--
	f.bytes += f.cfg.MessageBytes
	f.last = f.world.now
	return nil
}

// check compares the bytes of a message at both ends. It is called at the completion, and again
// before the slot is reused, to find late writes.
func (f *flow) check(i int) error {
	if f.slots[i].used && !bytes.Equal(f.from.piece(i, f.cfg.MessageBytes), f.to.piece(i, f.cfg.MessageBytes)) {
		return fmt.Errorf("at %v the bytes of a completed message are not those that were sent", time.Duration(f.world.now))
	}
	return nil
}

// checkAll checks the slots of all completed messages.
func (f *flow) checkAll() error {
	for k := f.count; k < len(f.slots); k++ {
		if err := f.check((f.head + k) % len(f.slots)); err != nil {
			return err
		}
	}
	return nil
}

func (p *port) piece(i, size int) []byte { return p.mem.Bytes()[i*size : (i+1)*size] }

// fill writes bytes that differ between messages.
func fill(b []byte, message uint64) {
	x := message * 0x9e3779b97f4a7c15
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, x)
		x += 0x632be59bd9b4e019
	}
}
