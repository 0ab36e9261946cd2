//go:build linux

package softnic

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/internal/shm"
	"ibverbx/internal/udp"
	"ibverbx/verbs"
)

// shmBesieger is a peer on a ShmLink, or a neighbor, that writes arbitrary data into its segment and its socket.
type shmBesieger struct {
	conn    *shm.Conn
	segment shm.Segment
}

// newShmBesieged returns a NIC on a ShmLink and its peer.
func newShmBesieged(t *testing.T) (*besieged, *shmBesieger) {
	t.Helper()
	conns, err := shm.Pair()
	check(t, err)
	peer := &shmBesieger{}
	peer.conn, err = shm.NewConn(conns[1])
	check(t, err)
	t.Cleanup(func() { _ = peer.conn.Close() })
	var fd int
	peer.segment, fd, err = shm.Create(shm.SegmentSize, true)
	check(t, err)
	t.Cleanup(func() { shm.Unmap(peer.segment) })
	peer.conn.Send(shm.Message{Kind: shm.Hello, Addr: 9, Size: shm.SegmentSize}, fd)
	shm.Close(fd)
	link, err := NewShmLink(conns[0])
	check(t, err)
	s := &besieged{}
	s.nic, err = New(link, Config{MTU: verbs.MTU256})
	check(t, err)
	s.furnish(t, shmAddr(9))
	return s, peer
}

// newNeighborBesieged returns a NIC on a UDPLink and its neighbor.
func newNeighborBesieged(t *testing.T) (*besieged, *shmBesieger) {
	t.Helper()
	link, err := NewUDPLink(&UDPConfig{SharedMemory: true})
	check(t, err)
	s, peer := &besieged{}, &shmBesieger{}
	s.nic, err = New(link, Config{Addr: netip.MustParseAddr("127.0.0.21"), MTU: verbs.MTU256})
	check(t, err)
	at := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.22"), roce.Port)
	s.furnish(t, verbs.GIDFromAddr(at.Addr()))
	from := netip.AddrPortFrom(at.Addr(), 50000)
	s.from = udp.Datagram{From: verbs.GIDFromAddr(from.Addr()), Port: from.Port()}
	s.flow, err = roce.NewFlow(from, s.nic.udp.conn.Addr())
	check(t, err)
	c, err := net.DialUnix("unix", nil, socketOf(s.nic.udp.conn.Addr()))
	check(t, err)
	peer.conn, err = shm.NewConn(c)
	check(t, err)
	t.Cleanup(func() { _ = peer.conn.Close() })
	var fd int
	peer.segment, fd, err = shm.Create(shm.SegmentSize, true)
	check(t, err)
	t.Cleanup(func() { shm.Unmap(peer.segment) })
	peer.segment.Sign(9, at)
	peer.conn.Send(shm.Message{Kind: shm.Hello, Addr: 9, Size: shm.SegmentSize}, fd)
	shm.Close(fd)
	for deadline := time.Now().Add(time.Minute); s.nic.core.udpNIC.discovery.rings.Load() == 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("the NIC has not accepted its neighbor")
		}
	}
	return s, peer
}

// enter writes an entry into the besieger's ring, with its length and header unmodified. A small QP
// number is an index of s.qps. In a line, key 1 stands for the region's key, and the address is
// relative to the region.
func (p *shmBesieger) enter(k int, entry []byte, s *besieged) {
	slot, qps := p.segment.Ring()[k%shm.Slots*shm.CacheLine:][:shm.CacheLine], s.qps
	copy(slot[4:], entry)
	bth := slot[shm.CacheLine-shm.Header:]
	var m shm.Line
	if _, ok := m.Decode((*[shm.Header]byte)(bth), make([]byte, min(binary.NativeEndian.Uint32(slot[4:]), shm.MaxPayload))); ok && bth[shm.Header-1] == shmLine {
		if int(m.QPN) < len(qps) {
			m.QPN = qps[m.QPN].num
		}
		if m.Key == 1 {
			m.Key, m.Addr = s.key, m.Addr+s.mem.Addr()+guardBytes
		}
		m.Encode(bth)
	} else if flags := binary.BigEndian.Uint32(bth[4:]); flags&roce.PSNMask < uint32(len(qps)) {
		binary.BigEndian.PutUint32(bth[4:], flags&^roce.PSNMask|qps[flags&roce.PSNMask].num)
	}
	shm.Word32(slot, 0).Store(uint32(k + 1))
}

// shmEntry returns an entry with a packet.
func shmEntry(h roce.Header, length int, mark byte) []byte {
	var w shm.Writer
	b := make([]byte, shm.RingSize)
	w.Init(b, nil)
	header, _ := w.Begin(length)
	h.PKey = roce.PKeyDefault
	h.Encode(header, length)
	header[shm.Header-1] = mark
	return bytes.Clone(b[4:shm.CacheLine])
}

// shmLineEntry returns an entry with a line whose payload is b.
func shmLineEntry(m shm.Line, b ...byte) []byte {
	var w shm.Writer
	ring := make([]byte, shm.RingSize)
	w.Init(ring, nil)
	header, _ := w.Begin(m.Payload())
	copy(m.Encode(header), b)
	header[shm.Header-1] = shmLine
	return bytes.Clone(ring[4:shm.CacheLine])
}

// FuzzShmPeer: whatever a peer writes into its ring, its tables and its socket, the NIC touches only memory
// granted to the peer, and keeps working.
func FuzzShmPeer(f *testing.F) { fuzzShmPeer(f, newShmBesieged) }

// FuzzNeighbor is FuzzShmPeer for a neighbor on a UDPLink.
func FuzzNeighbor(f *testing.F) { fuzzShmPeer(f, newNeighborBesieged) }

func fuzzShmPeer(f *testing.F, begin func(t *testing.T) (*besieged, *shmBesieger)) {
	const qpn = 0 // the RC QP
	for _, e := range [][]byte{
		shmEntry(roce.Header{Opcode: roce.RC | roce.OpSendOnly, DestQPN: qpn}, 8, 0),
		shmEntry(roce.Header{Opcode: roce.RC | roce.OpWriteOnlyImm, DestQPN: qpn, DMALen: 1 << 31}, 0, shmPlaced),
		shmEntry(roce.Header{Opcode: roce.RC | roce.OpSendOnly, DestQPN: qpn}, 0, shmPlaced),
		shmEntry(roce.Header{Opcode: roce.RC | roce.OpReadRequest, DestQPN: qpn, DMALen: 100}, 0, 0),
		shmEntry(roce.Header{Opcode: roce.UC | roce.OpSendFirst, DestQPN: qpn + 1}, 256, 0),
		shmEntry(roce.Header{Opcode: roce.RC | roce.OpAck, DestQPN: qpn, Syndrome: roce.SyndromeAck}, 0, 0),
	} {
		f.Add(append(bytes.Clone(e), e...), []byte{1, 0, 0, 0}, []byte{byte(shm.ShareFile), 1, 1, byte(shm.ShareDevice), 1, 1})
	}
	for _, m := range []shm.Line{
		{Flags: shm.LineSend, QPN: qpn, Length: 8},
		{Flags: shm.LineSend | shm.LineImm, QPN: qpn, Length: shm.MaxPayload},
		{Flags: shm.LineImm, QPN: qpn, Key: 1, Length: guardBytes},
		{Flags: shm.LineImm | shm.LineSolicited, QPN: qpn, Key: 1, Addr: 1, Length: guardBytes},
		{Flags: shm.LineImm, QPN: qpn, Key: 7, Length: 1},
		{Flags: shm.LineImm, QPN: qpn + 1, PSN: 1},
	} {
		e := shmLineEntry(m, 1, 2, 3, 4, 5, 6, 7, 8)
		m.PSN++
		f.Add(append(e, shmLineEntry(m)...), []byte{1, 0, 0, 0}, []byte{byte(shm.ShareFile), 1, 1})
	}
	f.Fuzz(func(t *testing.T, entries, table, messages []byte) {
		s, p := begin(t)
		for k := 0; len(entries) >= shm.CacheLine-4 && k < 8; k++ {
			p.enter(k, entries[:shm.CacheLine-4], s)
			entries = entries[shm.CacheLine-4:]
		}
		q := s.qps[0]
		for k := 0; len(table) >= 4*k+4; k++ {
			p.segment.Key(table0(table) + uint32(k)).Store(binary.NativeEndian.Uint32(table[4*k:]))
		}
		p.grant(q, table0(table))
		for k := 0; len(messages) >= 3 && k < 8; k++ {
			p.send(messages)
			messages = messages[3:]
		}
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpSend, verbs.OpRDMAWriteWithImm} {
			wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, RKey: table0(table), RemoteAddr: uint64(table0(table)) << 8}
			wr.SetSGE(verbs.SGE{Addr: s.mem.Addr() + guardBytes, Length: 100, LKey: s.key})
			_, _ = q.PostSend([]verbs.SendWR{wr}) // the QP may be in the error state
		}
		var wcs [16]verbs.WC
		for range 4 {
			_, err := q.sendCQ.Poll(wcs[:])
			check(t, err)
		}
		b := s.mem.Bytes()
		if i := bytes.IndexFunc(b[:guardBytes], func(r rune) bool { return r != 0 }); i >= 0 {
			t.Errorf("byte %d before the region has changed", i)
		}
		if i := bytes.IndexFunc(b[2*guardBytes:], func(r rune) bool { return r != 0 }); i >= 0 {
			t.Errorf("byte %d behind the region has changed", i)
		}
	})
}

// table0 returns the index that a fuzzed table names.
func table0(b []byte) uint32 {
	if len(b) == 0 {
		return 1
	}
	return uint32(b[0])
}

// send sends the message described by three fuzzed bytes, with a descriptor of its own memory.
func (p *shmBesieger) send(b []byte) {
	m := shm.Message{Kind: shm.Kind(b[0]), Access: uint16(b[1]), Key: uint32(b[2]), Domain: 1, Addr: uint64(b[2]) << 8, Size: uint64(b[1]) << 9}
	if m.Kind == shm.ShareDevice {
		m.Handle = string(b)
	}
	fd := -1
	if b[1]&2 == 0 && m.Kind != shm.ShareDevice {
		var err error
		var bytes []byte
		if bytes, fd, err = shm.Create(8192, true); err != nil {
			return
		}
		shm.Unmap(bytes)
	}
	p.conn.Send(m, fd) // the NIC may have closed it
	shm.Close(fd)
}
