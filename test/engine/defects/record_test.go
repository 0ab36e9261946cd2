package defects_test

import (
	"encoding/binary"
	"unsafe"
)

// writeRecord writes a record of Tally where a NIC would put it: at the address of a
// receive. It is that of message seq, of so many, and has neither immediate nor length.
func writeRecord(addr uint64, seq uint32, records uint16) {
	b := unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), 16)
	clear(b)
	binary.LittleEndian.PutUint32(b, seq)
	binary.LittleEndian.PutUint16(b[4:], records)
}
