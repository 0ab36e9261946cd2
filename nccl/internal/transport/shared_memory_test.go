//go:build linux

package transport

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/peer"
)

// TestSharedMemory: all connections between two processes share the same memory, in both directions and of several communicators. Messages of all
// sizes arrive, and the NICs carry nothing.
func TestSharedMemory(t *testing.T) {
	p, q := plugin(t, Options{Link: peer.LinkAuto}), plugin(t, Options{Link: peer.LinkAuto})
	var ends []*end
	for range 2 {
		a, b := shard(t, p), shard(t, q)
		out, in := pair(t, a, b, 4<<20)
		back, forth := pair(t, b, a, 4<<20)
		ends = append(ends, out, in, back, forth)
	}
	for _, x := range []*Plugin{p, q} {
		x.mu.Lock()
		if len(x.localPeers) != 1 {
			t.Errorf("%d shared memories with one process, want 1", len(x.localPeers))
		}
		x.mu.Unlock()
	}
	for i := 0; i < len(ends); i += 2 {
		out, in := ends[i], ends[i+1]
		if out.comm.session.Link != peer.LinkShm || out.comm.session.Agreed.Sealed {
			t.Fatalf("the link is %s, sealed %t, want shm and false", out.comm.session.Link, out.comm.session.Agreed.Sealed)
		}
		for k, size := range []int{0, 1, 8, 4095, 4096, 16<<10 + 1, 1 << 20, 4 << 20} {
			random(out.buf[:size], uint64(i+k))
			clear(in.buf)
			in.mustPost(k, 0, 4<<20)
			out.mustPost(k, 0, size)
			out.want(k, size)
			in.want(k, size)
			if !bytes.Equal(in.buf[:size], out.buf[:size]) {
				t.Errorf("%d bytes: the data differs", size)
			}
		}
	}
	if s := p.Stats(); s.Shared < 10<<20 || len(s.Rails) > 0 {
		t.Errorf("%d bytes through shared memory, and rails %+v, want more than 10 MiB and none", s.Shared, s.Rails)
	}
	shards := map[*Shard]bool{}
	for _, e := range ends {
		shards[e.shard] = true
	}
	closeAll(t, ends...)
	for s := range shards {
		for _, x := range s.parts {
			x.mu.Lock()
			if len(x.groups) > 0 {
				t.Errorf("a closed communicator has %d groups, want 0", len(x.groups))
			}
			x.mu.Unlock()
		}
	}
}

// TestSharedMemoryEnds: once the connection that established shared memory has ended, the next connection establishes it again.
func TestSharedMemoryEnds(t *testing.T) {
	p, q := plugin(t, Options{Link: peer.LinkAuto}), plugin(t, Options{Link: peer.LinkAuto})
	a, b := shard(t, p), shard(t, q)
	out, in := pair(t, a, b, 8)
	first := out.comm.group.localPeer
	_ = first.session.Conn.Close()
	for _, x := range []*Plugin{p, q} {
		until(t, "the end of shared memory", func() bool {
			x.mu.Lock()
			defer x.mu.Unlock()
			return len(x.localPeers) == 0
		})
	}
	in.mustPost(0, 0, 8) // the old connections still use it
	out.mustPost(0, 0, 8)
	out.want(0, 8)
	again, there := pair(t, a, b, 8)
	if again.comm.group.localPeer == first || again.comm.group.localPeer == nil {
		t.Errorf("the second connection uses %p, want shared memory other than %p", again.comm.group.localPeer, first)
	}
	closeAll(t, out, in, again, there)
	until(t, "the end of the first session", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		time.Sleep(time.Millisecond)
		return first.users == 0
	})
}

// TestSharedMemoryTries: a peer that fails the handshake of shared memory again and again is soon refused, and leaves nothing behind. Connections with
// it use the NICs.
func TestSharedMemoryTries(t *testing.T) {
	p, q := plugin(t, Options{Link: peer.LinkAuto}), plugin(t, Options{Link: peer.LinkAuto})
	h := handle{key: p.key}
	h.addrs, h.port = p.dialed()
	left := func() (localPeers, tries int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.localPeers), p.tries[q.incarnation]
	}
	for i := range 2 * maxTries {
		conn, err := q.dial(t.Context(), &h)
		if err != nil {
			t.Fatal(err)
		}
		g := greeting{number: uint64(i + 1), dialed: true}
		if err := conn.Send(t.Context(), bootstrap.KindApplication, g.encode()); err != nil {
			t.Fatal(err)
		}
		if i < maxTries {
			until(t, "an attempt", func() bool { _, tries := left(); return tries == i+1 })
		} else if _, err := conn.Recv(t.Context()); err == nil || !strings.Contains(err.Error(), "too many attempts") {
			t.Errorf("attempt %d: got %v, want that there were too many", i+1, err)
		}
		_ = conn.Close()
	}
	until(t, "the end of the attempts", func() bool { localPeers, _ := left(); return localPeers == 0 })
	if _, tries := left(); tries != maxTries {
		t.Errorf("%d attempts, want %d", tries, maxTries)
	}
	out, in := pair(t, shard(t, q), shard(t, p), 8)
	back, forth := pair(t, shard(t, p), shard(t, q), 8)
	for _, e := range []*end{out, in, back, forth} {
		if e.comm.session.Link != peer.LinkUDP {
			t.Errorf("the link is %s, want %s", e.comm.session.Link, peer.LinkUDP)
		}
	}
	closeAll(t, out, in, back, forth)
}

// TestSharedMemoryEndsAgain: if established shared memory ends again and again, connections use the NICs.
func TestSharedMemoryEndsAgain(t *testing.T) {
	p, q := plugin(t, Options{Link: peer.LinkAuto}), plugin(t, Options{Link: peer.LinkAuto})
	a, b := shard(t, p), shard(t, q)
	var ends []*end
	for range maxTries + 1 {
		out, in := pair(t, a, b, 8)
		ends = append(ends, out, in)
		n := out.comm.group.localPeer
		if n == nil {
			break
		}
		_ = n.session.Conn.Close()
		for _, x := range []*Plugin{p, q} {
			until(t, "the end of shared memory", func() bool {
				x.mu.Lock()
				defer x.mu.Unlock()
				return len(x.localPeers) == 0
			})
		}
	}
	if n := ends[len(ends)-1].comm.group.localPeer; n != nil {
		t.Error("the connections still use shared memory, want the NICs")
	}
	closeAll(t, ends...)
}

// TestGreeting: only a well-formed greeting is accepted.
func TestGreeting(t *testing.T) {
	good := greeting{conn: connID{1}, number: 7, dialed: true}
	body := good.encode()
	got, ok := decodeGreeting(&bootstrap.Message{Kind: bootstrap.KindApplication, Body: body})
	if !ok || got != good {
		t.Errorf("decodeGreeting = %+v, %t, want %+v", got, ok, good)
	}
	for _, wrong := range [][]byte{nil, body[:24], append(body, 0), append(body[:24:24], 2), make([]byte, greetingSize)} {
		if _, ok := decodeGreeting(&bootstrap.Message{Kind: bootstrap.KindApplication, Body: wrong}); ok {
			t.Errorf("decodeGreeting accepts % x", wrong)
		}
	}
	if _, ok := decodeGreeting(&bootstrap.Message{Kind: bootstrap.KindReady, Body: body}); ok {
		t.Error("decodeGreeting accepts another kind of message")
	}
}
