package transfer

import (
	"errors"
	"testing"

	"ibverbx"
)

// TestGrant: a peer can write to a segment granted to it without opening it, until the segment is closed.
func TestGrant(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096)
	s := p.here.alloc("", 4096, 0)
	grant, err := p.peer.Grant(s, Write)
	wantOK(t, "Grant", err)
	if again, err := p.peer.Grant(s, Write); err != nil || again.Number() != grant.Number() {
		t.Errorf("Grant again: got %v and %v, want grant %d", again, err, grant.Number())
	}
	region := grant.Region()
	r, err := p.back.OpenGrant(grant.Number(), &region, Write)
	wantOK(t, "OpenGrant", err)
	from := p.there.alloc("", 4096, 0)
	fill(from.Bytes(), 1)
	wantOK(t, "Put", p.back.Put(soon(t), r.At(0), from.Slice(0, 4096)).Wait(soon(t)))
	wantSame(t, "the segment", s.Bytes(), from.Bytes())
	wantErr(t, "Get", p.back.Get(soon(t), from.Slice(0, 1), r.At(0)).Wait(soon(t)), ErrDenied)
	wantOK(t, "Close", s.Close(soon(t)))
	wantErr(t, "Put after Close", p.back.Put(soon(t), r.At(0), from.Slice(0, 1)).Wait(soon(t)), ErrRevoked)
	_, err = p.peer.Grant(s, Write)
	wantErr(t, "Grant after Close", err, ErrClosed)
	if grant.Ended() {
		t.Error("the peer's process has ended")
	}
	p.there = p.there.restart()
	eventually(t, "the process with the grant has ended", grant.Ended)
}

// TestFalseGrants: a peer that names the mailbox, changes a grant or grants too much violates the protocol.
func TestFalseGrants(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096).peer
	region := ibverbx.RemoteRegion{Addr: 4096, Length: 4096, RKeys: []uint32{1}}
	other := region
	other.Addr++
	const first = 1 << 20
	_, err := p.OpenGrant(first, &region, Write)
	wantOK(t, "OpenGrant", err)
	for name, try := range map[string]func() error{
		"another region": func() error { _, err := p.OpenGrant(first, &other, Write); return err },
		"more access":    func() error { _, err := p.OpenGrant(first, &region, Read|Write); return err },
		"the mailbox":    func() error { _, err := p.OpenGrant(mailboxGrant, &region, Write); return err },
		"too many": func() error {
			for i := range uint32(maxRemotes + 1) {
				if _, err := p.OpenGrant(first+i, &region, Write); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		if err := try(); !errors.Is(err, errProtocol) {
			t.Errorf("%s: got %v, want %v", name, err, errProtocol)
		}
	}
}

// TestGrantBesideSegments: segments opened by name do not count against the limit of grants.
func TestGrantBesideSegments(t *testing.T) {
	p := newPair(t, memoryNetwork(1), 4096).peer
	const first = 1 << 20
	p.link.Mu.Lock()
	for i := range uint32(maxRemotes) {
		number := first + i
		p.link.Proc.remotes[number] = &Remote{peer: p, proc: p.link.Proc, number: number, name: "a segment", access: Read}
	}
	p.link.Mu.Unlock()
	_, err := p.OpenGrant(first-1, &ibverbx.RemoteRegion{Addr: 4096, Length: 4096, RKeys: []uint32{1}}, Write)
	wantOK(t, "OpenGrant", err)
}
