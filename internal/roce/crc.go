package roce

import (
	"encoding/binary"
	"hash/crc32"
)

// checksum is a faster crc32.Update for the Ethernet polynomial. It uses carry-less multiplication
// (crc_amd64.go), or a table for four bytes at a time where hash/crc32 is slow.
func checksum(crc uint32, b []byte) uint32 {
	switch {
	case folds:
		return foldSum(crc, b, wide)
	case len(b) > shortMax:
		return crc32.Update(crc, crc32.IEEETable, b)
	}
	return ^short(^crc, b)
}

// checksumCopy copies src to dst, which must not be shorter, and returns the checksum of the copied
// bytes. src may change meanwhile.
func checksumCopy(crc uint32, dst, src []byte) uint32 {
	if folds && assemblyMayCopy && len(src) >= narrowMin {
		return foldCopy(crc, dst, src, wide)
	}
	return checksum(crc, dst[:copy(dst, src)])
}

// shortMax is the length up to which short is faster than hash/crc32.
const shortMax = 63

// short returns the CRC without the initial and final inversion.
func short(crc uint32, b []byte) uint32 {
	for ; len(b) >= 4; b = b[4:] {
		crc ^= binary.LittleEndian.Uint32(b)
		crc = slices[3][crc&0xff] ^ slices[2][crc>>8&0xff] ^ slices[1][crc>>16&0xff] ^ slices[0][crc>>24]
	}
	for _, v := range b {
		crc = crc>>8 ^ slices[0][byte(crc)^v]
	}
	return crc
}

// slices holds the CRC contributions of each byte of a word, the last byte first.
var slices = newSlices()

func newSlices() *[4][256]uint32 {
	s := &[4][256]uint32{0: *crc32.IEEETable}
	for k := 1; k < len(s); k++ {
		for v := range s[k] {
			before := s[k-1][v]
			s[k][v] = before>>8 ^ crc32.IEEETable[before&0xff]
		}
	}
	return s
}

// A CRC is the remainder of a polynomial over GF(2). Here, as in hash/crc32, the highest
// bit of a word is the coefficient of x^0:
//
//	bit   31   30  ..   1    0
//	     x^0  x^1  .. x^30 x^31
//
// Each further byte multiplies the polynomial by x^8. If two messages of equal length differ in one
// place, their CRCs therefore differ by that difference times a power of x that depends only on the
// distance to the end.
const one uint32 = 1 << 31

// times returns a*b modulo the Ethernet polynomial.
func times(a, b uint32) (product uint32) {
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			product ^= b
		}
		b = timesX(b)
	}
	return product
}

func timesX(a uint32) uint32 {
	if a&1 != 0 {
		return a>>1 ^ crc32.IEEE
	}
	return a >> 1
}

// overX divides by x, which is always possible because the polynomial is odd.
func overX(a uint32) uint32 {
	if a&one != 0 {
		return (a^crc32.IEEE)<<1 | 1
	}
	return a << 1
}

// power returns a^n.
func power(a uint32, n int) uint32 {
	product := one
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			product = times(product, a)
		}
		a = times(a, a)
	}
	return product
}

// overWord returns 1/x^32, which reverts four bytes.
func overWord() uint32 {
	a := one
	for range 32 {
		a = overX(a)
	}
	return a
}

// update is crc32.Update for buffers that must stay on the stack.
func update(crc uint32, b []byte) uint32 {
	crc = ^crc
	for _, v := range b {
		crc = crc>>8 ^ crc32.IEEETable[byte(crc)^v]
	}
	return ^crc
}
