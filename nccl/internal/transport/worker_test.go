//go:build linux

package transport

import (
	"bytes"
	"fmt"
	"testing"
)

// parted starts a Plugin with two rails and two parts.
func parted(t *testing.T) *Plugin { return plugin(t, Options{Parts: 2}) }

// eachParts runs a test with one part and with two.
func eachParts(t *testing.T, f func(t *testing.T, o Options)) {
	for n := range 2 {
		t.Run(fmt.Sprintf("%d parts", n+1), func(t *testing.T) { f(t, Options{Parts: n + 1}) })
	}
}

// TestPartsShare: the connections of a communicator are distributed evenly over its parts, which have separate NICs and locks, and a part
// without connections is not served.
func TestPartsShare(t *testing.T) {
	p, q := parted(t), parted(t)
	from, to := shard(t, p), shard(t, q)
	var ends []*end
	for range 3 {
		out, in := pair(t, from, to, 4096)
		ends = append(ends, out, in)
	}
	out, in := pair(t, to, from, 4096)
	ends = append(ends, out, in)
	for _, s := range []*Shard{from, to} {
		s.mu.Lock()
		if s.parts[0].load != 2 || s.parts[1].load != 2 || s.parts[2].load != 0 {
			t.Errorf("the parts have %d, %d and %d connections, want 2, 2 and 0", s.parts[0].load, s.parts[1].load, s.parts[2].load)
		}
		s.mu.Unlock()
		if s.parts[0].nics == s.parts[1].nics {
			t.Error("two parts have the same NICs")
		}
	}
	for i := 0; i < len(ends); i += 2 {
		out, in := ends[i], ends[i+1]
		random(out.buf, uint64(i))
		in.mustPost(0, 0, 4096)
		out.mustPost(0, 0, 4096)
		out.want(0, 4096)
		if in.want(0, 4096); !bytes.Equal(in.buf, out.buf) {
			t.Errorf("connection %d: the data differs", i/2)
		}
	}
	closeAll(t, ends...)
	for _, w := range append(p.workers, q.workers...) {
		if n := len(*w.parts.Load()); n != 0 {
			t.Errorf("a worker serves %d parts of closed communicators, want 0", n)
		}
	}
}

// TestWorkerServes: requests complete although no thread polls, C sees that the worker runs, and the worker sleeps afterwards.
func TestWorkerServes(t *testing.T) {
	p, q := parted(t), parted(t)
	out, in := pair(t, shard(t, p), shard(t, q), 64<<10)
	w := out.comm.part.worker
	if out.words.Worker != w.number {
		t.Fatalf("C looks at worker %d, want %d", out.words.Worker, w.number)
	}
	done := func(e *end, i int) func() bool {
		return func() bool { return e.words.Requests[i].State.Load() == RequestDone }
	}
	for round := range 3 {
		ran := false
		for i := range 16 {
			random(out.buf, uint64(round*16+i))
			until(t, "a receive", func() bool { return in.post(i, 0, 64<<10) == OK })
			until(t, "a send", func() bool { return out.post(i, 0, 64<<10) == OK })
			ran = ran || w.running()
			until(t, "the end of a send", done(out, i))
			until(t, "the end of a receive", done(in, i))
			out.want(i, 64<<10)
			if in.want(i, 64<<10); !bytes.Equal(in.buf, out.buf) {
				t.Fatalf("message %d differs", i)
			}
		}
		if !ran {
			t.Error("the worker has not run")
		}
		until(t, "sleep", func() bool { return !w.running() })
	}
	closeAll(t, out, in)
}

// TestPartCloses: while one part moves data, a connection of the other part is closed with requests outstanding, and another one
// is established there.
func TestPartCloses(t *testing.T) {
	p, q := parted(t), parted(t)
	from, to := shard(t, p), shard(t, q)
	out, in := pair(t, from, to, slotSize*slots)
	x := &traffic{t: t, out: out, in: in}
	for range 5 {
		x.run(5)
		other, there := pair(t, from, to, 1<<20)
		if other.comm.part == out.comm.part {
			t.Fatal("two connections have the same part")
		}
		for i := range 8 {
			there.mustPost(i, 0, 1<<20)
		}
		for i := range 8 {
			other.mustPost(i, 0, 1<<20)
		}
		x.run(5)
		other.comm.Close()
		there.comm.Close()
		part := other.comm.part
		until(t, "the end of a connection", func() bool {
			x.step()
			from.mu.Lock()
			to.mu.Lock()
			defer from.mu.Unlock()
			defer to.mu.Unlock()
			return part.load == 0 && there.comm.part.load == 0
		})
	}
	closeAll(t, out, in) // with requests outstanding
}

// TestSubmittedFails: a request completes with an error if its connection fails or its memory is deregistered before it is posted.
func TestSubmittedFails(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(in *end)
		want  Result
	}{
		"failed":       {func(in *end) { in.comm.fail(errProtocol) }, RemoteError},
		"deregistered": {func(in *end) { in.mr.gone = true }, InternalError},
	} {
		t.Run(name, func(t *testing.T) {
			p, q := plugin(t, Options{Parts: 2}), plugin(t, Options{Parts: 2})
			out, in := pair(t, shard(t, p), shard(t, q), 4096)
			in.comm.part.mu.Lock() // the worker cannot post
			res := in.post(0, 0, 4096)
			test.spoil(in)
			in.comm.part.mu.Unlock()
			if res != OK {
				t.Fatalf("post: got %d, want OK", res)
			}
			if res, _ := in.result(0); res != test.want {
				t.Errorf("the request: got %d, want %d", res, test.want)
			}
			if res := in.post(1, 0, 4096); res != test.want {
				t.Errorf("another request: got %d, want %d", res, test.want)
			}
			closeAll(t, out, in)
		})
	}
}

// TestQueueFull: 64 requests submitted while the worker cannot post are posted in order, and one more is refused.
func TestQueueFull(t *testing.T) {
	p, q := plugin(t, Options{Parts: 2}), plugin(t, Options{Parts: 2})
	out, in := pair(t, shard(t, p), shard(t, q), Depth*64)
	in.comm.part.mu.Lock()
	for i := range Depth {
		if res := in.post(i, i*64, 64); res != OK {
			t.Errorf("receive %d: got %d, want OK", i, res)
		}
	}
	if res := in.comm.Recv(in.mr.addr, 64, in.mr, 0); res != Again {
		t.Errorf("receive %d: got %d, want %d", Depth, res, Again)
	}
	in.comm.part.mu.Unlock()
	random(out.buf, 1)
	for i := range Depth {
		out.mustPost(i, i*64, 64)
	}
	for i := range Depth {
		in.want(i, 64)
		out.want(i, 64)
	}
	if !bytes.Equal(in.buf, out.buf) {
		t.Error("the data differs")
	}
	closeAll(t, out, in)
}
