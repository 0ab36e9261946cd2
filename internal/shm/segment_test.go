package shm

import (
	"net/netip"
	"testing"
)

// TestGrant: a grant applies only to its own QP and peer.
func TestGrant(t *testing.T) {
	const from, qpn = 0x123456, 0xabcdef
	for _, want := range []Grant{{Domain: 1}, {Domain: 7, Read: true}, {Domain: 1<<31 - 1, Write: true}, {Domain: 3, Read: true, Write: true}} {
		word := GrantWord(want, from, qpn)
		if g, ok := GrantOf(word, from, qpn); g != want || !ok {
			t.Errorf("GrantOf = %+v, %v, want %+v", g, ok, want)
		}
		for bit := range 24 {
			if _, ok := GrantOf(word, from^1<<bit, qpn); ok {
				t.Errorf("bit %d: a grant counts for another peer", bit)
			}
			if _, ok := GrantOf(word, from, qpn^1<<bit); ok != (bit < placeBits) { // the low bits select the slot
				t.Errorf("bit %d: GrantOf for another QP = %v", bit, ok)
			}
		}
	}
	if g, ok := GrantOf(0, 0, 0); ok {
		t.Errorf("an empty word grants %+v", g)
	}
}

// TestSign: the peer reads the address written by the owner.
func TestSign(t *testing.T) {
	s := make(Segment, NoRingSize)
	for _, want := range []string{"192.0.2.1:4791", "[2001:db8::1]:65535"} {
		s.Sign(9, netip.MustParseAddrPort(want))
		if got := s.At(); got.String() != want {
			t.Errorf("At = %v, want %s", got, want)
		}
	}
}
