package reliable

import (
	"bytes"
	"testing"

	"ibverbx/reliable/wire"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// datagramRig is a QP over UD alone that is connected to itself, with two regions: one for its peer, one not.
type datagramRig struct {
	ctx        *pathContext
	q          *qp
	mem, other *verbs.Memory
	mr         verbs.MR
}

func newDatagramRig(tb testing.TB) *datagramRig {
	tb.Helper()
	r := &datagramRig{}
	for _, m := range []**verbs.Memory{&r.mem, &r.other} {
		var err error
		*m, err = verbs.AllocMemory(4096, nil)
		fatal(tb, err)
		tb.Cleanup(func() { fatal(tb, (*m).Free()) })
	}
	q, p := newQP(tb, softnic.NewMemoryLink(nil), onlyUD, 0, Config{Paths: 2})
	r.ctx, r.q = q.ctx, q
	_, err := p.RegisterMemory(r.other, verbs.AccessLocalWrite)
	fatal(tb, err)
	r.mr, err = p.RegisterMemory(r.mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	fatal(tb, err)
	q.connectTo(tb, q)
	return r
}

// datagram returns a receive buffer with a datagram from an address, and its completion.
func (r *datagramRig) datagram(from verbs.GID, qpn uint32, imm wire.Imm, payload []byte) ([]byte, *verbs.WC) {
	b := make([]byte, verbs.GRHLen, verbs.GRHLen+len(payload))
	b[0] = 0x60
	copy(b[8:], from[:])
	wc := &verbs.WC{Flags: verbs.WCWithImm | verbs.WCGRH, Imm: imm.Encode(), ByteLen: uint32(verbs.GRHLen + len(payload)), SrcQPN: qpn}
	return append(b, payload...), wc
}

// write returns a first transmission of 8 bytes to an address.
func (r *datagramRig) write(addr uint64, rkey uint32) []byte {
	const n = 8
	b := make([]byte, wire.HeaderLen+n)
	h := wire.Header{Op: wire.OpWrite, Flags: wire.FlagLap, Conn: r.q.conn.id, Addr: addr, RKey: rkey, Len: uint32(n)}
	h.Put(b)
	copy(b[wire.HeaderLen:], bytes.Repeat([]byte{7}, n))
	return b
}

// TestDatagramStrangers: a datagram counts only from the QP and the address of the peer. Others, and malformed ones, are
// counted and change nothing.
func TestDatagramStrangers(t *testing.T) {
	r := newDatagramRig(t)
	c, d := r.q.conn, &r.q.engine.resources.data[1]
	peer, qpn := c.attr.AH.DGID, c.peer.paths[1].qpn
	stranger := peer
	stranger[15]++
	good := r.write(r.mr.Addr(), r.mr.RKey())
	chunk := wire.Imm{Kind: wire.KindChunk}
	change := func(at int, to byte) []byte {
		b := bytes.Clone(good)
		b[at] = to
		return b
	}
	ack := wire.StartControl(nil, c.id)
	ack, _ = wire.AddRecord(ack, &wire.Record{Type: wire.Ping, Path: 1})
	for name, bad := range map[string]struct {
		from    verbs.GID
		qpn     uint32
		imm     wire.Imm
		payload []byte
	}{
		"address":               {stranger, qpn, chunk, good},
		"QP number":             {peer, qpn + 1, chunk, good},
		"QP of another path":    {peer, c.peer.paths[0].qpn, chunk, good},
		"no bytes":              {peer, qpn, chunk, nil},
		"half a header":         {peer, qpn, chunk, good[:12]},
		"fewer bytes":           {peer, qpn, chunk, good[:len(good)-1]},
		"version":               {peer, qpn, chunk, change(0, wire.Version-1)},
		"op":                    {peer, qpn, chunk, change(1, 99)},
		"a chunk of UC":         {peer, qpn, chunk, change(2, 0)},
		"connection":            {peer, qpn, chunk, change(4, 0xff)},
		"placed by the NIC":     {peer, qpn, wire.Imm{Kind: wire.KindData}, good},
		"control from stranger": {stranger, qpn, wire.Imm{Kind: wire.KindControl}, ack},
		"control, half":         {peer, qpn, wire.Imm{Kind: wire.KindControl}, ack[:9]},
	} {
		b, wc := r.datagram(bad.from, bad.qpn, bad.imm, bad.payload)
		before := r.ctx.Stats().Malformed
		d.arrived(b, wc)
		if got := r.ctx.Stats().Malformed - before; got != 1 || r.mem.Bytes()[0] != 0 {
			t.Errorf("%s: counted %d times, memory begins with %d, want 1 and 0", name, got, r.mem.Bytes()[0])
		}
	}
	b, wc := r.datagram(peer, qpn, chunk, good)
	if d.arrived(b, wc); r.mem.Bytes()[7] != 7 {
		t.Fatal("a good datagram has not been placed")
	}
	if s := r.q.State(); s != verbs.StateRTS {
		t.Fatalf("the QP is %v, want RTS", s)
	}
}

// TestDatagramSeals: on a QP that peers share, a datagram counts only under the Seal of its connection's peer, even if address, numbers and
// contents are right: a peer cannot forge another's, and a plain one is no peer's.
func TestDatagramSeals(t *testing.T) {
	const own, others = 7, 8
	ping := func(c *connection) []byte {
		b := wire.StartControl(nil, c.id)
		b, _ = wire.AddRecord(b, &wire.Record{Type: wire.Ping, Path: 1})
		return b
	}
	for _, tt := range []struct {
		name       string
		conn, seal uint32 // 0 means plain
		want       bool
	}{
		{"sealed by the peer", own, own, true},
		{"sealed by another peer", own, others, false},
		{"plain", own, 0, false},
		{"both plain", 0, 0, true},
		{"sealed, of a plain connection", 0, others, false},
	} {
		r := newDatagramRig(t)
		c := r.q.conn
		c.seal = tt.conn
		seal := func(wc *verbs.WC) *verbs.WC {
			wc.Seal = own // what is left there by an earlier datagram
			if tt.seal != 0 {
				wc.Flags, wc.Seal = wc.Flags|verbs.WCSealed, tt.seal
			}
			return wc
		}
		refused := func(what string, want uint64) {
			t.Helper()
			if tt.want {
				want = 0
			}
			if got := r.ctx.Stats().Malformed; got != want {
				t.Errorf("%s: %d datagrams refused with the %s, want %d", tt.name, got, what, want)
			}
		}
		h := &r.q.engine.resources
		b, wc := r.datagram(c.attr.AH.DGID, c.peer.paths[1].qpn, wire.Imm{Kind: wire.KindChunk}, r.write(r.mr.Addr(), r.mr.RKey()))
		h.data[1].arrived(b, seal(wc))
		if refused("chunk", 1); (r.mem.Bytes()[7] == 7) != tt.want {
			t.Errorf("%s: memory has %d, want the chunk placed: %v", tt.name, r.mem.Bytes()[7], tt.want)
		}
		b, wc = r.datagram(c.attr.AH.DGID, c.peer.paths[1].qpn, wire.Imm{Kind: wire.KindControl}, ping(c))
		h.data[1].arrived(b, seal(wc))
		refused("records of a path", 2)
		b, wc = r.datagram(c.attr.AH.DGID, c.peer.control[1], wire.Imm{}, ping(c))
		copy(h.control[1].in.slot(3), b)
		h.control[1].arrived(3, seal(wc))
		refused("control packet", 3)
	}
}

// TestDatagramBeyondRegion: a WRITE beyond its region, or to one that the peer may not write, ends the QP with an event.
func TestDatagramBeyondRegion(t *testing.T) {
	for name, at := range map[string]uint64{"beyond": 4090, "far beyond": 1 << 40} {
		r := newDatagramRig(t)
		c := r.q.conn
		b, wc := r.datagram(c.attr.AH.DGID, c.peer.paths[0].qpn, wire.Imm{Kind: wire.KindChunk}, r.write(r.mr.Addr()+at, r.mr.RKey()))
		r.q.engine.resources.data[0].arrived(b, wc)
		var ev [8]verbs.Event
		n, err := r.ctx.Events(ev[:])
		fatal(t, err)
		if s := r.q.State(); s != verbs.StateErr || n == 0 || ev[0].Type != verbs.EventQPAccessErr {
			t.Errorf("%s: the QP is %v with %d events, %v, want ERR and an access error", name, s, n, ev[0].Type)
		}
	}
}

// FuzzDatagram gives arbitrary datagrams of the peer, and of others, to the QPs of paths and to a handshake QP. Memory that the
// peer may not write stays as it is, and nothing panics.
func FuzzDatagram(f *testing.F) {
	seed := newDatagramRig(f)
	good := seed.write(seed.mr.Addr(), seed.mr.RKey())
	f.Add(uint32(1<<30), byte(0), good)
	f.Add(uint32(2<<30), byte(1), wire.StartControl(nil, seed.q.conn.id))
	f.Add(uint32(0), byte(2), []byte{wire.Version, kindLast, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3})
	f.Add(uint32(0), byte(2), []byte{wire.Version, kindAck, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, imm uint32, to byte, payload []byte) {
		r := newDatagramRig(t)
		c := r.q.conn
		i := int(to & 1)
		qpn := c.peer.paths[i].qpn
		if to&2 != 0 {
			qpn = r.q.num
		}
		if len(payload) >= 8 && to&4 != 0 {
			h := wire.Header{Conn: c.id, Flags: wire.FlagLap} // of this run
			var b [wire.HeaderLen]byte
			h.Put(b[:])
			copy(payload[4:8], b[4:8])
		}
		b, wc := r.datagram(c.attr.AH.DGID, qpn, wire.Imm{}, payload)
		wc.Imm = imm
		if to&2 != 0 {
			r.q.handshake.cardQP.accept(append(b, make([]byte, 8)...), wc)
		} else {
			r.q.engine.resources.data[i].arrived(b, wc)
		}
		if !bytes.Equal(r.other.Bytes(), make([]byte, 4096)) {
			t.Fatal("memory was written that the peer may not write")
		}
	})
}

// TestQKeys: the UD QPs of an engine have a random Q_Key, which cards name. The NIC drops datagrams with another one.
func TestQKeys(t *testing.T) {
	r, other := newDatagramRig(t), newDatagramRig(t)
	h := &r.q.engine.resources
	own, foreign := h.qkey, other.q.engine.resources.qkey
	if own == foreign || own == verbs.DefaultQKey || own>>31 != 0 || r.q.conn.peer.qkey != own {
		t.Fatalf("the Q_Keys of two engines are %#x and %#x, and a card names %#x: want two of 31 bits, and the first", own, foreign, r.q.conn.peer.qkey)
	}
	for name, to := range map[string]verbs.QP{"control QP": h.control[0].qp, "QP of a path": h.data[1].qp} {
		for _, key := range []uint32{verbs.DefaultQKey, foreign, own ^ 1, own} {
			r.q.engine.inbox.drain()
			r.q.engine.inbox.stash = r.q.engine.inbox.stash[:0]
			wr := verbs.SendWR{Opcode: verbs.OpSend, AH: r.q.conn.paths[0].ah.Handle(), RemoteQPN: to.Num(), RemoteQKey: key}
			wr.SetSGE(r.q.conn.headers.sge(0, 4))
			_, err := h.data[0].qp.PostSend([]verbs.SendWR{wr})
			fatal(t, err)
			r.q.engine.inbox.drain()
			got := 0
			for _, wc := range r.q.engine.inbox.stash {
				if wc.QPN == to.Num() && wc.Opcode == verbs.WCRecv {
					got++
				}
			}
			if want := key == own; (got == 1) != want {
				t.Errorf("%s: a datagram with Q_Key %#x, of %#x, arrived %d times, want %v", name, key, own, got, want)
			}
		}
	}
}
