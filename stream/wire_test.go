package stream

import (
	"bytes"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/service"
	"ibverbx/node"
	"ibverbx/verbs"
)

type encoder interface{ encode() []byte }

// messages returns one of each kind.
func messages() []encoder {
	ring := ibverbx.RemoteRegion{Addr: 1 << 40, Length: MinRing, RKeys: []uint32{1, 2}}
	return []encoder{
		&open{from: 7, ring: ring, service: "grpc"},
		&accept{to: 7, from: 8, ring: ring},
		&refuse{to: 7, code: codeBusy, text: "later"},
	}
}

func TestMessages(t *testing.T) {
	for _, m := range messages() {
		b := m.encode()
		got, err := decode(b)
		if err != nil || !reflect.DeepEqual(got, any(m)) {
			t.Errorf("decode(%x) = %+v and %v, want %+v", b, got, err, m)
		}
		for n := range b {
			if got, err := decode(b[:n]); err == nil && !bytes.Equal(got.(encoder).encode(), b[:n]) {
				t.Errorf("decode of %d of %d bytes of %T = %+v, want an error", n, len(b), m, got)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range messages() {
		f.Add(m.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := decode(b)
		if err != nil {
			if !errors.Is(err, errProtocol) {
				t.Errorf("decode(%x): got error %v, want %v", b, err, errProtocol)
			}
			return
		}
		if again := m.(encoder).encode(); !bytes.Equal(again, b) {
			t.Errorf("decode(%x) = %+v, which is encoded as %x", b, m, again)
		}
	})
}

func FuzzImmediates(f *testing.F) {
	f.Add(data{id: 1, end: true}.encode())
	f.Add(credit{id: 0xffff, count: 5, stop: true}.encode())
	f.Fuzz(func(t *testing.T, imm uint32) {
		switch service.Class(imm) {
		case classData:
			if d, err := decodeData(imm); err == nil && d.encode() != imm {
				t.Errorf("decodeData(%#x) = %+v", imm, d)
			}
		case classCredit:
			if c := decodeCredit(imm); c.encode() != imm {
				t.Errorf("decodeCredit(%#x) = %+v", imm, c)
			}
		}
	})
}

// TestFalseMessages sends invalid messages. At worst they close the session, and streams can be dialed
// afterwards.
func TestFalseMessages(t *testing.T) {
	ring := ibverbx.RemoteRegion{Addr: 4096, Length: MinRing, RKeys: []uint32{1}}
	for _, c := range []struct {
		name string
		body []byte
		ends bool
	}{
		{"nothing", nil, true},
		{"an unknown kind", []byte{99}, true},
		{"the greeting of version 1", []byte{1, 1, 0, 1, 0, 0}, true},
		{"a stream that was not asked for", (&accept{to: 1, from: 2, ring: ring}).encode(), true},
		{"a refusal of nothing", (&refuse{to: 1, code: codeBusy}).encode(), true},
		{"a ring that is no power of two", (&open{1, ibverbx.RemoteRegion{Length: MinRing + 1, RKeys: []uint32{1}}, "test"}).encode(), true},
		{"a ring behind the end of memory", (&open{1, ibverbx.RemoteRegion{Addr: math.MaxUint64, Length: MinRing, RKeys: []uint32{1}}, "test"}).encode(), true},
		{"a ring without keys", (&open{1, ibverbx.RemoteRegion{Length: MinRing}, "test"}).encode(), true},
		{"a long name", (&open{1, ring, strings.Repeat("x", MaxService+1)}).encode(), true},
		{"a name that is no name", (&open{1, ring, "\xff"}).encode(), true},
		{"a service that is not there", (&open{1, ring, "nothing"}).encode(), true}, // an unsolicited response
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
			p.dial(t)
			wantOK(t, "Send", p.peer.Service().Session().Send(soon(t), service.StreamID, c.body))
			if c.ends {
				eventually(t, "the session has ended", func() bool { return p.peer.Stats().Sessions > 1 })
			}
			here, there := p.dial(t)
			_, err := here.Write([]byte("x"))
			wantOK(t, "Write", err)
			readAll(t, there, 1)
			if n := p.peer.Stats().Sessions; !c.ends && n != 1 {
				t.Errorf("there were %d sessions, want 1", n)
			}
		})
	}
}

// TestFalseRing: a peer exports a ring it does not own, or with too few keys. At worst the session is closed
// with its stream.
func TestFalseRing(t *testing.T) {
	p := newPair(t, memoryNetwork(2), Config{Ring: MinRing})
	for _, ring := range []ibverbx.RemoteRegion{
		{Addr: 4096, Length: MinRing, RKeys: []uint32{1}},
		{Addr: 4096, Length: MinRing, RKeys: []uint32{1, 2}},
		{Addr: 4096, Length: MinRing, RKeys: []uint32{1, 2, 3, 4}},
	} {
		p.redial(t)
		h, err := serviceOf(p.there.Node)
		wantOK(t, "hostOf", err)
		for _, p := range h.All() {
			answer := p.serve(p.Session, &open{from: 7, ring: ring, service: "test"})
			if kind(answer[0]) != kindAccept {
				t.Fatalf("the answer is %x, want one that accepts", answer)
			}
		}
		c, err := p.l.Accept()
		wantOK(t, "Accept", err)
		for err == nil {
			_, err = c.Write(make([]byte, 1000))
		}
		wantOK(t, "Close", c.Close())
	}
	p.redial(t)
}

// redial opens a stream and closes it, in the next session if this one is being lost.
func (p *pair) redial(t *testing.T) {
	t.Helper()
	eventually(t, "there is a stream", func() bool {
		c, err := p.cfg.Dial(soon(t), p.peer, "test")
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	for range len(p.l.(*Listener).queue) {
		c, err := p.l.Accept()
		wantOK(t, "Accept", err)
		_ = c.Close()
	}
}

// raw is an operation of a false peer.
type raw struct {
	service.Op
	done chan error
}

func (o *raw) End(_ *service.Op, err error) { o.done <- err }

// inject sends an immediate with length bytes to a stream's peer.
func inject(c *Conn, imm uint32, length int) error {
	o := &raw{done: make(chan error, 1)}
	o.Blocks = []service.Block{{Local: c.block.region, Remote: &c.ring, Length: uint64(length), Opcode: verbs.OpRDMAWrite}}
	o.Notify, o.Imm, o.Sink = true, imm, o
	c.peer.service.Submit(&o.Op)
	return <-o.done
}

// TestFalseImmediates sends immediates that no honest peer sends.
func TestFalseImmediates(t *testing.T) {
	for _, c := range []struct {
		name   string
		imm    func(id uint16) uint32
		length int
		ends   bool
	}{
		{"bytes without room", func(id uint16) uint32 { return data{id: id}.encode() }, MinRing, true},
		{"bytes of another stream", func(id uint16) uint32 { return data{id: id + 1}.encode() }, 0, false},
		{"unknown flags", func(id uint16) uint32 { return data{id: id}.encode() | 1<<20 }, 0, true},
		{"cut without an end", func(id uint16) uint32 { return data{id: id, cut: true}.encode() }, 0, true},
		{"credit for nothing", func(id uint16) uint32 { return credit{id: id, count: 1}.encode() }, 0, true},
		{"credit that goes back", func(id uint16) uint32 { return credit{id: id, count: countMask}.encode() }, 0, true},
		{"credit for another stream", func(id uint16) uint32 { return credit{id: id + 1, count: 1}.encode() }, 0, false},
		{"credit that is repeated", func(id uint16) uint32 { return credit{id: id}.encode() }, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
			here, there := p.dial(t)
			_, err := here.Write([]byte("x"))
			wantOK(t, "Write", err)
			eventually(t, "it has arrived", func() bool { return there.Info().Unread == 1 })
			_ = inject(here, c.imm(here.remoteID), c.length) // the session may be closed already
			if c.ends {
				eventually(t, "the session has ended", func() bool { return p.peer.Stats().Sessions > 1 })
				here, there = p.dial(t)
				_, err = here.Write([]byte("x"))
				wantOK(t, "Write", err)
			}
			wantOK(t, "CloseWrite", here.CloseWrite())
			b, err := io.ReadAll(there)
			if err != nil || string(b) != "x" {
				t.Errorf("ReadAll: got %q and %v, want x", b, err)
			}
			if n := p.peer.Stats().Sessions; !c.ends && n != 1 {
				t.Errorf("there were %d sessions, want 1", n)
			}
		})
	}
}

// TestBytesBehindEnd: data after the end of a stream is a protocol error.
func TestBytesBehindEnd(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{Ring: MinRing})
	here, there := p.dial(t)
	wantOK(t, "CloseWrite", here.CloseWrite())
	eventually(t, "the end has come", func() bool {
		there.mu.Lock()
		defer there.mu.Unlock()
		return there.in.ended
	})
	_ = inject(here, data{id: here.remoteID}.encode(), 1)
	eventually(t, "the session has ended", func() bool { return p.peer.Stats().Sessions > 1 })
}

// later is the service of a peer that speaks a later version.
type later struct{ service.Handler }

func (later) Hello(service.Session) ([]byte, bool) { return []byte("fields of a later version"), true }
func (later) Gone(service.Peer, error)             {}

// TestAnotherVersion: Dial to a peer with a later version fails immediately, and the error names both
// versions. The next peer at the address may have a matching version.
func TestAnotherVersion(t *testing.T) {
	p := newPair(t, memoryNetwork(1), Config{})
	p.dial(t)
	there := p.there.Service()
	host := there.Attached(service.StreamID)
	there.Detach(service.StreamID)
	wantOK(t, "Attach", there.Attach(service.Service{ID: service.StreamID, Version: version + 1, Handler: later{}}))
	eventually(t, "Dial fails", func() bool {
		_, err := Dial(soon(t), p.peer, "test")
		return errors.Is(err, node.ErrVersion) && strings.Contains(err.Error(), "peer speaks stream protocol 3, this side 2")
	})
	there.Detach(service.StreamID)
	wantOK(t, "Attach", there.Attach(service.Service{ID: service.StreamID, Version: version, Handler: host}))
	eventually(t, "Dial succeeds", func() bool {
		c, err := Dial(soon(t), p.peer, "test")
		if err != nil {
			return false
		}
		_ = c.Reset()
		return true
	})
}
