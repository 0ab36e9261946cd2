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
	if folds && unseen && len(src) >= narrowMin {
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
