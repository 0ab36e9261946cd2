package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/internal/service"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// lanes returns the number of data lanes in service on a rail of a Peer's session, or -1 without a session.
func lanes(p *Peer, rail int) int {
	if rails := p.Stats().QP.Rails; rail < len(rails) {
		return rails[rail].Up
	}
	return -1
}

// sharded configures a host with several shards.
func sharded(shards int) func(*Config) { return func(c *Config) { c.Shards = shards } }

// TestEventsReachEveryShard: a port goes down while the Node is idle. Sessions on all shards and
// their peers are notified. Operations continue over the other rail. When the port is up again, all
// lanes recover.
func TestEventsReachEveryShard(t *testing.T) {
	n := newNetwork(2)
	a := n.start(t, sharded(3))
	var peers []*Peer
	on := map[*shard]bool{}
	for range 3 {
		there, here := a.meet(n.start(t))
		peers = append(peers, there, here)
		on[there.shard] = true
	}
	if len(on) != 3 {
		t.Fatalf("3 sessions are on %d shards, want 3", len(on))
	}
	a.nics[0].SetPort(false)
	for _, p := range peers {
		eventually(t, "rail 0 has no lane", func() bool { return lanes(p, 0) == 0 })
	}
	for i := range 3 {
		a.do(peers[2*i], a.write(peers[2*i], 0, 1<<20, 1))
	}
	a.nics[0].SetPort(true)
	for _, p := range peers {
		eventually(t, "rail 0 has a lane again", func() bool { return lanes(p, 0) > 0 })
	}
	if s := a.node.Stats(); s.Losses != 0 {
		t.Errorf("Stats: got %+v, want no losses", s)
	}
}

// TestDeviceFatalWithTwoShards: a NIC fails. The sessions of all shards continue on the other one.
func TestDeviceFatalWithTwoShards(t *testing.T) {
	n := newNetwork(2)
	a, b := n.start(t, sharded(2)), n.start(t)
	one, _ := a.meet(b)
	two, _ := a.meet(n.start(t))
	jobs := []*job{a.write(one, 0, 2<<10, 1), a.write(two, 0, 2<<10, 1)} // memory cannot be registered later
	a.nics[1].Fail()
	for i, p := range []*Peer{one, two} {
		eventually(t, "rail 1 has no lane", func() bool { return lanes(p, 1) == 0 })
		a.do(p, jobs[i])
	}
	a.nics[1].Recover() // otherwise its objects could not be closed
}

// blocker is a Sink that holds the lock of its shard.
type blocker struct{ begun, release chan struct{} }

func (b *blocker) End(*service.Op, error) {
	close(b.begun)
	<-b.release
}

// TestSlowShardDoesNotStopOthers: a shard is blocked. Other shards work, and neither Submit to the blocked
// one nor Stats waits.
func TestSlowShardDoesNotStopOthers(t *testing.T) {
	n := newNetwork(1)
	a := n.start(t, sharded(2))
	slow, _ := a.meet(n.start(t))
	quick, _ := a.meet(n.start(t))
	j := a.job(slow, verbs.OpRDMAWrite, 0, 8)
	b := &blocker{make(chan struct{}), make(chan struct{})}
	j.Sink = b
	go slow.Service().Submit(&j.Op)
	<-b.begun
	for range 100 {
		a.do(quick, a.write(quick, 0, 8, 1))
	}
	waits := a.job(slow, verbs.OpRDMAWrite, 64, 8)
	slow.Service().Submit(&waits.Op)
	if s := a.node.Stats(); s.Ready != 2 || slow.Stats().State != StateReady {
		t.Errorf("Stats: got %+v, want 2 peers that are ready", s)
	}
	select {
	case err := <-waits.done:
		t.Errorf("an operation on the shard that is held up ended (%v)", err)
	default:
	}
	close(b.release)
	if err := waits.result(t); err != nil {
		t.Errorf("the operation that waited ended with %v, want no error", err)
	}
}

// TestNotificationBurst: many more notifications than receives arrive at once. All are delivered, in order.
func TestNotificationBurst(t *testing.T) {
	const count = 1000
	n := newNetwork(2)
	a, b := n.start(t), n.start(t)
	there, _ := a.meet(b)
	flow := &service.Flow{}
	jobs := make([]*job, count)
	for i := range jobs {
		jobs[i] = a.write(there, 0, 0, uint32(i))
		jobs[i].Flow = flow
	}
	for _, j := range jobs {
		there.Service().Submit(&j.Op)
	}
	for _, j := range jobs {
		if err := j.result(t); err != nil {
			t.Fatalf("a notification ended with %v, want no error", err)
		}
	}
	b.eventually("all notifications are there", func() bool { return b.count() == count })
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.IsSorted(b.imms) {
		t.Error("notifications of one Flow came out of order")
	}
}

// TestSmallBehindHuge: short operations are submitted behind several long ones. Each waits for about a window.
func TestSmallBehindHuge(t *testing.T) {
	const window, flows = 2 << 20, 8
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{Impairment: softnic.Impairment{Delay: 100 * time.Microsecond}})
	if err != nil {
		t.Fatalf("NewFaultLink: got %v, want no error", err)
	}
	n := network{link}
	a, b := n.start(t, func(c *Config) { c.Window = window }), n.start(t)
	there, _ := a.meet(b)
	remote := a.grantBy(there)
	huge := make([]*job, flows)
	for i := range huge {
		huge[i] = a.jobOn(there, remote, verbs.OpRDMARead, uint64(i)*256<<10, 256<<10) // each block is one fragment
		for range 31 {
			huge[i].Blocks = append(huge[i].Blocks, huge[i].Blocks[0])
		}
		there.Service().Submit(&huge[i].Op)
	}
	ended := func() (bytes uint64) {
		for _, j := range huge {
			bytes += stateOf(&j.Op).Done
		}
		return bytes
	}
	results := make(chan uint64, 1)
	for i := range uint64(5) {
		small := a.jobOn(there, remote, verbs.OpRDMAWrite, slabBytes-64*(i+1), 8)
		small.Sink = sinkFunc(func(error) { results <- ended() })
		there.shard.mu.Lock() // so that no operation completes between the check and Submit
		before := ended()
		there.Service().Submit(&small.Op)
		there.shard.unlock()
		if after := <-results; after-before > window+256<<10 {
			t.Errorf("%d bytes of long operations ended while a short one waited, want at most a window of %d", after-before, window)
		}
	}
	for _, j := range huge {
		if err := j.result(t); err != nil {
			t.Errorf("a long operation ended with %v, want no error", err)
		}
	}
}

// sinkFunc is a Sink that calls a function on completion.
type sinkFunc func(error)

func (f sinkFunc) End(_ *service.Op, err error) { f(err) }

// TestFlowsShare: two long operations get similar shares of the bandwidth.
func TestFlowsShare(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there, _ := a.meet(b)
	one, two := a.job(there, verbs.OpRDMAWrite, 0, 1<<20), a.job(there, verbs.OpRDMAWrite, 0, 64<<10)
	for range 63 {
		one.Blocks = append(one.Blocks, one.Blocks[0])
	}
	for range 1023 {
		two.Blocks = append(two.Blocks, two.Blocks[0])
	}
	ends := make(chan uint64, 2)
	for _, pair := range [][2]*job{{one, two}, {two, one}} {
		pair[0].Sink = sinkFunc(func(error) { ends <- stateOf(&pair[1].Op).Done })
	}
	there.shard.mu.Lock()
	var both sync.WaitGroup
	both.Go(func() { there.Service().Submit(&one.Op) })
	both.Go(func() { there.Service().Submit(&two.Op) })
	both.Wait()
	there.shard.unlock()
	if other := <-ends; other < 32<<20 {
		t.Errorf("when the first of two operations of 64 MiB ended, %d bytes of the other had, want more than half", other)
	}
	<-ends
}

// TestCancel: a canceled operation fails with ErrCanceled once none of its requests is outstanding,
// and others continue.
func TestCancel(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there, _ := a.meet(b)
	flow := &service.Flow{}
	jobs := make([]*job, 60)
	for i := range jobs {
		jobs[i] = a.job(there, verbs.OpRDMAWrite, 0, slabBytes)
		if i%2 == 0 {
			jobs[i].Flow = flow
		}
	}
	there.shard.mu.Lock() // keeps the jobs waiting
	for _, j := range jobs {
		there.Service().Submit(&j.Op)
	}
	for i, j := range jobs {
		if i%3 == 0 {
			there.Service().Cancel(&j.Op)
		}
	}
	there.shard.unlock()
	canceled := 0
	for i, j := range jobs {
		err := j.result(t)
		switch {
		case errors.Is(err, ErrCanceled) && i%3 == 0:
			canceled++
		case err != nil:
			t.Errorf("operation %d ended with %v, want no error", i, err)
		}
	}
	if canceled == 0 {
		t.Error("no operation was canceled")
	}
	there.Service().Cancel(&jobs[0].Op) // it has completed already
	a.do(there, a.write(there, 0, 8, 1))
}

// TestBadOperations: invalid or oversized operations fail without side effects.
func TestBadOperations(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there, here := a.meet(b)
	for name, change := range map[string]func(*job){
		"no blocks":                func(j *job) { j.Blocks = nil },
		"opcode":                   func(j *job) { j.Blocks[0].Opcode = verbs.OpSend },
		"no local memory":          func(j *job) { j.Blocks[0].Local = nil },
		"no remote memory":         func(j *job) { j.Blocks[0].Remote = nil },
		"local range":              func(j *job) { j.Blocks[0].LocalOffset = slabBytes - 7 },
		"local overflow":           func(j *job) { j.Blocks[0].LocalOffset = 1<<64 - 1 },
		"remote range":             func(j *job) { j.Blocks[0].RemoteOffset = slabBytes - 7 },
		"remote overflow":          func(j *job) { j.Blocks[0].RemoteOffset = 1<<64 - 4 },
		"length overflow":          func(j *job) { j.Blocks[0].Length = 1<<64 - 1 },
		"notify after a read":      func(j *job) { j.Blocks[0].Opcode, j.Notify = verbs.OpRDMARead, true },
		"notify with a long write": func(j *job) { j.Blocks[0].Length, j.Notify = service.MaxNotify+1, true },
		"a region of another realm": func(j *job) {
			g, err := b.slab.Region(here.Service(), 0) // belongs to another Node
			if err != nil {
				t.Fatalf("Region: got %v, want no error", err)
			}
			j.Blocks = append(j.Blocks, j.Blocks[0])
			j.Blocks[1].Local = g
		},
	} {
		j := a.job(there, verbs.OpRDMAWrite, 0, 8)
		change(j)
		there.Service().Submit(&j.Op)
		if err := j.result(t); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: the operation ended with %v, want verbs.ErrInvalid", name, err)
		}
	}
	a.do(there, a.write(there, 0, 8, 1))
	if s := a.node.Stats(); s.Losses != 0 {
		t.Errorf("Stats: got %+v, want no losses", s)
	}
}

// TestManyGoroutines: many goroutines concurrently submit to one shard and help to run it.
func TestManyGoroutines(t *testing.T) {
	const goroutines, each = 16, 200
	n := newNetwork(2)
	a, b := n.start(t), n.start(t)
	there, here := a.meet(b)
	var all sync.WaitGroup
	for g := range goroutines {
		h, p := a, there
		if g%2 == 1 {
			h, p = b, here
		}
		all.Go(func() {
			for range each {
				at := uint64(g) * 8
				j := h.job(p, verbs.OpRDMAWrite, at, 8)
				p.Service().Submit(&j.Op)
				for waits := true; waits; {
					select {
					case err := <-j.done:
						if err != nil {
							t.Errorf("an operation ended with %v, want no error", err)
						}
						waits = false
					default:
						p.Service().Help()
					}
				}
			}
		})
	}
	all.Wait()
	if got := a.node.Stats().Counters.Operations + b.node.Stats().Counters.Operations; got != goroutines*each {
		t.Errorf("%d operations were counted, want %d", got, goroutines*each)
	}
}

// TestStatsRace: all statistics can be read from any goroutine while sessions open and close.
func TestStatsRace(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t, idleAfter(1e6)), n.start(t, idleAfter(1e6))
	there, here := a.meet(b)
	remote := a.grantBy(there)
	var all sync.WaitGroup
	var enough atomic.Bool
	for range 4 {
		all.Go(func() {
			for !enough.Load() {
				for _, p := range append(a.node.Peers(), b.node.Peers()...) {
					_ = fmt.Sprint(p, p.State(), p.Err(), p.Realm(), p.Stats(), p.Service().Session() == nil, p.Changed() == nil)
				}
				_ = fmt.Sprint(a.node.Stats(), b.node.Stats())
			}
		})
	}
	for i := range 20 {
		a.do(there, a.jobOn(there, remote, verbs.OpRDMAWrite, 0, 64<<10))
		if i%5 == 4 {
			lose(here)
		}
	}
	enough.Store(true)
	all.Wait()
}

// TestMessages: messages arrive in order, even while the session is parked and reopened.
func TestMessages(t *testing.T) {
	const count = 300
	n := newNetwork(1)
	a, b := n.start(t, idleAfter(1e6)), n.start(t, idleAfter(1e6))
	there, _ := a.meet(b)
	s := there.Service().Session()
	for i := range count {
		if err := s.Send(soon(t), service.IDs-1, binary.BigEndian.AppendUint32([]byte("message "), uint32(i))); err != nil {
			t.Fatalf("Send: got %v, want no error", err)
		}
		if i%10 == 0 {
			a.do(there, a.job(there, verbs.OpRDMAWrite, 0, 8))
		}
	}
	if err := s.Send(soon(t), 3, []byte("nobody is there")); err != nil {
		t.Errorf("Send: got %v, want no error", err)
	}
	b.eventually("all messages are there", func() bool { return b.node.Stats().Counters.Unclaimed == 1 })
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.messages) != count || !slices.IsSorted(b.messages) {
		t.Errorf("%d messages arrived, want %d in order", len(b.messages), count)
	}
}

// TestRoomForFailover: a shard accepts as many sessions as fit its completion queues. When a NIC fails, the
// message lanes of all sessions move to the other one, where they fit too. Data lanes stay.
func TestRoomForFailover(t *testing.T) {
	const sessions = 3
	n := newNetwork(2)
	a := n.start(t, func(c *Config) { c.cqDepth = sessions * (2*laneDepth + notifyDepth + recvDepth) })
	var hosts []*host
	var peers []*Peer
	var jobs []*job
	for range sessions {
		b := n.start(t)
		there, here := a.meet(b)
		hosts, peers, jobs = append(hosts, b), append(peers, there), append(jobs, a.write(there, 0, 64<<10, 1), b.write(here, 1<<20, 64<<10, 1))
	}
	if s := a.node.Stats(); s.Shards != 1 || peers[0].shard.capacity != sessions {
		t.Fatalf("there are %d shards with room for %d sessions, want 1 for %d", s.Shards, peers[0].shard.capacity, sessions)
	}
	a.nics[0].Fail()
	for i, p := range peers {
		eventually(t, "rail 0 has no lane", func() bool { return lanes(p, 0) == 0 })
		a.do(p, jobs[2*i])
		b := hosts[i]
		b.do(b.node.Peers()[0], jobs[2*i+1])
		b.eventually("the notification is there", func() bool { return b.count() == 1 })
	}
	a.eventually("all notifications are there", func() bool { return a.count() == sessions })
	if s := a.node.Stats(); s.Losses != 0 {
		t.Errorf("Stats: got %+v, want no losses", s)
	}
	a.nics[0].Recover() // otherwise its objects could not be closed
}

// TestCloseDoesNotStopOthers: a shard is blocked, and its Peer is closed or given up. Only that
// call waits, not Stats or a connecting peer.
func TestCloseDoesNotStopOthers(t *testing.T) {
	for name, end := range map[string]func(*Peer){
		"Close":    func(p *Peer) { _ = p.Close() },
		"given up": func(p *Peer) { p.node.giveUp(p) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(1)
			a, b, c := n.start(t, sharded(2)), n.start(t), n.start(t)
			_, slow := c.meet(a)
			if name == "given up" {
				_ = c.node.Close()
				wait(t, slow, StateLost)
			}
			slow.shard.mu.Lock()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				end(slow)
			}()
			time.Sleep(10 * time.Millisecond) // only gives a bug time to show
			others := make(chan struct{})
			go func() {
				defer close(others)
				_ = a.node.Stats()
				_, _ = a.node.Peer(soon(t), b.node.Addr().String())
			}()
			select {
			case <-others:
			case <-time.After(10 * time.Second):
				t.Error("Stats, or another peer, waits for a shard that is held up")
			}
			slow.shard.unlock()
			<-ended
			<-others
		})
	}
}
