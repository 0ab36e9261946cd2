package node

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ibverbx/bootstrap"
)

// counted is a context that counts its dependents.
type counted struct {
	context.Context
	children atomic.Int32
}

// Value hides the context, so that others call AfterFunc.
func (*counted) Value(any) any { return nil }

// AfterFunc is called by package context for the children of such a context.
func (c *counted) AfterFunc(f func()) (stop func() bool) {
	c.children.Add(1)
	inner := context.AfterFunc(c.Context, f)
	return func() bool {
		stopped := inner()
		if stopped {
			c.children.Add(-1)
		}
		return stopped
	}
}

var plain = bootstrap.Config{InsecurePlaintextOnLoopback: true}

// TestRefusedConnectionsLeaveNothing: connections refused by either side do not leak a context.
func TestRefusedConnectionsLeaveNothing(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t, func(c *Config) { c.Listen = "" }), n.start(t)
	ctx := &counted{Context: a.node.ctx}
	a.node.ctx = ctx
	a.meet(b)
	before := ctx.children.Load()
	auth := plain
	auth.Incarnation = a.node.auth.Incarnation
	conn, err := bootstrap.Dial(soon(t), b.node.Addr().String(), auth)
	if err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	second := &route{addr: "the same peer", known: make(chan struct{}), ctx: t.Context()}
	if _, err := a.node.greet(soon(t), conn, second); !duplicate(err) {
		t.Errorf("greet of a peer that is there: got %v, want a duplicate", err)
	}
	l, err := bootstrap.Listen(soon(t), "127.0.0.1:0", plain)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	defer func() { _ = l.Close() }()
	far, err := bootstrap.Dial(soon(t), l.Addr().String(), plain)
	if err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	defer func() { _ = far.Close() }()
	if conn, err = l.Accept(soon(t)); err != nil {
		t.Fatalf("Accept: got %v, want no error", err)
	}
	later := message{kind: kindHello, lowest: version + 1, highest: version + 1, session: 1}
	if err := far.Send(soon(t), bootstrap.KindService, later.encode()); err != nil {
		t.Errorf("Send: got %v, want no error", err)
	}
	if _, err := a.node.greet(soon(t), conn, nil); !errors.Is(err, ErrRefused) {
		t.Errorf("greet of a peer of another version: got %v, want ErrRefused", err)
	}
	if after := ctx.children.Load(); after != before {
		t.Errorf("%d contexts wait for the end of the Node after two refusals, want %d as before", after, before)
	}
}

// TestClosedPeerStaysClosed: a Peer is closed just after its address was dialed. The connection does not
// reopen it.
func TestClosedPeerStaysClosed(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	addr := b.node.Addr().String()
	there, _ := a.meet(b)
	a.node.mu.Lock()
	r := a.node.routes[addr]
	a.node.mu.Unlock()
	auth := plain
	auth.Incarnation = a.node.auth.Incarnation
	conn, err := bootstrap.Dial(soon(t), addr, auth)
	if err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	_ = there.Close()
	if _, err := a.node.greet(soon(t), conn, r); !errors.Is(err, ErrClosed) {
		t.Errorf("greet after Peer.Close: got %v, want ErrClosed", err)
	}
	if got := len(a.node.Peers()); got != 0 {
		t.Errorf("the Node knows %d peers, want 0", got)
	}
}

// TestReturnNeedsNoRoom: a known peer returns to its shard even if all shards are full.
func TestReturnNeedsNoRoom(t *testing.T) {
	n := newNetwork(1)
	a, b := n.start(t), n.start(t)
	there, here := a.meet(b)
	here.realm.mu.Lock()
	here.shard.capacity = here.shard.peers
	here.realm.mu.Unlock()
	sessions := here.Stats().Sessions
	lose(there)
	eventually(t, "there is another session", func() bool { return here.State() == StateReady && here.Stats().Sessions > sessions })
	if s := b.node.Stats(); s.Shards != 1 {
		t.Errorf("Stats: got %d shards, want 1", s.Shards)
	}
}

// TestErrorsStayOnOneLine: addresses, names and reasons from peers are quoted in errors and in the
// log.
func TestErrorsStayOnOneLine(t *testing.T) {
	const evil = "x\nINFO all is well\x1b[2J"
	var log bytes.Buffer
	net := newNetwork(1)
	a := net.start(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	b := net.start(t, named(evil))
	b.node.SetPauses(time.Millisecond) // it does not redial before the test has seen the loss
	there, here := b.meet(a)
	_ = there.Service().Session().(*session).conn.CloseWith(evil)
	wait(t, here, StateLost)
	text := here.String() + here.Err().Error()
	_, err := a.node.Peer(soon(t), evil)
	if err == nil || strings.ContainsAny(err.Error(), "\n\x1b") || !strings.Contains(err.Error(), `x\nINFO all is well\x1b[2J`) {
		t.Errorf("Peer: got %q, want one line with the address escaped", err)
	}
	if strings.ContainsAny(text, "\n\x1b") {
		t.Errorf("String() and Err() = %q, want one line", text)
	}
	if err := a.node.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	for line := range strings.Lines(log.String()) {
		if !strings.HasPrefix(line, "time=") || !strings.Contains(line, `x\nINFO`) || strings.Contains(line, "\x1b") {
			t.Errorf("the log has the line %q, want text of the peer escaped", line)
		}
	}
}
