package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"ibverbx/verbs"
)

// journal is a log that several goroutines write.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// records returns level and message of the records since the last call.
func (j *journal) records() (list []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, m := range regexp.MustCompile(`level=(\S+) msg=("[^"]*"|\S+)`).FindAllStringSubmatch(j.b.String(), -1) {
		list = append(list, m[1]+" "+strings.Trim(m[2], `"`))
	}
	j.b.Reset()
	return list
}

// to makes a host write its log to j.
func (j *journal) to(c *Config) { c.Log = slog.New(slog.NewTextHandler(j, nil)) }

func (j *journal) want(t *testing.T, what string, want ...string) {
	t.Helper()
	text := j.String()
	if got := j.records(); !slices.Equal(got, want) {
		t.Errorf("%s: the log has %q, want %q:\n%s", what, got, want, text)
	}
}

// TestLostRailIsReported: a rail is lost and recovers while operations run. They succeed. Each side
// logs one warning and one recovery, with the peer and the rail. The statistics of the Node, the
// host and the peer agree, and outlast the session and the peer.
func TestLostRailIsReported(t *testing.T) {
	for rail := range 2 {
		t.Run(fmt.Sprint("rail ", rail), func(t *testing.T) { lostRailIsReported(t, rail) })
	}
}

func lostRailIsReported(t *testing.T, rail int) {
	var here, there journal
	n := newNetwork(2)
	a, b := n.start(t, here.to), n.start(t, there.to, named("b"))
	p, back := a.meet(b)
	write := func() {
		t.Helper()
		rand := byte(a.node.Stats().Counters.Operations + 1)
		for i := range a.mem.Bytes() {
			a.mem.Bytes()[i] = byte(i/7) + rand
		}
		a.do(p, a.jobOn(p, a.grantBy(p), verbs.OpRDMAWrite, 0, slabBytes))
		if !bytes.Equal(a.mem.Bytes(), b.mem.Bytes()) {
			t.Error("the bytes differ")
		}
	}
	write()
	here.want(t, "the dialer", "INFO peer ready")
	there.want(t, "the listener", "INFO peer ready")
	a.nics[rail].SetPort(false)
	write()
	eventually(t, "both sides have lost the rail", func() bool {
		return a.node.Stats().QP.Rails[rail].Down == 1 && b.node.Stats().QP.Rails[rail].Down == 1
	})
	write()
	a.nics[rail].SetPort(true)
	eventually(t, "both sides have the rail again", func() bool {
		return p.Stats().QP.Out == 0 && back.Stats().QP.Out == 0
	})
	write()
	for _, log := range []*journal{&here, &there} { // the log is written after the statistics change
		eventually(t, "the return is logged", func() bool { return strings.Contains(log.String(), `msg="rail up"`) })
	}
	text := here.String()
	for _, want := range []string{" peer=" + b.node.Addr().String(), " name=b", fmt.Sprint(" rail=", rail), " device=", " cause=", " outage=", " failover="} {
		if !strings.Contains(text, want) {
			t.Errorf("the log of the dialer lacks%s:\n%s", want, text)
		}
	}
	here.want(t, "the dialer", "WARN rail down", "INFO rail up")
	there.want(t, "the listener", "WARN rail down", "INFO rail up")

	live := a.node.Stats()
	for i, s := range []Totals{live.Totals, *a.node.StatsByHost()["127.0.0.1"], {QP: p.Stats().Sum}} {
		if r := s.QP.Rails[rail]; len(s.QP.Rails) != 2 || r.Lost != 1 || r.Recovered != 1 || r.Down != 0 || s.QP.Bytes < 4*slabBytes {
			t.Errorf("statistics %d: rail %d is %+v, %d bytes in all, want it lost and recovered once, and %d bytes", i, rail, r, s.QP.Bytes, 4*slabBytes)
		}
	}
	if live.Ready != 1 || live.Connected != 1 || live.Lanes < 2 || live.Sessions != 1 || live.Counters.BytesWritten != 4*slabBytes {
		t.Errorf("Stats: got %+v, want one session", live)
	}
	if err := p.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	past := a.node.Stats()
	if past.Ready != 0 || past.Connected != 0 || past.QP.Out != 0 || past.QP.Rails[rail].Up != 0 {
		t.Errorf("after the last session, Stats has gauges: %+v", past)
	}
	if past.QP.Bytes < live.QP.Bytes || past.QP.Rails[rail].Lost != 1 || past.Counters.BytesWritten != live.Counters.BytesWritten {
		t.Errorf("after the last session, Stats is %+v, want at least the counters %+v", past, live)
	}
}

// TestClosedIsCountedOnce: Close and Shutdown count exactly the sessions that they close, each
// once.
func TestClosedIsCountedOnce(t *testing.T) {
	n := newNetwork(1)
	a, b, c := n.start(t), n.start(t), n.start(t)
	p, back := a.meet(b)
	_, other := a.meet(c)
	if err := p.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("the second Close: got %v, want no error", err)
	}
	wait(t, back, StateLost)
	if err := a.node.Shutdown(soon(t)); err != nil {
		t.Errorf("Shutdown: got %v, want no error", err)
	}
	wait(t, other, StateLost)
	for h, want := range map[*host]uint64{a: 2, b: 1, c: 1} {
		if s := h.node.Stats(); s.Sessions != want || s.Closed != want || s.Losses != 0 {
			t.Errorf("Stats: got %d sessions, %d closed and %d lost, want %d that were all closed", s.Sessions, s.Closed, s.Losses, want)
		}
	}
}

// fails makes a Peer's session fail on its side.
func fails(p *Peer) {
	p.node.mu.Lock()
	defer p.node.mu.Unlock()
	if p.current != nil {
		p.current.End(errors.New("planted failure"))
	}
}

// TestLogOfPeers: for a peer whose connection or session fails and that returns, both sides log a
// warning and its return. A peer that leaves in order causes no warning on either side. The
// counters of the lost session are kept.
func TestLogOfPeers(t *testing.T) {
	for name, lose := range map[string]func(*Peer){"connection": lose, "session": fails} {
		t.Run(name, func(t *testing.T) {
			var here, there journal
			n := newNetwork(1)
			a, b := n.start(t, here.to), n.start(t, there.to)
			p, back := a.meet(b)
			a.do(p, a.job(p, verbs.OpRDMAWrite, 0, slabBytes))
			lose(p)
			eventually(t, "the session is established again", func() bool {
				return p.Stats().Sessions == 2 && p.State() == StateReady && back.State() == StateReady && back.Stats().Sessions == 2
			})
			if text := here.String(); !strings.Contains(text, " outage=") {
				t.Errorf("the record of the return has no outage:\n%s", text)
			}
			if s := a.node.Stats(); s.Losses != 1 || s.Reconnects != 1 || s.Sessions != 2 || s.Closed != 0 {
				t.Errorf("Stats: got %+v, want one loss and one reconnect", s)
			}
			if now, sum, all := p.Stats().QP.Bytes, p.Stats().Sum.Bytes, a.node.Stats().QP.Bytes; now != 0 || sum < slabBytes || all != sum {
				t.Errorf("bytes: %d of the new session, %d of the peer, %d of the Node, want 0 and those of the lost session", now, sum, all)
			}
			lost := []string{"INFO peer ready", "WARN peer lost", "INFO peer back"}
			here.want(t, "the dialer", lost...)
			there.want(t, "the listener", lost...)

			if err := a.node.Close(); err != nil {
				t.Errorf("Close: got %v, want no error", err)
			}
			wait(t, back, StateLost)
			there.want(t, "the listener", "INFO peer closed")
			here.want(t, "the dialer")
			for _, h := range []*host{a, b} {
				if s := h.node.Stats(); s.Losses != 1 || s.Closed != 1 {
					t.Errorf("Stats: got %+v, want one loss and one orderly end", s)
				}
			}
		})
	}
}

// TestSnapshotWithNewRealms: NICs and Snapshot can be called while peers of new realms connect.
func TestSnapshotWithNewRealms(t *testing.T) {
	n := newNetwork(1)
	server := n.start(t, byName)
	var all sync.WaitGroup
	var enough atomic.Bool
	all.Go(func() {
		for !enough.Load() {
			if len(server.node.NICs()) != 1 || server.node.Snapshot().Transport != "rc" {
				t.Error("the Node has other NICs than before")
				return
			}
		}
	})
	for i := range 6 {
		n.start(t, named(fmt.Sprint("realm", i))).meet(server)
	}
	enough.Store(true)
	all.Wait()
}

// TestSnapshot: a Node's state is JSON, with its peers and their rails. The state of a nil Node is
// empty.
func TestSnapshot(t *testing.T) {
	n := newNetwork(2)
	a, b := n.start(t), n.start(t, named("b"))
	p, _ := a.meet(b)
	a.do(p, a.job(p, verbs.OpRDMAWrite, 0, slabBytes))
	text, err := json.Marshal(a.node.Snapshot())
	if err != nil {
		t.Fatalf("Marshal: got %v, want no error", err)
	}
	var got struct {
		Transport string
		Stats     struct{ Ready int }
		Peers     []struct {
			Name, Addr, State string
			QP                struct {
				Rails []struct {
					Device   string
					Bytes    uint64
					Lost, Up int
				}
			}
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("Unmarshal: got %v, want no error:\n%s", err, text)
	}
	if got.Transport != "rc" || got.Stats.Ready != 1 || len(got.Peers) != 1 {
		t.Fatalf("Snapshot: got %s, want one peer", text)
	}
	one := got.Peers[0]
	if one.Name != "b" || one.Addr != b.node.Addr().String() || one.State != "ready" || len(one.QP.Rails) != 2 || one.QP.Rails[0].Bytes+one.QP.Rails[1].Bytes != slabBytes || one.QP.Rails[1].Up == 0 {
		t.Errorf("Snapshot: got %s, want peer b with two rails that have carried bytes", text)
	}
	if s := fmt.Sprint((*Node)(nil).Snapshot(), (*Node)(nil).Stats(), (*Node)(nil).StatsByHost(), (*Node)(nil).NICs()); strings.Contains(s, "ready") {
		t.Errorf("a nil Node has the state %s, want none", s)
	}
}
