package transfer

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/service"
	"ibverbx/verbs"
)

type encoder interface{ encode() []byte }

// messages returns one of each kind.
func messages() []encoder {
	region := ibverbx.RemoteRegion{Addr: 1 << 40, Length: 1 << 33, RKeys: []uint32{1, 2}}
	return []encoder{
		&open{id: 1, want: Read | Write, name: "kv"},
		&grant{id: 1, number: 2, access: Write, region: region},
		&digest{id: 3, ranges: []digestRange{{1, 1 << 35, maxRange}, {2, 0, 1}}},
		&digests{id: 3, sums: []uint32{1, math.MaxUint32}},
		&revoke{5, 6, 7},
		&revoked{6},
		&list{7, "kv"},
		&listed{7, true, []SegmentInfo{{"a", 1 << 40, Read, 3}, {"b", 1, Read | Write, math.MaxUint64}}},
		&listed{id: 8},
	}
}

// wantStrict checks that a message survives a round trip, and that every prefix that decodes does too.
func wantStrict(t *testing.T, m encoder) {
	t.Helper()
	b := m.encode()
	if got, err := decode(b); err != nil {
		t.Errorf("decode(%+v): got %v, want no error", m, err)
	} else if again := got.(encoder).encode(); !bytes.Equal(again, b) {
		t.Errorf("decode(%T) = %+v, which is encoded as %x, not %x", m, got, again, b)
	}
	for n := range b {
		if got, err := decode(b[:n]); err == nil && !bytes.Equal(got.(encoder).encode(), b[:n]) {
			t.Errorf("decode of %d of %d bytes of %T = %+v, want an error", n, len(b), m, got)
		}
	}
}

// wantDecoded checks that bytes from a peer are rejected with errProtocol or survive a round trip.
func wantDecoded(t *testing.T, b []byte) {
	t.Helper()
	m, err := decode(b)
	if err != nil {
		if !errors.Is(err, errProtocol) {
			t.Errorf("decode(%x): got error %v, want %v", b, err, errProtocol)
		}
		return
	}
	if e, ok := m.(encoder); ok {
		if again := e.encode(); !bytes.Equal(again, b) {
			t.Errorf("decode(%x) = %+v, which is encoded as %x", b, m, again)
		}
	}
}

func TestMessages(t *testing.T) {
	for _, m := range messages() {
		wantStrict(t, m)
		if _, err := decode(append(m.encode(), 0)); err == nil && m.encode()[0] != byte(kindOpen) && m.encode()[0] != byte(kindList) {
			t.Errorf("decode of %T and a byte: got no error", m)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range messages() {
		f.Add(m.encode())
	}
	f.Add([]byte{0x3f, 1, 2, 3, 4, 5})
	f.Fuzz(func(t *testing.T, b []byte) { wantDecoded(t, b) })
}

// someHello is a valid hello.
var someHello = hello{id: 4, seen: 5, arrived: 7, read: 6, mailbox: ibverbx.RemoteRegion{Addr: 4096, Length: mailboxSize, RKeys: []uint32{7}}}

// TestHello: a hello survives a round trip, trailing bytes of a later version are ignored, and invalid hellos
// are rejected.
func TestHello(t *testing.T) {
	b := someHello.encode()
	if len(b) > service.MaxHello {
		t.Errorf("a hello has %d bytes, want at most %d", len(b), service.MaxHello)
	}
	for _, more := range []string{"", "fields of a later version"} {
		if got, err := decodeHello(append(b[:len(b):len(b)], more...)); err != nil || !reflect.DeepEqual(*got, someHello) {
			t.Errorf("decodeHello with %q behind it = %+v and %v, want %+v", more, got, err, someHello)
		}
	}
	for n := range b {
		_, err := decodeHello(b[:n])
		wantErr(t, "decodeHello of a part", err, errProtocol)
	}
	for _, change := range []func(*hello){
		func(m *hello) { m.id = 0 },
		func(m *hello) { m.read = m.arrived + 1 },
		func(m *hello) { m.mailbox.Length++ },
		func(m *hello) { m.mailbox.RKeys = nil },
	} {
		m := someHello
		change(&m)
		_, err := decodeHello(m.encode())
		wantErr(t, "decodeHello", err, errProtocol)
	}
}

// FuzzHello: arbitrary bytes are rejected or begin with exactly one hello.
func FuzzHello(f *testing.F) {
	f.Add(someHello.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := decodeHello(b); err == nil && !bytes.HasPrefix(b, m.encode()) {
			t.Errorf("decodeHello(%x) = %+v, which is encoded as %x", b, m, m.encode())
		}
	})
}

func FuzzDecodeNote(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00ok"), uint64(1))
	f.Add(make([]byte, notificationHeader), uint64(0))
	f.Fuzz(func(t *testing.T, b []byte, seq uint64) {
		a, err := decodeNotification(b, seq)
		if err == nil && (a.Seq != seq || len(a.Body) != len(b)-notificationHeader || a.void && len(a.Body) > 0) {
			t.Errorf("decodeNote(%x, %d) = %+v", b, seq, a)
		}
	})
}

// TestFalseMessages sends invalid messages. At worst they close the session, and later requests work.
func TestFalseMessages(t *testing.T) {
	n := memoryNetwork(1)
	for _, c := range []struct {
		name string
		body []byte
		ends bool
	}{
		{"nothing", nil, true},
		{"no kind", []byte{0}, true},
		{"an unknown request", []byte{0x3f, 1, 0, 0, 0}, false},
		{"an unknown answer", []byte{0xff}, false},
		{"an answer to nothing", (&grant{id: 77, number: 1, access: Read, region: ibverbx.RemoteRegion{Length: 1, RKeys: []uint32{1}}}).encode(), false},
		{"digests of a denied segment", (&digest{1, []digestRange{{99, 0, 1}}}).encode(), false},
		{"digests of the mailbox", (&digest{1, []digestRange{{mailboxGrant, 0, 1}}}).encode(), false},
		{"digests behind the end", (&digest{1, []digestRange{{1, math.MaxUint64, 1}}}).encode(), false},
		{"a revocation of nothing", (&revoke{grant: 99}).encode(), false},
		{"an unasked answer to a revocation", (&revoked{1}).encode(), false},
		{"the mailbox is given up", (&revoked{mailboxGrant}).encode(), false},
		{"a name that is no name", []byte{byte(kindOpen), 1, 0, 0, 0, 1, 0xff}, true},
		{"a long name", (&open{1, Read, strings.Repeat("x", MaxNameLen+1)}).encode(), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, n, 4096)
			s := p.peer.session()
			wantOK(t, "Send", s.Send(soon(t), service.TransferID, c.body))
			if c.ends {
				eventually(t, "the session has ended", func() bool { return p.peer.Node().Stats().Sessions > 1 })
			}
			remote := open2(t, p.peer, "target", Read|Write)
			wantOK(t, "Put", p.peer.Put(soon(t), remote.At(0), p.local.Slice(0, 4096)).Wait(soon(t)))
			if !c.ends && p.peer.session() != s {
				t.Error("the session has ended")
			}
		})
	}
}

// rawNote writes to the mailbox of a peer and notifies it.
type rawNote struct {
	service.Op
	done chan error
}

func (o *rawNote) End(_ *service.Op, err error) { o.done <- err }

// TestFalseNotes sends notifications that no honest peer sends.
func TestFalseNotes(t *testing.T) {
	header := func(seq uint64, length int, k byte) []byte {
		b := make([]byte, notificationHeader)
		little.PutUint64(b, seq)
		little.PutUint16(b[8:], uint16(length))
		b[10] = k
		return b
	}
	for _, c := range []struct {
		name string
		arg  uint32
		body []byte
		ends bool
	}{
		{"no header", 0, nil, true},
		{"another number", 0, header(1, 0, kindBody), true},
		{"another length", 0, header(0, 1, kindBody), true},
		{"an unknown kind", 0, header(0, 0, 2), true},
		{"too far ahead", maxNotifications << placeBits, header(maxNotifications, 0, kindBody), true},
		{"behind the end", 1<<placeBits - 1, header(0, 0, kindBody), true},
		{"an old one", 0xffff << placeBits, header(math.MaxUint64, 0, kindBody), false},
		{"a void one", 0, header(0, 0, kindVoid), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, memoryNetwork(1), 4096)
			region, err := p.local.local(p.peer)
			wantOK(t, "Region", err)
			copy(p.local.Bytes(), c.body)
			o := &rawNote{done: make(chan error, 1)}
			o.Blocks = []service.Block{{Local: region, Remote: &p.peer.link.Proc.mailbox, Length: uint64(len(c.body)), Opcode: verbs.OpRDMAWrite}}
			o.Notify, o.Imm, o.Sink = true, service.Immediate(classNotification, c.arg), o
			p.peer.service.Submit(&o.Op)
			if err := <-o.done; !c.ends { // otherwise the end of the session may be faster
				wantOK(t, "a false notification", err)
			}
			if c.ends {
				eventually(t, "the session has ended", func() bool { return p.peer.Node().Stats().Sessions > 1 })
				wantOK(t, "Notify", p.peer.Notify(soon(t), []byte("true")))
				wantNote(t, p.there, "true")
			}
			eventually(t, "nothing is queued", func() bool {
				quiet(t, p.there, "that was never sent") // consumes void ones
				p.back.link.Mu.Lock()
				defer p.back.link.Mu.Unlock()
				return p.back.queued == 0
			})
		})
	}
}

// later is the service of a peer that speaks a later version, or garbage.
type later struct {
	service.Handler
	body []byte
}

func (l later) Hello(service.Session) ([]byte, bool) { return l.body, true }
func (later) Up(service.Session, []byte)             {}
func (later) Down(service.Session, error)            {}
func (later) Gone(service.Peer, error)               {}

// TestAnotherVersion: operations with a peer of a later version fail immediately, and the error names both
// versions.
func TestAnotherVersion(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	there := p.there.node.Service()
	wantOK(t, "Close", p.there.Close(soon(t)))
	wantOK(t, "Attach", there.Attach(service.Service{ID: service.TransferID, Version: version + 1, Handler: later{}}))
	eventually(t, "the peer is of another version", func() bool {
		_, err := p.peer.Open(soon(t), "target", Read)
		return errors.Is(err, ErrMismatch) && strings.Contains(err.Error(), "peer speaks transfer protocol 3, this side 2")
	})
	there.Detach(service.TransferID)
}

// TestFalseHello: a peer's garbage hello closes the session.
func TestFalseHello(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	there := p.there.node.Service()
	wantOK(t, "Close", p.there.Close(soon(t)))
	before := p.peer.node.Stats().Sessions
	wantOK(t, "Attach", there.Attach(service.Service{ID: service.TransferID, Version: version, Handler: later{body: []byte("garbage")}}))
	eventually(t, "sessions end", func() bool { return p.peer.node.Stats().Sessions > before+1 })
	there.Detach(service.TransferID)
}
