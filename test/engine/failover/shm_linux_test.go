//go:build linux && !heapmem

// Without heapmem: two links in one process have separate locks, and the race detector cannot see that a
// packet in shared memory is sent before it is received.

package failover_test

import (
	"bytes"
	"net"
	"net/netip"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/shm"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// mixed is two hosts with rail 0 on shared memory and rail 1 on UDP.
type mixed struct {
	hosts [2]*enginetest.Host
	// sockets are the two ends of rail 0's socket.
	sockets [2]*net.UnixConn
	udp     *softnic.UDPLink
	// nics are the NICs of each host, by rail.
	nics [2][2]*softnic.NIC
}

func udpAddr(side int) netip.Addr { return netip.AddrFrom4([4]byte{127, 0, 81, byte(1 + side)}) }

// newMixed connects the two hosts.
func newMixed(t *testing.T, cfg ibverbx.Config) *mixed {
	t.Helper()
	m := &mixed{}
	var err error
	m.sockets, err = shm.Pair()
	enginetest.Must(t, err)
	var shared [2]*softnic.ShmLink
	made := make(chan error, 1)
	go func() {
		var err error
		shared[1], err = softnic.NewShmLink(m.sockets[1])
		made <- err
	}()
	shared[0], err = softnic.NewShmLink(m.sockets[0])
	enginetest.Must(t, err)
	enginetest.Must(t, <-made)
	m.udp, err = softnic.NewUDPLink(nil)
	enginetest.Must(t, err)
	controls := [2]ibverbx.Control{}
	controls[0], controls[1] = ibverbx.ControlPair()
	for side := range m.hosts {
		var rails []ibverbx.RailConfig
		path := verbs.PathConfig{AckTimeout: 12, RetryCount: 3}
		for rail, link := range []softnic.Link{shared[side], m.udp} {
			c := softnic.Config{}
			if rail == 1 {
				c.Addr = udpAddr(side)
			}
			nic, err := softnic.New(link, c)
			enginetest.Must(t, err)
			t.Cleanup(func() { enginetest.Must(t, nic.Close()) })
			ctx, err := nic.Open()
			enginetest.Must(t, err)
			m.nics[side][rail] = nic
			rails = append(rails, ibverbx.RailConfig{Context: ctx, Path: path})
		}
		m.hosts[side] = enginetest.NewRailsOn(t, rails...)
		m.hosts[side].NewCQ(ibverbx.CQConfig{Depth: 8192, Waker: verbs.NewWaker()})
		cfg.Control = controls[side]
		m.hosts[side].NewQP(cfg)
	}
	enginetest.Connect(t, m.hosts[0].QP, m.hosts[1].QP)
	return m
}

// region registers memory on both rails of a host.
func (m *mixed) region(t *testing.T, side int, mem *verbs.Memory, err error) (*ibverbx.Region, *verbs.Memory) {
	t.Helper()
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, mem.Free()) })
	r, err := m.hosts[side].Rails.Register(mem, verbs.AccessAll)
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, r.Close()) })
	return r, mem
}

// bytesOf returns n bytes of memory at off.
func bytesOf(t *testing.T, m *verbs.Memory, off, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := m.ReadAt(b, int64(off))
	enginetest.Must(t, err)
	return b
}

// succeeded polls a host. All completions must be successful.
func succeeded(t *testing.T, h *enginetest.Host) []ibverbx.WC {
	t.Helper()
	wcs := h.Poll()
	for i := range wcs {
		enginetest.Must(t, wcs[i].Err())
	}
	return wcs
}

// TestShmBesideUDP: when the shared-memory rail or the UDP rail dies during notified writes, the other one
// carries everything. Each write arrives exactly once, in order.
func TestShmBesideUDP(t *testing.T) {
	besideUDP(t, func(n int) (*verbs.Memory, error) { return verbs.AllocMemory(n, &verbs.MemoryConfig{Shared: true}) })
}

// TestShmBesideUDPDevice does the same with device memory, which each host opens from the other.
func TestShmBesideUDPDevice(t *testing.T) {
	d := new(verbstest.MemoryDevice)
	d.Share(verbstest.Sharing{Export: true, Open: true, Copy: true})
	besideUDP(t, d.Alloc)
	if n := d.Opened(); n != 0 {
		t.Errorf("%d regions are open at the end, want none", n)
	}
}

// awaitLost waits until this side has lost all lanes of a rail. It writes meanwhile, because an idle lane
// does not notice the loss and the policy may have left one idle.
func (m *mixed) awaitLost(t *testing.T, rail int, write ibverbx.SendWR) {
	t.Helper()
	lost, open := false, 0
	poll(t, m.hosts, "the lanes of the dead rail are lost", func(side, n int) bool {
		if side != 0 {
			return false
		}
		open -= n
		lost = lost || m.hosts[0].QP.Stats().Rails[rail].Up == 0
		for ; !lost && open < 8; open++ {
			m.hosts[0].PostSend(write)
		}
		return lost && open == 0
	})
}

func besideUDP(t *testing.T, alloc func(n int) (*verbs.Memory, error)) {
	t.Helper()
	for name, die := range map[string]struct {
		rail int
		kill func(m *mixed)
	}{
		"the socket of this side ends":    {0, func(m *mixed) { _ = m.sockets[0].Close() }},
		"the socket of the peer ends":     {0, func(m *mixed) { _ = m.sockets[1].Close() }},
		"a port of shared memory is down": {0, func(m *mixed) { m.nics[1][0].SetPort(false) }},
		"UDP is cut": {1, func(m *mixed) {
			m.udp.Cut(m.nics[0][1], udpAddr(1))
			m.udp.Cut(m.nics[1][1], udpAddr(0))
		}},
		"a port of UDP is down": {1, func(m *mixed) { m.nics[1][1].SetPort(false) }},
	} {
		t.Run(name, func(t *testing.T) {
			enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
				const messages, size = 200, 20_000
				m := newMixed(t, ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 4096})
				mem, err := alloc(messages * size)
				from, source := m.region(t, 0, mem, err)
				mem, err = alloc(messages * size)
				to, target := m.region(t, 1, mem, err)
				want := make([]byte, messages*size)
				enginetest.Fill(want, 1)
				_, err = source.WriteAt(want, 0)
				enginetest.Must(t, err)
				sent, done, got := 0, 0, 0
				post := func() {
					for ; sent < messages && sent-done < 32; sent++ {
						m.hosts[1].PostRecv(ibverbx.RecvWR{})
						wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(sent), Remote: to.Remote(), RemoteOffset: uint64(sent * size)}
						wr.SetSGE(from.SGE(uint64(sent*size), size))
						m.hosts[0].PostSend(wr)
					}
				}
				post()
				killed := false
				for end := time.Now().Add(time.Minute); !killed || done < messages || got < messages; post() {
					done += len(succeeded(t, m.hosts[0]))
					for _, wc := range succeeded(t, m.hosts[1]) {
						if at := got * size; wc.Imm != uint32(got) && scheme != ibverbx.DQPLB || !bytes.Equal(bytesOf(t, target, at, size), want[at:at+size]) {
							t.Fatalf("notice %d has immediate %d, or comes before its data", got, wc.Imm)
						}
						got++
					}
					if !killed && done >= messages/4 {
						killed = true
						die.kill(m)
					}
					if time.Now().After(end) {
						t.Fatalf("%d of %d writes have ended, and %d notices arrived", done, messages, got)
					}
				}
				if all := bytesOf(t, target, 0, messages*size); !bytes.Equal(all, want) {
					t.Errorf("byte %d that arrived differs", enginetest.FirstDifference(all, want))
				}
				again := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: to.Remote()}
				again.SetSGE(from.SGE(0, size))
				m.awaitLost(t, die.rail, again)
				if up := m.hosts[0].QP.Stats().Rails[1-die.rail].Up; up != 2 {
					t.Errorf("%d lanes of the rail that lives are in service, want 2", up)
				}
			})
		})
	}
}
