package roce

import (
	"math/bits"
	"sync/atomic"
)

// Explainer finds the identification that the IPv4 header of a received packet had. A UDP
// socket does not tell it, but the ICRC covers it: senders differ in whether they send 0, a
// counter, or the number of a segment within a larger send.
//
// Two identifications make two CRCs whose difference depends on nothing but the
// identifications and the length. So the difference between the ICRC that came and the one
// for identification 0, divided by the power of x that the length gives, is the
// identification, if its other sixteen bits are 0. Those sixteen bits are what is left to
// check the packet by: of packets that were changed at random, one in 65,536 is taken for
// good, instead of one in 2^32. The UDP checksum, if the sender made one, and the checks of
// the link below come on top of that.
//
// The division is by table, and the table of a length is made when the length is first met:
// 512 bytes each, half a megabyte at most. The zero Explainer is ready, and any number of
// goroutines may use it.
type Explainer struct {
	tables [MaxDatagram/4 + 1]atomic.Pointer[quotients]
}

// quotients divides: by four bits of the dividend each.
type quotients [8][16]uint32

// Explain returns the identification for which the ICRC of a datagram of that length is the
// received one, if computed is its ICRC for identification 0. The length counts the ICRC.
func (e *Explainer) Explain(received, computed uint32, length int) (id uint16, ok bool) {
	difference := received ^ computed
	if difference == 0 {
		return 0, true
	}
	if !validLength(length) {
		return 0, false
	}
	q := e.tables[length>>2].Load()
	if q == nil {
		// Whoever comes at the same time makes the same table.
		q = newQuotients(length)
		e.tables[length>>2].Store(q)
	}
	v := q[0][difference&15] ^ q[1][difference>>4&15] ^ q[2][difference>>8&15] ^ q[3][difference>>12&15] ^
		q[4][difference>>16&15] ^ q[5][difference>>20&15] ^ q[6][difference>>24&15] ^ q[7][difference>>28]
	if v>>16 != 0 {
		return 0, false
	}
	return bits.ReverseBytes16(uint16(v)), true
}

// newQuotients makes the table of a length. The identification begins with the fifth byte
// of the IP header and what follows it, itself included, is covered but for the ICRC.
func newQuotients(length int) *quotients {
	covered := ip4Len - 4 + udpLen + length - icrcLen
	inverse := power(overWord(), covered/4)
	q := &quotients{}
	for i := range q {
		for v := range q[i] {
			q[i][v] = times(uint32(v)<<(4*i), inverse)
		}
	}
	return q
}
