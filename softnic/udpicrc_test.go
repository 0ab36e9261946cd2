//go:build linux

package softnic

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// icrcStation plugs a NIC with an ICRC setting into its own link.
func icrcStation(t *testing.T, cfg UDPConfig, addr string) *nicRig {
	t.Helper()
	link, err := NewUDPLink(&cfg)
	check(t, err)
	return newNICRig(t, link, 1024, Config{Addr: netip.MustParseAddr(addr), MTU: verbs.MTU256})
}

// TestICRCAgreement: both ends must permit header ICRCs, and on different hosts they must do so
// explicitly.
func TestICRCAgreement(t *testing.T) {
	for mine, want := range map[ICRC][2][3]bool{ // on this host and elsewhere, by the peer's setting
		ICRCAuto:    {{true, false, true}, {false, false, false}},
		ICRCFull:    {{false, false, false}, {false, false, false}},
		ICRCHeaders: {{true, false, true}, {false, false, true}},
	} {
		for theirs := range ICRCHeaders + 1 {
			t.Run(fmt.Sprintf("%d and %d", mine, theirs), func(t *testing.T) {
				s, peer := icrcStation(t, UDPConfig{ICRC: mine}, "127.0.0.59"), icrcStation(t, UDPConfig{ICRC: theirs}, "127.0.0.60")
				for i, addr := range []string{"127.0.0.61", "192.0.2.1"} {
					e := verbs.Endpoint{QPN: 1, GID: verbs.GIDFromAddr(netip.MustParseAddr(addr)), MTU: verbs.MTU256, Extra: peer.nic.udp.extra(nil)}
					q := s.qp(verbs.UC, 4)
					check(t, q.Connect(e))
					if got := q.path.route.headerICRC; got != want[i][theirs] {
						t.Errorf("to %s: the ICRC covers only headers: %v, want %v", addr, got, want[i][theirs])
					}
				}
			})
		}
	}
}

// TestICRCAssumed: a peer without a description gets full ICRCs, even if assumed to be a softnic.
func TestICRCAssumed(t *testing.T) {
	s := icrcStation(t, UDPConfig{ICRC: ICRCHeaders, AssumeSoftNICs: true}, "127.0.0.59")
	q := s.qp(verbs.UC, 4)
	check(t, q.Connect(verbs.Endpoint{QPN: 1, GID: verbs.GIDFromAddr(netip.MustParseAddr("127.0.0.61")), MTU: verbs.MTU256}))
	if way := q.path.route; !way.dest.Runs() || way.headerICRC {
		t.Errorf("runs %v, header ICRC %v, want true and false", way.dest.Runs(), way.headerICRC)
	}
}

// sentTo returns all packets that a NIC sends to a socket described by extra: a WRITE of four packets,
// the last of them padded, one of 5 bytes with an immediate, and a SEND.
func sentTo(t *testing.T, s *nicRig, extra []byte) (all [][]byte, way *udpRoute) {
	t.Helper()
	peer, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 63)})
	check(t, err)
	defer func() { check(t, peer.Close()) }()
	to := peer.LocalAddr().(*net.UDPAddr).AddrPort()
	addr := udpAddr{verbs.GIDFromAddr(to.Addr()), to.Port()}
	q := s.qp(verbs.UC, 8)
	q.core.mu.Lock()
	_, err = s.nic.udp.learn(&verbs.Endpoint{GID: addr.gid, LID: addr.port, Extra: extra})
	q.core.mu.Unlock()
	check(t, err)
	check(t, q.Connect(verbs.Endpoint{QPN: 0x123456, PSN: 7, GID: addr.gid, MTU: verbs.MTU256}))
	q.core.mu.Lock()
	q.path.route, err = s.nic.udp.newRoute(q.path, addr, nil)
	check(t, err)
	q.snd, q.una, q.maxPSN = 0xfffffe, 0xfffffe, 0xfffffe // instead of a random one
	q.core.mu.Unlock()
	for i := range s.mem.Bytes() {
		s.mem.Bytes()[i] = byte(i * 7)
	}
	wrs := []verbs.SendWR{
		{Opcode: verbs.OpRDMAWrite, RemoteAddr: 1 << 40, RKey: 0xabcd},
		{Opcode: verbs.OpRDMAWriteWithImm, RemoteAddr: 1 << 41, RKey: 0xabcd, Imm: 9},
		{Opcode: verbs.OpSend},
	}
	for i, size := range []uint32{3*256 + 101, 5, 64} {
		wrs[i].SetSGE(s.sge(0, size))
	}
	post(t, q, wrs...)
	check(t, peer.SetReadDeadline(time.Now().Add(time.Minute)))
	for range 6 {
		b := make([]byte, 4096)
		n, err := peer.Read(b)
		check(t, err)
		all = append(all, b[:n])
	}
	return all, q.path.route
}

// TestICRCOfOthers: packets to a peer that does not accept header ICRCs are independent of the setting,
// and equal to those of a version without it, except for the ICRC, which depends on the source port.
func TestICRCOfOthers(t *testing.T) {
	for _, peer := range []struct {
		name   string
		extra  []byte
		sha256 string
	}{
		{"another kind of NIC", nil, "f23d717d5bd07772c7517715c32075710a0a1a81dcb143c6b3b55454c8ded8bb"},
		{"a softnic without the setting", []byte{'s', 'n', extraVersion, extraRuns | extraFill, 0, 0, 4, 0}, "045c9e1a1f887f0263e6fac4f55ddd6420ab5fe2e742d98dae52755d913d08a1"},
	} {
		for icrc := range ICRCHeaders + 1 {
			all, way := sentTo(t, icrcStation(t, UDPConfig{ICRC: icrc}, "127.0.0.62"), peer.extra)
			var e roce.Explainer
			for i, b := range all {
				packet := roce.Trim(b)
				if id, ok := way.flow.Check(packet, &e); !ok {
					t.Errorf("%s, ICRC %d, packet %d: the ICRC does not cover everything (%d)", peer.name, icrc, i, id)
				}
				clear(packet[len(packet)-icrcLen:])
			}
			if sum := sha256.Sum256(bytes.Join(all, nil)); hex.EncodeToString(sum[:]) != peer.sha256 {
				t.Errorf("%s, ICRC %d: packets have the SHA-256 %x, want %s", peer.name, icrc, sum, peer.sha256)
			}
		}
	}
}

// TestICRCOfHeaders: packets to a peer that accepts header ICRCs are marked and carry one, and are
// otherwise unchanged.
func TestICRCOfHeaders(t *testing.T) {
	s := icrcStation(t, UDPConfig{}, "127.0.0.62")
	plain, _ := sentTo(t, s, []byte{'s', 'n', extraVersion, extraRuns | extraFill, 0, 0, 4, 0})
	all, way := sentTo(t, s, []byte{'s', 'n', extraVersion, extraRuns | extraFill | extraOnHost, 0, 0, 4, 0})
	var e roce.Explainer
	for i, b := range all {
		packet, want := roce.Trim(b), roce.Trim(plain[i])
		if id, ok := way.flow.CheckHeaders(packet, &e); !ok {
			t.Errorf("packet %d: the ICRC is not that of the headers (%d)", i, id)
		}
		way.flow.Restore(packet, 0)
		if n := len(packet) - icrcLen; len(b) != len(plain[i]) || !bytes.Equal(packet[:n], want[:n]) {
			t.Errorf("packet %d restored:\n%x, want\n%x", i, packet, want)
		}
	}
}

// TestICRCReceive: a NIC accepts the ICRCs permitted by its setting. Arbitrary reserved bits imply a
// full ICRC.
func TestICRCReceive(t *testing.T) {
	for _, tt := range []struct {
		name          string
		icrc          ICRC
		headers, flag bool
		damage        int // index of the modified byte, 0 for none
		want          bool
	}{
		{"headers", ICRCAuto, true, true, 0, true},
		{"headers, damaged payload", ICRCAuto, true, true, 40, true},
		{"headers, damaged address", ICRCAuto, true, true, 15, false},
		{"headers, not said", ICRCAuto, true, false, 0, false},
		{"headers, not permitted", ICRCFull, true, true, 0, false},
		{"headers, asked for", ICRCHeaders, true, true, 0, true},
		{"full", ICRCHeaders, false, false, 0, true},
		{"full, damaged payload", ICRCHeaders, false, false, 40, false},
		{"full, foreign bits", ICRCHeaders, false, true, 0, true},
		{"full, foreign bits, damaged payload", ICRCAuto, false, true, 40, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newBesieged(t)
			s.nic.udp.udpNIC.link.cfg.ICRC = tt.icrc
			b := make([]byte, roce.DatagramLen(roce.OpWriteOnly, 64))
			h := roce.Header{
				Opcode: roce.OpWriteOnly, DestQPN: s.qps[0].num, PKey: roce.PKeyDefault, HeaderICRC: tt.flag,
				VA: s.mem.Addr() + guardBytes, RKey: s.key, DMALen: 64,
			}
			n := h.Encode(b, 64)
			if tt.headers {
				s.flow.Begin(b[:n], len(b), 7).FinishHeaders(b[len(b)-icrcLen:], 0)
			} else {
				s.flow.Seal(b, 7)
			}
			if tt.damage > 0 {
				b[tt.damage] ^= 4
			}
			s.attack(b, len(b))
			if got := s.nic.Stats(); (got.PacketsReceived == 1) != tt.want || (got.BadICRC == 0) != tt.want {
				t.Errorf("%d packets received, %d with a wrong ICRC, want it accepted: %v", got.PacketsReceived, got.BadICRC, tt.want)
			}
		})
	}
}

// TestICRCMixed: NICs with any two settings accept each other's packets.
func TestICRCMixed(t *testing.T) {
	for mine := range ICRCHeaders + 1 {
		for theirs := range ICRCHeaders + 1 {
			t.Run(fmt.Sprintf("%d and %d", mine, theirs), func(t *testing.T) {
				a, b := icrcStation(t, UDPConfig{ICRC: mine}, "127.0.0.64"), icrcStation(t, UDPConfig{ICRC: theirs}, "127.0.0.65")
				writeTo(t, a, b, 20)
				writeTo(t, b, a, 20)
				for _, s := range []*nicRig{a, b} {
					if got := s.nic.Stats().BadICRC; got > 0 {
						t.Errorf("%d packets with a bad ICRC, want none", got)
					}
				}
			})
		}
	}
}
