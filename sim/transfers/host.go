package transfers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/transfer"
	"ibverbx/verbs"
)

// host is a machine that runs successive processes.
type host struct {
	world *world
	index int
	relay *relay

	// mu guards process, the current one. It is held while the process is replaced.
	mu      sync.Mutex
	process *process

	// incarnation numbers the process, and taken holds its consumed notifications. world.mu guards both.
	incarnation int
	taken       map[notice]bool
}

// process is one incarnation of a host.
type process struct {
	host        *host
	incarnation int
	node        *node.Node
	engine      *transfer.Engine
	nics        []*softnic.NIC
	// boxes holds the memory that each other host writes to.
	boxes []*transfer.Segment
	// ctx is canceled when the process is killed.
	ctx  context.Context
	kill context.CancelFunc
	work sync.WaitGroup
	// sent is closed when all senders have finished.
	sent    chan struct{}
	senders []*sender
}

// start creates a process. The caller holds mu.
func (h *host) start() error {
	w := h.world
	p := &process{host: h, sent: make(chan struct{})}
	p.ctx, p.kill = context.WithCancel(w.ctx)
	var err error
	p.node, err = node.New(w.ctx, node.Config{
		Auth: w.auth(h.index), Listen: "127.0.0.1:0", Shards: 1, LostTimeout: -1, Fabric: w.plan.Fabric, Open: p.open,
	})
	if err != nil {
		return err
	}
	if p.engine, err = transfer.New(transfer.Config{Node: p.node}); err != nil {
		return errors.Join(err, p.node.Close())
	}
	w.mu.Lock()
	p.incarnation, h.taken = h.incarnation, map[notice]bool{}
	w.mu.Unlock()
	h.process = p
	if err := errors.Join(p.allocShared(), p.listen()); err != nil {
		return err
	}
	h.relay.aim(p.node.Addr().String())
	return nil
}

// auth returns the authentication of a host. Sealing needs TLS.
func (w *world) auth(host int) bootstrap.Config {
	auth := bootstrap.Config{Name: fmt.Sprintf("host%d", host)}
	if auth.InsecurePlaintextOnLoopback = w.plan.Fabric.Unsealed; !w.plan.Fabric.Unsealed {
		auth.Token = []byte("the token of all simulated hosts")
	}
	return auth
}

// plug creates a NIC on a rail.
func (w *world) plug(rail int) (*softnic.NIC, error) {
	if !w.plan.Sockets {
		return softnic.New(w.links[rail], softnic.Config{})
	}
	link, err := softnic.NewUDPLink(&softnic.UDPConfig{Seed: w.plan.Seed + uint64(rail), Impairment: w.plan.Impairment})
	if err != nil {
		return nil, err
	}
	return softnic.New(link, softnic.Config{Addr: netip.MustParseAddr("127.0.0.1")})
}

// open opens a NIC on each rail.
func (p *process) open() (nics peer.NICs, err error) {
	nics.Close = func() (err error) {
		for _, nic := range p.nics {
			err = errors.Join(err, nic.Close())
		}
		return err
	}
	for rail := range p.host.world.plan.Rails {
		nic, err := p.host.world.plug(rail)
		if err != nil {
			return nics, err
		}
		p.nics = append(p.nics, nic)
		var ctx verbs.Context
		if ctx, err = nic.Open(); err != nil {
			return nics, err
		}
		nics.Rails = append(nics.Rails, ibverbx.RailConfig{Context: ctx})
	}
	return nics, nil
}

// Segments. The box of each other host has an area for each of its processes, because the next process may write before the notifications
// of its predecessor are consumed.
const (
	slotBytes   = 64 << 10
	slots       = 48
	areaBytes   = slots * slotBytes
	boxBytes    = (maxRestarts + 1) * areaBytes
	sourceName  = "source"
	sourceBytes = 256 << 10
)

func boxName(from int) string { return fmt.Sprintf("from-%d", from) }

// allocShared allocates the memory that other hosts use: a box for each of them, and a source that they read.
func (p *process) allocShared() error {
	source, err := p.engine.Alloc(sourceName, sourceBytes, transfer.SegmentConfig{DefaultAccess: transfer.Read})
	if err != nil {
		return err
	}
	fill(source.Bytes(), sourceSeed(p.host.index))
	source.Bytes()[0] = byte(p.incarnation)
	for from := range p.host.world.hosts {
		box, err := p.engine.Alloc(boxName(from), boxBytes, transfer.SegmentConfig{DefaultAccess: transfer.Read | transfer.Write})
		if err != nil {
			return err
		}
		p.boxes = append(p.boxes, box)
	}
	return nil
}

// begin starts the goroutines of the process. The caller holds mu.
func (h *host) begin() {
	p := h.process
	for to := range h.world.hosts {
		if to != h.index {
			p.senders = append(p.senders, newSender(p, to))
		}
	}
	p.work.Go(p.receive)
	var sending sync.WaitGroup
	for to := range h.world.hosts {
		if to != h.index {
			sending.Go(func() { p.streamTo(to) })
		}
	}
	for _, s := range p.senders {
		sending.Go(s.run)
	}
	p.work.Go(func() {
		sending.Wait()
		close(p.sent)
	})
}

// end stops the process: politely, by closing its sessions, or like a crash. The caller holds mu.
func (h *host) end(politely bool) error {
	p := h.process
	if p == nil {
		return nil
	}
	p.kill()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var err error
	if politely { // only answers are in flight
		p.work.Wait()
		err = errors.Join(p.engine.Close(ctx), p.node.Close())
	} else {
		err = p.node.Close()
		p.work.Wait() // the engine frees the memory
		err = errors.Join(err, p.engine.Close(ctx))
	}
	if err != nil {
		return fmt.Errorf("close host %d: %w", h.index, err)
	}
	return nil
}

func (h *host) stop() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return errors.Join(h.end(h.world.ctx.Err() == nil), h.relay.close())
}

// finished waits until the current process has sent everything.
func (h *host) finished() error {
	select {
	case <-h.process.sent:
		return nil
	case <-h.world.ctx.Done():
		return h.world.ctx.Err()
	}
}

// suffer injects a fault and waits until it is over. It reports whether the fault was possible.
func (h *host) suffer(f Fault) bool {
	switch f.Kind {
	case Restart:
		return h.restart()
	case Disconnect:
		return h.relay.cut() > 0
	default:
	}
	h.mu.Lock()
	p := h.process
	nic := p.nics[f.Rail]
	h.mu.Unlock()
	var undo func()
	switch f.Kind {
	case PortDown:
		nic.SetPort(false)
		undo = func() { nic.SetPort(true) }
	case BlackHole:
		if h.world.plan.Sockets {
			nic.SetPort(false)
			undo = func() { nic.SetPort(true) }
			break
		}
		undo = h.cut(nic, f.Rail)
	case NICFailure:
		nic.Fail()
		undo = nic.Recover
		if h.world.plan.spare() {
			h.beginAnew(p, f)
		}
	case LaneFailure:
		return p.failFirstLane(nic, f.Rail)
	default:
		return false
	}
	h.world.sleep(f.For)
	undo()
	return true
}

// beginAnew allocates a segment on a host with a failed NIC, and moves bytes between it and another host, which opens it: the memory, and
// perhaps the session, are new on the other rails.
func (h *host) beginAnew(p *process, f Fault) {
	other := h.world.hosts[(h.index+1)%len(h.world.hosts)]
	other.mu.Lock()
	q := other.process
	other.mu.Unlock()
	name := fmt.Sprintf("anew on rail %d at %v", f.Rail, f.At)
	s, err := p.engine.Alloc(name, sourceBytes, transfer.SegmentConfig{DefaultAccess: transfer.Read})
	if err == nil {
		fill(s.Bytes(), uint64(f.At))
		err = errors.Join(q.fetch(h, name, "copy "+name, uint64(f.At), 0), p.fetch(other, sourceName, "source "+name, sourceSeed(other.index), 1))
	}
	if p.ctx.Err() != nil || q.ctx.Err() != nil || h.world.plan.restarted(err, transfer.ErrRestarted, transfer.ErrNotFound) {
		return // a process was killed, or has not allocated the source yet
	}
	if err != nil {
		h.world.broken("host %d with a failed NIC: %w", h.index, err)
	}
}

// fetch reads a host's segment into a new one, named to, and compares it from byte first on.
func (p *process) fetch(from *host, name, to string, seed uint64, first int64) error {
	there, err := p.engine.Peer(p.ctx, from.relay.addr())
	if err != nil && !errors.Is(err, verbs.ErrDeviceFatal) {
		return nil // the connection may be cut, or the process killed
	}
	var source *transfer.Remote
	if err == nil {
		source, err = there.Open(p.ctx, name, transfer.Read)
	}
	if err != nil {
		return err
	}
	s, err := p.engine.Alloc(to, sourceBytes, transfer.SegmentConfig{})
	if err != nil {
		return err
	}
	if err := there.Get(p.ctx, s.Slice(first, sourceBytes-first), source.At(first)).Wait(p.ctx); err != nil {
		return err
	}
	want := make([]byte, sourceBytes)
	fill(want, seed)
	if !bytes.Equal(s.Bytes()[first:], want[first:]) {
		return fmt.Errorf("host %d has read wrong bytes of %q", p.host.index, name)
	}
	return nil
}

// cut makes a rail lose all packets from a NIC to the current NICs of other hosts.
func (h *host) cut(nic *softnic.NIC, rail int) (undo func()) {
	link := h.world.links[rail]
	var others []*softnic.NIC
	for _, other := range h.world.hosts {
		if other == h {
			continue
		}
		other.mu.Lock()
		others = append(others, other.process.nics[rail])
		other.mu.Unlock()
	}
	for _, o := range others {
		link.Cut(nic, o)
	}
	return func() {
		for _, o := range others {
			link.Restore(nic, o)
		}
	}
}

// failFirstLane fails a queue pair on a rail, once there is one. It reports whether there was one before the process had sent everything.
func (p *process) failFirstLane(nic *softnic.NIC, rail int) bool {
	for !p.failLane(nic, rail) {
		select {
		case <-p.sent:
			return false
		case <-p.ctx.Done():
			return false
		case <-time.After(time.Millisecond):
		}
	}
	return true
}

// failLane fails a queue pair on a rail.
func (p *process) failLane(nic *softnic.NIC, rail int) bool {
	for _, other := range p.node.Peers() {
		for _, l := range other.Stats().QP.Lanes {
			if l.Rail == rail && nic.FailQP(l.QPN) == nil {
				return true
			}
		}
	}
	return false
}

// restart kills the process and starts another one.
func (h *host) restart() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.end(false); err != nil {
		h.world.fail(err)
		return false
	}
	w := h.world
	w.mu.Lock()
	h.incarnation++
	w.mu.Unlock()
	w.forgive(h.index, h.process.incarnation)
	if err := h.start(); err != nil {
		w.fail(fmt.Errorf("start host %d again: %w", h.index, err))
		return false
	}
	h.begin()
	return true
}
