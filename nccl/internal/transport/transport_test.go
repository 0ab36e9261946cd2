//go:build linux

package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"ibverbx/peer"
	"ibverbx/verbs"
)

// patience bounds every wait of the tests.
const patience = 2 * time.Minute

// testLog shows warnings in the log of a test.
func testLog(t *testing.T) *slog.Logger {
	var mu sync.Mutex
	done := false
	t.Cleanup(func() { mu.Lock(); done = true; mu.Unlock() })
	return slog.New(Handler(func(warn bool, line string) {
		mu.Lock()
		defer mu.Unlock()
		if warn && !done {
			t.Log(line)
		}
	}))
}

// plugin starts a Plugin with two rails.
func plugin(t *testing.T, o Options) *Plugin {
	t.Helper()
	if o.Addrs == nil {
		o.Addrs = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")}
	}
	if o.Link == "" {
		o.Link = peer.LinkUDP // both ends are in one process
	}
	p, err := Start(o, testLog(t))
	if err != nil {
		t.Fatalf("Start: got %v, want no error", err)
	}
	return p
}

// shard opens a Shard.
func shard(t *testing.T, p *Plugin) *Shard {
	t.Helper()
	s, _, err := p.Open()
	if err != nil {
		t.Fatalf("Open: got %v, want no error", err)
	}
	return s
}

// until calls f until it returns true.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	for limit := time.Now().Add(patience); !f(); runtime.Gosched() {
		if time.Now().After(limit) {
			t.Fatalf("%s did not happen within %v", what, patience)
		}
	}
}

// end is one side of a connection with its requests and a buffer.
type end struct {
	t     *testing.T
	shard *Shard
	comm  *Comm
	words *Words
	buf   []byte
	mr    *Region
	mrNum uint32
}

func newEnd(t *testing.T, c *Comm, size int) *end {
	t.Helper()
	mem, err := verbs.AllocMemory(size, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := &end{t: t, shard: c.shard, comm: c, words: &Words{}, buf: mem.Bytes()}
	c.Adopt(e.words)
	if e.mrNum, err = c.Register(e.buf); err != nil {
		t.Fatalf("Register: got %v, want no error", err)
	}
	e.mr = c.shard.plugin.Region(e.mrNum)
	return e
}

// post posts request i on a part of the buffer.
func (e *end) post(i, off, size int) Result {
	e.words.Requests[i].State.Store(RequestBusy)
	addr := e.mr.addr + uint64(off)
	var res Result
	if e.comm.Sends() {
		res = e.comm.Send(addr, uint64(size), e.mr, i)
	} else {
		res = e.comm.Recv(addr, uint64(size), e.mr, i)
	}
	if res != OK {
		e.words.Requests[i].State.Store(RequestFree)
	}
	return res
}

// mustPost posts a request, as soon as the peer has granted a receive.
func (e *end) mustPost(i, off, size int) {
	e.t.Helper()
	until(e.t, "a post", func() bool {
		e.shard.Poll()
		res := e.post(i, off, size)
		if res != OK && res != Again {
			e.t.Fatalf("post: got %d, want OK", res)
		}
		return res == OK
	})
}

// result waits for request i.
func (e *end) result(i int) (Result, int) {
	e.t.Helper()
	r := &e.words.Requests[i]
	until(e.t, fmt.Sprintf("the end of request %d", i), func() bool {
		e.shard.Poll()
		return r.State.Load() == RequestDone
	})
	r.State.Store(RequestFree)
	return r.Result, int(r.Size)
}

// want waits for the success of request i with a size.
func (e *end) want(i, size int) {
	e.t.Helper()
	if res, n := e.result(i); res != OK || n != size {
		e.t.Fatalf("request %d: got %d and %d bytes, want OK and %d", i, res, n, size)
	}
}

// pair connects two Shards and returns the sender and the receiver.
func pair(t *testing.T, from, to *Shard, size int) (*end, *end) {
	t.Helper()
	b := make([]byte, HandleSize)
	n, err := to.Listen(b)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	var out, in *Comm
	until(t, "a connection", func() bool {
		var err error
		if out == nil {
			if out, err = from.Connect(b); err != nil {
				t.Fatalf("Connect: got %v, want no error", err)
			}
		}
		if in == nil {
			if in, err = to.plugin.Listener(n).Accept(); err != nil {
				t.Fatalf("Accept: got %v, want no error", err)
			}
		}
		time.Sleep(100 * time.Microsecond) // for the keys that are being derived
		return in != nil && out != nil
	})
	to.plugin.CloseListener(n)
	return newEnd(t, out, size), newEnd(t, in, size)
}

// closeAll closes connections and their Shards, which must then be freed.
func closeAll(t *testing.T, ends ...*end) {
	t.Helper()
	for _, e := range ends {
		if err := e.shard.plugin.Deregister(e.mrNum); err != nil {
			t.Errorf("Deregister: got %v, want no error", err)
		}
		e.comm.Close()
	}
	for _, e := range ends {
		e.shard.Close()
		until(t, "the end of a shard", func() bool {
			select {
			case <-e.shard.idle:
				return true
			default:
				time.Sleep(time.Millisecond)
				return false
			}
		})
	}
}

func random(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := 0; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], r.Uint64())
	}
}

// TestSizes: messages of all sizes arrive complete, in receives of the same size and larger ones, and longer messages are cut. No other
// byte changes.
func TestSizes(t *testing.T) { eachParts(t, testSizes) }

func testSizes(t *testing.T, o Options) {
	const size = 1 << 20
	p, q := plugin(t, o), plugin(t, o)
	out, in := pair(t, shard(t, p), shard(t, q), size+4096)
	for k, n := range []int{0, 1, 127, 128, 129, 4096, 16 << 10, 16<<10 + 1, 512 << 10, size} {
		for _, room := range []int{n, n + 100, n / 2} {
			random(out.buf, uint64(k))
			clear(in.buf)
			in.mustPost(1, 7, room)
			out.mustPost(2, 3, n)
			want := min(n, room)
			out.want(2, want)
			in.want(1, want)
			expect := make([]byte, len(in.buf))
			copy(expect[7:], out.buf[3:3+want])
			if !bytes.Equal(in.buf, expect) {
				t.Fatalf("%d bytes in a receive of %d: the data differs", n, room)
			}
		}
	}
	closeAll(t, out, in)
}

// traffic is a stream of numbered messages from one end to the other, with several outstanding.
type traffic struct {
	t                   *testing.T
	out, in             *end
	posted, filled, got int
}

const (
	slotSize = 256 << 10
	slots    = 8
)

// step moves the traffic on, and checks every byte that has arrived.
func (x *traffic) step() {
	x.t.Helper()
	for x.filled-x.got < slots {
		i := x.filled % slots
		if x.out.words.Requests[i].State.Load() != RequestFree {
			break
		}
		random(x.out.buf[i*slotSize:][:slotSize], uint64(x.filled))
		res := x.out.post(i, i*slotSize, slotSize)
		if res == Again {
			break
		} else if res != OK {
			x.t.Fatalf("send %d: got %d, want OK", x.filled, res)
		}
		x.filled++
	}
	for i := range slots {
		if r := &x.out.words.Requests[i]; r.State.Load() == RequestDone {
			x.out.want(i, slotSize)
		}
	}
	want := make([]byte, slotSize)
	for x.got < x.posted && x.in.words.Requests[x.got%slots].State.Load() == RequestDone {
		i := x.got % slots
		x.in.want(i, slotSize)
		if random(want, uint64(x.got)); !bytes.Equal(x.in.buf[i*slotSize:][:slotSize], want) {
			x.t.Fatalf("message %d differs", x.got)
		}
		x.got++
	}
	for x.posted-x.got < slots && x.in.post(x.posted%slots, x.posted%slots*slotSize, slotSize) == OK {
		x.posted++
	}
	x.out.shard.Poll()
	x.in.shard.Poll()
}

// run moves n messages.
func (x *traffic) run(n int) {
	x.t.Helper()
	target := x.got + n
	until(x.t, fmt.Sprintf("message %d", target), func() bool { x.step(); return x.got >= target })
}

// TestRailsLost: while rails go down and come back, each message arrives once and complete.
func TestRailsLost(t *testing.T) { eachParts(t, testRailsLost) }

func testRailsLost(t *testing.T, o Options) {
	p, q := plugin(t, o), plugin(t, o)
	out, in := pair(t, shard(t, p), shard(t, q), slotSize*slots)
	x := &traffic{t: t, out: out, in: in}
	x.run(20)
	for _, change := range []struct {
		p    *Plugin
		rail int
	}{{p, 0}, {q, 1}, {p, 1}, {q, 0}} {
		if err := change.p.SetRail(change.rail, false); err != nil {
			t.Fatal(err)
		}
		x.run(20)
		if err := change.p.SetRail(change.rail, true); err != nil {
			t.Fatal(err)
		}
		until(t, "the recovery of a rail", func() bool {
			x.step()
			s := p.Stats()
			return len(s.Rails) == 2 && s.Rails[0].Down+s.Rails[1].Down+s.Out == 0
		})
	}
	if s := p.Stats(); s.Deaths == 0 {
		t.Error("no lane was lost")
	}
	closeAll(t, out, in) // with requests outstanding
}

// TestLateReceiver: messages that completed at a sender that is gone arrive at a receiver that polls late. Its next receive fails.
func TestLateReceiver(t *testing.T) {
	p, q := plugin(t, Options{}), plugin(t, Options{})
	for round := range 10 {
		out, in := pair(t, shard(t, p), shard(t, q), 64<<10)
		const messages = 32
		for i := range messages {
			in.mustPost(i, i*2048, 1000+i)
		}
		for i := range messages {
			out.mustPost(i, i*2048, 1000+i)
		}
		in.comm.part.mu.Lock() // nobody polls the receiver
		for i := range messages {
			out.want(i, 1000+i)
		}
		_ = out.comm.conn.Close() // as if the process exited
		<-in.comm.conn.Done()
		in.comm.part.mu.Unlock()
		for i := range messages {
			in.want(i, 1000+i)
		}
		until(t, "the failure of a receive", func() bool {
			in.shard.Poll()
			if res := in.post(0, 0, 8); res != OK {
				return res == RemoteError
			}
			res, _ := in.result(0)
			return res == RemoteError
		})
		if round == 9 {
			closeAll(t, out, in)
		}
	}
}

// TestLongMessage: a message longer than its receive fails the connection instead of being reported.
func TestLongMessage(t *testing.T) {
	p, q := plugin(t, Options{Parts: 1}), plugin(t, Options{Parts: 1})
	out, in := pair(t, shard(t, p), shard(t, q), 64<<10)
	in.mustPost(0, 0, 1000)
	until(t, "a grant", func() bool { out.shard.Poll(); return out.words.Granted.Load() == 1 })
	out.comm.part.mu.Lock()
	out.comm.grants[0].length = 2000 // a peer that does not keep to the protocol
	out.comm.part.mu.Unlock()
	out.mustPost(0, 0, 2000)
	if res, _ := in.result(0); res != InternalError {
		t.Errorf("a receive of 1000 bytes for 2000: got %d, want %d", res, InternalError)
	}
	if res := in.post(1, 0, 8); res != InternalError {
		t.Errorf("a receive on the failed connection: got %d, want %d", res, InternalError)
	}
	closeAll(t, out, in)
}

// TestCloseWhileConnecting: a Listener and a Shard can be closed at any time of an attempt. The Shards are freed.
func TestCloseWhileConnecting(t *testing.T) { eachParts(t, testCloseWhileConnecting) }

func testCloseWhileConnecting(t *testing.T, o Options) {
	t.Parallel() // it waits for orphanTime
	p, q := plugin(t, o), plugin(t, o)
	var all []*Shard
	var closing sync.WaitGroup
	b := make([]byte, HandleSize)
	for round := range 20 {
		from, to := shard(t, p), shard(t, q)
		n, err := to.Listen(b)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := from.Connect(b); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(round) * 2 * time.Millisecond)
		q.CloseListener(n)
		closing.Go(from.Close)
		closing.Go(to.Close)
		all = append(all, from, to)
	}
	closing.Wait()
	for _, s := range all { // the connecting side looks no more, so its attempt expires
		until(t, "the end of a shard", func() bool {
			time.Sleep(time.Millisecond)
			select {
			case <-s.idle:
				return true
			default:
				return false
			}
		})
		if _, err := s.Listen(b); err == nil {
			t.Error("Listen on a freed shard: got no error")
		}
	}
	for _, r := range []*registry[attempt]{&p.attempts, &q.attempts} {
		until(t, "the end of all attempts", func() bool {
			time.Sleep(time.Millisecond)
			all := r.all.Load() // nil if all listeners were closed early
			return all == nil || !slices.ContainsFunc(*all, func(a *attempt) bool { return a != nil })
		})
	}
}

// TestNoAllocations: posts and polls do not allocate.
func TestNoAllocations(t *testing.T) { eachParts(t, testNoAllocations) }

func testNoAllocations(t *testing.T, o Options) {
	p, q := plugin(t, o), plugin(t, o)
	out, in := pair(t, shard(t, p), shard(t, q), 64<<10)
	one := func() {
		poll := func() {
			out.shard.Poll()
			in.shard.Poll()
			runtime.Gosched() // AllocsPerRun leaves one processor to the test and the workers
		}
		for in.post(0, 0, 4096) != OK {
			poll()
		}
		for out.post(0, 0, 4096) != OK {
			poll()
		}
		for in.words.Requests[0].State.Load() != RequestDone || out.words.Requests[0].State.Load() != RequestDone {
			poll()
		}
		in.words.Requests[0].State.Store(RequestFree)
		out.words.Requests[0].State.Store(RequestFree)
	}
	for range 200 {
		one()
	}
	if n := testing.AllocsPerRun(200, one); n >= 1 {
		t.Errorf("a message allocates %v times, want none", n)
	}
	closeAll(t, out, in)
}

// TestStartAgain: after a failed Start, another one can use the same addresses.
func TestStartAgain(t *testing.T) {
	addr := netip.MustParseAddr("127.0.0.1")
	if _, err := Start(Options{Addrs: []netip.Addr{addr, netip.MustParseAddr("192.0.2.99")}}, testLog(t)); err == nil {
		t.Fatal("Start with an address of another host: got no error")
	}
	closeAll(t, func() []*end {
		p := plugin(t, Options{Addrs: []netip.Addr{addr}})
		out, in := pair(t, shard(t, p), shard(t, p), 4096)
		in.mustPost(0, 0, 4096)
		out.mustPost(0, 0, 4096)
		out.want(0, 4096)
		in.want(0, 4096)
		return []*end{out, in}
	}()...)
}
