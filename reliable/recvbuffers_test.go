package reliable_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// bunch is many connected pairs of QPs between two sides.
type bunch struct {
	a, b *side
	qps  [][2]verbs.QP
}

// newBunch connects n pairs, with that of the sides.
func newBunch(t *testing.T, link softnic.Link, cfg reliable.Config, n int) *bunch {
	t.Helper()
	a, b := newPair(t, link, cfg, 64<<10)
	m := &bunch{a: a, b: b, qps: [][2]verbs.QP{{a.qp, b.qp}}}
	for len(m.qps) < n {
		q := [2]verbs.QP{a.another(t), b.another(t)}
		join(t, q[0], q[1])
		m.qps = append(m.qps, q)
	}
	return m
}

// transfer moves bytes over every pair.
func (m *bunch) transfer(t *testing.T) {
	t.Helper()
	for _, q := range m.qps {
		a, b := *m.a, *m.b
		a.qp, b.qp = q[0], q[1]
		transfer(t, &a, &b, verbs.OpSend, 20_000)
		transfer(t, &a, &b, verbs.OpRDMAWriteWithImm, 20_000)
	}
}

// TestReceivesGrowAndShrink: the receive buffers of a PD grow with its connections, and shrink when they close.
// The memory of those that messages may still use is freed as messages use them.
func TestReceivesGrowAndShrink(t *testing.T) {
	for name, hide := range map[string]verbs.Capabilities{"shared": 0, "per UD QP": verbs.CapSRQOnUD} {
		t.Run(name, func(t *testing.T) {
			if hide != 0 && len(reliable.NICConfig().QPTypes) == 0 {
				t.Skip("UC QPs share their receives, or each path has its own")
			}
			link := softnic.NewMemoryLink(nil)
			const connections = 100
			first, cfg := 512, reliable.Config{Paths: 2, ChunkBytes: 1024, Window: 64, Carrier: verbs.UC}
			if len(reliable.NICConfig().QPTypes) > 0 {
				first, cfg.Carrier = 1024, verbs.UD
			}
			hiding := func(inner verbs.Context) verbs.Context { return &interposer{Context: inner, hide: hide} }
			a, b := newSideOver(t, link, cfg, 64<<10, hiding), newSideOver(t, link, cfg, 64<<10, hiding)
			connect(t, a, b)
			m := &bunch{a: a, b: b, qps: [][2]verbs.QP{{a.qp, b.qp}}}
			if got, _ := reliable.Receives(a.qp); got != first {
				t.Fatalf("one QP has %d receive buffers, want %d", got, first)
			}
			for len(m.qps) < connections {
				q := [2]verbs.QP{a.another(t), b.another(t)}
				join(t, q[0], q[1])
				m.qps = append(m.qps, q)
			}
			if got, _ := reliable.Receives(a.qp); got < 16*connections || got > 16*connections+64 {
				t.Errorf("%d QPs have %d receive buffers, want 16 for each", connections, got)
			}
			m.transfer(t)
			for _, q := range m.qps[1:] {
				must(t, q[0].Close())
				must(t, q[1].Close())
			}
			m.qps = m.qps[:1]
			for range 500 {
				if _, got := reliable.Receives(b.qp); got <= first+first/4 {
					return
				}
				m.transfer(t)
			}
			used, exist := reliable.Receives(b.qp)
			t.Errorf("after %d of %d QPs were closed there are %d receive buffers, and %d are in use, want %d", connections-1, connections, exist, used, first)
		})
	}
}

// TestReceiveLimit: at Config.RecvBytes, connections share the receive buffers. All of them work, and a further one is refused
// with an error that names the setting.
func TestReceiveLimit(t *testing.T) {
	const buffers, chunk = 128, 1024
	least := 4
	if len(reliable.NICConfig().QPTypes) > 0 {
		least = 8
	}
	m := newBunch(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 2, ChunkBytes: chunk, RecvBytes: buffers * chunk}, buffers/least)
	_, err := m.a.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: m.a.cq, RecvCQ: m.a.cq, MaxSendWR: 1})
	if !errors.Is(err, verbs.ErrLimit) || !strings.Contains(err.Error(), fmt.Sprintf("Config.RecvBytes of %d", buffers*chunk)) {
		t.Fatalf("QP %d: got %v, want an ErrLimit that names Config.RecvBytes", len(m.qps)+1, err)
	}
	m.transfer(t)
	must(t, m.qps[1][0].Close())
	must(t, m.qps[1][1].Close())
	q := [2]verbs.QP{m.a.another(t), m.b.another(t)}
	join(t, q[0], q[1])
	m.qps[1] = q
	m.transfer(t)
}

// TestConnectNotifiesFewPeers: a connection that joins many others does not make all of them learn a new credit.
func TestConnectNotifiesFewPeers(t *testing.T) {
	const connections = 200
	limit := 1 << 20 // shares shrink from 16 to 4
	if len(reliable.NICConfig().QPTypes) > 0 {
		limit = 4 << 20
	}
	m := newBunch(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 1, ChunkBytes: 1024, RecvBytes: limit}, connections/4)
	before := m.a.nic.Stats().PacketsSent
	for range connections - len(m.qps) {
		q := [2]verbs.QP{m.a.another(t), m.b.another(t)}
		join(t, q[0], q[1])
		m.qps = append(m.qps, q)
	}
	if sent := m.a.nic.Stats().PacketsSent - before; sent > 10*connections {
		t.Errorf("%d packets were sent while QP %d to %d were connected, want at most %d", sent, connections/4, connections, 10*connections)
	}
}

// TestShortQueues: the receive buffers fit the queues of a device.
func TestShortQueues(t *testing.T) {
	const maxWR, maxSRQWR = 256, 100
	for name, hide := range map[string]verbs.Capabilities{"shared": 0, "own": verbs.CapSRQOnUD | verbs.CapSRQOnUC} {
		t.Run(name, func(t *testing.T) {
			link := softnic.NewMemoryLink(nil)
			var sides [2]*side
			for i := range sides {
				sides[i] = newSideOver(t, link, reliable.Config{Paths: 2}, 64<<10, func(inner verbs.Context) verbs.Context {
					return &interposer{
						Context: inner, hide: hide,
						attr:   func(a *verbs.DeviceAttr) { a.MaxQPWR, a.MaxSRQWR = maxWR, maxSRQWR },
						refuse: func(cfg *verbs.QPConfig) bool { return max(cfg.MaxSendWR, cfg.MaxRecvWR) > maxWR },
						srq: func(pd verbs.PD, cfg verbs.SRQConfig) (verbs.SRQ, error) {
							if cfg.MaxWR > maxSRQWR {
								return nil, verbs.ErrLimit
							}
							return pd.CreateSRQ(cfg)
						},
					}
				})
			}
			connect(t, sides[0], sides[1])
			transfer(t, sides[0], sides[1], verbs.OpSend, 20_000)
			transfer(t, sides[0], sides[1], verbs.OpRDMAWriteWithImm, 20_000)
		})
	}
}

// TestEnginesShareReceives: the engines of a PD keep to its limit together. If it has no room for another one, QPs join the first.
func TestEnginesShareReceives(t *testing.T) {
	const window, chunk = 64, 1024
	s := newSide(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 1, ChunkBytes: chunk, Window: window, RecvBytes: 2*window*chunk + chunk}, 4096)
	cq, err := s.ctx.CreateCQ(verbs.CQConfig{Depth: 16})
	must(t, err)
	q, err := s.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1})
	must(t, err)
	if len(reliable.NICConfig().QPTypes) == 0 && reliable.EngineOf(q) != reliable.EngineOf(s.qp) {
		t.Error("a QP with a CQ of its own has another engine, although there are no receive buffers for it")
	}
	must(t, q.Close())
	must(t, cq.Close())
}

// TestConnectAtOnce: QPs of several engines are created at the same time. Together they keep to the limit.
func TestConnectAtOnce(t *testing.T) {
	s := newSide(t, softnic.NewMemoryLink(nil), reliable.Config{Paths: 1, ChunkBytes: 1024, Window: 16, RecvBytes: 256 << 10}, 4096)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			cq, err := s.ctx.CreateCQ(verbs.CQConfig{Depth: 16})
			if err != nil {
				t.Error(err)
				return
			}
			var qps []verbs.QP
			for {
				q, err := s.pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 1})
				if err != nil {
					if !errors.Is(err, verbs.ErrLimit) {
						t.Errorf("CreateQP: got %v, want ErrLimit", err)
					}
					break
				}
				qps = append(qps, q)
			}
			for _, q := range qps {
				if err := q.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := cq.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// TestOddReceiveLimit: Config.RecvBytes that is no multiple of what is allocated at a time serves as many connections as it holds.
func TestOddReceiveLimit(t *testing.T) {
	const paths, chunk, want = 50, 1024, 3
	each := paths * 7 // receives of their own for UC paths
	if len(reliable.NICConfig().QPTypes) > 0 {
		each = 2 * paths // for UD QPs
	}
	cfg := reliable.Config{Paths: paths, PathRecv: 7, ChunkBytes: chunk, RecvBytes: want * each * chunk}
	s := newSideOver(t, softnic.NewMemoryLink(nil), cfg, 4096, func(inner verbs.Context) verbs.Context {
		return &interposer{Context: inner, hide: verbs.CapSRQOnUD | verbs.CapSRQOnUC}
	})
	for range want - 1 {
		s.another(t)
	}
}
