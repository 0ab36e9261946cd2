package defects_test

import (
	"encoding/binary"
	"unsafe"
)

// writeRecord writes a Tally record to a receive's address, as a NIC would. The record is one of records for
// message seq, without immediate or length.
func writeRecord(addr uint64, seq uint32, records uint16) {
	b := unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), 16)
	clear(b)
	binary.LittleEndian.PutUint32(b, seq)
	binary.LittleEndian.PutUint16(b[4:], records)
}
