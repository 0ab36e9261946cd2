package roce

import (
	"math/bits"
	"sync/atomic"
)

// Explainer finds the identification in the IPv4 header of a received packet. A UDP socket does not
// report it, but the ICRC covers it. Senders differ: some send 0, some a counter, some the number of a
// segment within a larger send.
//
// The CRCs for two identifications differ by a value that depends only on the identifications and the
// length. So take the difference between the received ICRC and the one for identification 0, and divide
// it by the power of x that the length gives. The quotient is the identification if its other sixteen
// bits are 0. Those sixteen bits remain as the check: of packets that were changed at random, one in
// 65,536 passes, instead of one in 2^32. The UDP checksum, if the sender made one, and the checks of the
// link below add to that.
//
// The division uses a table per length, made when the length first occurs: 512 bytes each, half a
// megabyte at most. The zero Explainer is ready. It is safe for concurrent use.
type Explainer struct {
	tables [MaxDatagram/4 + 1]atomic.Pointer[quotients]
}

// quotients is a table for division, by four bits of the dividend each.
type quotients [8][16]uint32

// Explain returns the identification for which a datagram of that length has the received ICRC, if
// computed is its ICRC for identification 0. The length includes the ICRC.
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
		// A concurrent caller makes the same table.
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

// newQuotients makes the table of a length. The identification begins with the fifth byte of the IP
// header. The ICRC covers everything from there on except itself.
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
