package pcap

import "encoding/binary"

// The file format is pcapng: blocks in the writer's byte order (here little-endian). A block starts
// with its type and length, finishes with its length again, and is a multiple of four bytes long. A
// section block is first. Every interface has a block before its first packet.
//
//	section    0 | type 0a0d0d0a  | length | magic 1a2b3c4d | version 1 . 0 | length unknown, -1 | options
//	interface  0 | type 1         | length | link type 101  | longest packet                     | options
//	packet     0 | type 6         | length | interface | time (high, low) | length here, on wire | bytes
//
// With link type 101, a packet starts with its IP header. The interface option if_tsresol selects
// nanosecond timestamps.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 6

	magic   = 0x1a2b3c4d
	linkRaw = 101
	longest = 65535

	// packetOverhead is the length of a packet block without the packet.
	packetOverhead = 32

	optionEnd         = 0
	optionApplication = 4
	optionName        = 2
	optionDescription = 3
	optionResolution  = 9
	nanoseconds       = 9
	// maxOption is the maximum length of a text option in bytes.
	maxOption = 255
)

// begin appends the start of a block; end fills in its length.
func begin(b []byte, kind uint32) []byte {
	b = binary.LittleEndian.AppendUint32(b, kind)
	return binary.LittleEndian.AppendUint32(b, 0)
}

// end pads the block that began at start and appends its length.
func end(b []byte, start int) []byte {
	b = pad(b, start)
	n := uint32(len(b) - start + 4)
	binary.LittleEndian.PutUint32(b[start+4:], n)
	return binary.LittleEndian.AppendUint32(b, n)
}

// pad appends zeros until the length since start is a multiple of four bytes.
func pad(b []byte, start int) []byte {
	for (len(b)-start)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// option appends a block option. Empty ones are omitted.
func option(b []byte, code uint16, value string) []byte {
	if value == "" {
		return b
	}
	value = value[:min(len(value), maxOption)]
	b = binary.LittleEndian.AppendUint16(b, code)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(value)))
	return pad(append(b, value...), len(b)) // len(b) is a multiple of four here
}

// section returns the first block of a file.
func section(application string) []byte {
	b := begin(nil, blockSection)
	b = binary.LittleEndian.AppendUint32(b, magic)
	b = binary.LittleEndian.AppendUint16(b, 1)
	b = binary.LittleEndian.AppendUint16(b, 0)
	b = binary.LittleEndian.AppendUint64(b, ^uint64(0))
	b = option(b, optionApplication, application)
	return end(binary.LittleEndian.AppendUint32(b, optionEnd), 0)
}

// describe returns an interface block.
func describe(name, description string, snapLen int) []byte {
	b := begin(nil, blockInterface)
	b = binary.LittleEndian.AppendUint32(b, linkRaw)
	b = binary.LittleEndian.AppendUint32(b, uint32(snapLen))
	b = option(b, optionName, name)
	b = option(b, optionDescription, description)
	b = option(b, optionResolution, string([]byte{nanoseconds}))
	return end(binary.LittleEndian.AppendUint32(b, optionEnd), 0)
}
