package transport

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/metrics"
	"ibverbx/verbs"
)

const (
	// tickTime is the time without a poll after which the Plugin polls a Shard.
	tickTime = 10 * time.Millisecond
	// joinTime limits establishing a connection.
	joinTime = 30 * time.Second
	// forgetTime is the time after which an established connection is closed that its communicator has not fetched.
	forgetTime = 60 * time.Second
	// orphanTime is forgetTime after Shard.Close.
	orphanTime = 5 * time.Second
	// lingerTime limits the wait of a cleanly closed connection for its peer.
	lingerTime = 2 * time.Second
	// finishTime limits the wait of Shard.Close for such connections.
	finishTime = 500 * time.Millisecond
	// exitTime limits the time that the process needs for exiting.
	exitTime = 200 * time.Millisecond
	// defaultDeadAfter is Options.DeadAfter.
	defaultDeadAfter = 15 * time.Second
)

// Plugin is the transport of a process. All methods are safe for concurrent use.
type Plugin struct {
	opts Options
	log  *slog.Logger
	// nics are sets of NICs on the same addresses, and workers the goroutine of each, nil with one set.
	nics     []*nics
	workers  []*worker
	listener *bootstrap.Listener
	key      [32]byte // random; handles carry it
	// secret is the key of Options.TokenFile, or nil.
	secret []byte
	server *metrics.Server
	// incarnation identifies the process to its peers.
	incarnation uint64

	shards   registry[Shard]
	comms    registry[Comm]
	waiters  registry[Listener]
	attempts registry[attempt]
	regions  registry[Region]
	// serials counts attempts.
	serials atomic.Uint32

	// stirred wakes the goroutine that polls.
	stirred chan struct{}

	mu         sync.Mutex
	waiting    map[connID]*Listener
	localPeers map[localPeerKey]*localPeer
	// tries counts the attempts to share memory, by the peer's incarnation.
	tries map[uint64]int
	// past sums up the statistics of closed connections.
	past Totals
	// down counts the connections that have lost a rail, by rail.
	down [maxRails]int
}

// Start opens the NICs and the port of a process. The Plugin stays open until the process exits.
func Start(o Options, log *slog.Logger) (*Plugin, error) {
	if o.DeadAfter == 0 {
		o.DeadAfter = defaultDeadAfter
	}
	p := &Plugin{
		opts: o, log: log, stirred: make(chan struct{}, 1), waiting: map[connID]*Listener{}, localPeers: map[localPeerKey]*localPeer{}, tries: map[uint64]int{},
		incarnation: uint64(time.Now().UnixNano()) & (1<<53 - 1),
	}
	_, _ = rand.Read(p.key[:]) // it never fails
	var err error
	if o.TokenFile != "" {
		if p.secret, err = bootstrap.TokenKey(o.TokenFile); err != nil {
			return nil, err
		}
	}
	if err := p.open(); err != nil {
		for _, n := range p.nics {
			err = errors.Join(err, n.close.Close())
		}
		return nil, err
	}
	if o.Metrics != "" {
		if p.server, err = metrics.NewProcessServer(context.Background(), o.Metrics); err != nil {
			log.Warn("no metrics", slog.Any("cause", err))
		}
	}
	go p.serve()
	go p.pollIdle()
	return p, nil
}

// open opens the NICs and the port.
func (p *Plugin) open() (err error) {
	if p.nics, err = openNICs(&p.opts); err != nil {
		return err
	}
	host := ""
	if addrs := p.nics[0].addrs; len(addrs) == 1 {
		host = addrs[0].String()
	}
	if p.listener, err = bootstrap.Listen(context.Background(), net.JoinHostPort(host, "0"), p.auth(p.key)); err != nil {
		return err
	}
	p.workers = make([]*worker, len(p.nics))
	if len(p.nics) > 1 {
		if p.opts.Runs == nil {
			p.opts.Runs = make([]atomic.Uint32, len(p.nics))
		}
		for i := range p.workers {
			p.workers[i] = newWorker(i, &p.opts.Runs[i])
		}
	}
	return nil
}

// auth returns the configuration of connections to the process with a key.
func (p *Plugin) auth(key [32]byte) bootstrap.Config {
	if p.secret != nil {
		mac := hmac.New(sha256.New, p.secret)
		mac.Write(key[:])
		mac.Sum(key[:0])
	}
	return bootstrap.Config{
		Key: key[:], DeadAfter: p.opts.DeadAfter, Incarnation: p.incarnation, HandshakeTimeout: joinTime,
		MaxHandshakes: 4096, Backlog: 4096,
	}
}

// Describe returns the rails in use, for the user.
func (p *Plugin) Describe() string { return strings.Join(p.nics[0].names, ", ") }

// Speed returns the sum of the rails' rates in Mbit/s, 0 if unknown.
func (p *Plugin) Speed() int { return p.nics[0].speed }

// Software reports whether the NICs are software NICs.
func (p *Plugin) Software() bool { return p.nics[0].soft != nil }

// PCIPath returns the directory of the first NIC's PCI device, empty for software NICs.
func (p *Plugin) PCIPath() string { return p.nics[0].pciPath }

// Rails returns the number of rails.
func (p *Plugin) Rails() int { return len(p.nics[0].rails) }

// SetRail takes the port of a software NIC up or down, for tests.
func (p *Plugin) SetRail(rail int, up bool) error {
	if soft := p.nics[0].soft; rail < 0 || rail >= len(soft) {
		return verbs.Invalidf("rail %d of %d software NICs", rail, len(soft))
	}
	for _, n := range p.nics {
		n.soft[rail].SetPort(up)
	}
	return nil
}

// serve passes each connection to the Listener that it names.
func (p *Plugin) serve() {
	for {
		conn, err := p.listener.Accept(context.Background())
		if err != nil {
			return
		}
		go p.admit(conn)
	}
}

func (p *Plugin) admit(conn *bootstrap.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), joinTime)
	defer cancel()
	m, err := conn.Recv(ctx)
	g, ok := decodeGreeting(&m)
	if err != nil || !ok {
		_ = conn.CloseWith("the first message names no connection")
		return
	}
	if g.conn == (connID{}) {
		p.welcome(conn, &g)
		return
	}
	p.mu.Lock()
	l := p.waiting[g.conn]
	p.mu.Unlock()
	if l == nil || !l.admit(conn, &g) {
		_ = conn.CloseWith("the listener is closed")
	}
}

// stir starts the polling goroutine's turns.
func (p *Plugin) stir() {
	select {
	case p.stirred <- struct{}{}:
	default:
	}
}

// pollIdle polls the Shards that NCCL does not poll, while they have connections.
func (p *Plugin) pollIdle() {
	for range p.stirred {
		for p.tick() {
			time.Sleep(tickTime)
		}
	}
}

// tick reports whether a Shard has connections, or an attempt is left.
func (p *Plugin) tick() (busy bool) {
	if all := p.attempts.all.Load(); all != nil {
		for _, a := range *all {
			if a != nil {
				a.expire()
				busy = true
			}
		}
	}
	if all := p.shards.all.Load(); all != nil {
		for _, s := range *all {
			if s != nil {
				busy = s.tick() || busy
			}
		}
	}
	return busy
}

// railChanged logs that the first connection has lost a rail, and that the last one has recovered it.
func (p *Plugin) railChanged(rail int, down bool, cause error) {
	p.mu.Lock()
	change := -1
	if down {
		change = 1
	}
	p.down[rail] += change
	count := p.down[rail]
	p.mu.Unlock()
	switch {
	case down && count == 1:
		p.log.Warn("rail lost", slog.String("rail", p.nics[0].names[rail]), slog.Any("cause", cause))
	case !down && count == 0:
		p.log.Warn("rail recovered", slog.String("rail", p.nics[0].names[rail]))
	}
}

// retire keeps the statistics of a connection that is being closed, and forgets its number.
func (p *Plugin) retire(c *Comm) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.past.add(c)
	p.past.Stats = p.past.Past()
	p.comms.remove(c.number)
}

// Totals are the statistics of several connections.
type Totals struct {
	ibverbx.Stats
	// Shared counts the bytes sent through shared memory. Stats.Rails does not include them.
	Shared uint64
}

func (t *Totals) add(c *Comm) {
	s := c.session.QP.Stats()
	if c.group.localPeer != nil {
		for i := range s.Rails {
			t.Shared += s.Rails[i].Bytes
		}
		s.Rails, s.Lanes = nil, nil
	}
	t.Add(&s)
}

// Stats sums up the statistics of all connections.
func (p *Plugin) Stats() Totals {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := Totals{Shared: p.past.Shared}
	sum.Add(&p.past.Stats)
	if all := p.comms.all.Load(); all != nil {
		for _, c := range *all {
			if c != nil && c.session != nil {
				sum.add(c)
			}
		}
	}
	return sum
}

// farewell reports the received messages to all senders, and closes the connections: a sender may lack the last acknowledgements.
func (p *Plugin) farewell() {
	ctx, cancel := context.WithTimeout(context.Background(), exitTime)
	defer cancel()
	all := p.comms.all.Load()
	if all == nil {
		return
	}
	for _, c := range *all {
		if c == nil || c.sends {
			continue
		}
		c.sayReceived(ctx, c.done.Load()) // without the lock: perhaps exit was called in a signal handler
		c.conn.Farewell()
	}
	for _, c := range *all {
		if c == nil || c.sends {
			continue
		}
		select {
		case <-c.conn.Done():
		case <-ctx.Done():
		}
	}
}

// Finish closes the connections to all peers, and prints statistics if Options.Stats is set. The process is about to exit.
func (p *Plugin) Finish(out io.Writer) {
	p.farewell()
	if !p.opts.Stats {
		return
	}
	s := p.Stats()
	for _, r := range s.Rails {
		name := fmt.Sprint(r.Rail)
		if r.Rail < len(p.nics[0].names) {
			name = p.nics[0].names[r.Rail]
		}
		fmt.Fprintf(out, "ibverbx: process %d: rail %s: %d bytes sent, lost %d times, recovered %d times\n", os.Getpid(), name, r.Bytes, r.Lost, r.Recovered)
	}
	if s.Shared > 0 {
		fmt.Fprintf(out, "ibverbx: process %d: shared memory: %d bytes sent\n", os.Getpid(), s.Shared)
	}
	fmt.Fprintf(out, "ibverbx: process %d: %d requests, %d lanes lost, %d requests moved to other lanes\n", os.Getpid(), s.Completed, s.Deaths, s.Replayed)
}

// addrs of the port that peers dial.
func (p *Plugin) dialed() (addrs []netip.Addr, port uint16) {
	ap, err := netip.ParseAddrPort(p.listener.Addr().String())
	if err != nil {
		return nil, 0
	}
	return p.nics[0].addrs, ap.Port()
}
