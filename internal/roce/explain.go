package roce

import (
	"math/bits"
	"sync/atomic"
)

// Explainer recovers the identification in the IPv4 header of a received packet. A UDP socket does
// not report it, but the ICRC covers it. Senders differ: some send 0, some a counter, some the
// segment number within a larger send.
//
// The CRCs for two identifications differ by a value that depends only on the identifications and
// the length. So take the difference between the received ICRC and the one for identification 0,
// and divide it by the power of x for the length. The quotient is the identification if its other
// sixteen bits are 0. Those sixteen bits remain as the check: one in 65,536 randomly corrupted
// packets passes, instead of one in 2^32. The UDP checksum, if the sender sets it, and the link's
// own checks add to that.
//
// The division uses a table per length, created on first use: 512 bytes each, half a megabyte in
// total. The zero Explainer is ready. It is safe for concurrent use.
type Explainer struct {
	tables [MaxDatagram/4 + 1]atomic.Pointer[quotients]
}

// quotients is a division table, indexed by four bits of the dividend.
type quotients [8][16]uint32

// Explain returns the identification that explains the received ICRC. computed is the ICRC for
// identification 0. length is the datagram length, including the ICRC.
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
		// A concurrent caller creates the same table.
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

// newQuotients returns the table for a length. The identification starts at the fifth byte of the
// IP header. The ICRC covers everything from there on except itself.
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
