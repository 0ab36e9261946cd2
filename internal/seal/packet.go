package seal

import "encoding/binary"

// A sealed packet:
//
//	 0       4         5        6       8         16           n-16
//	| index | version | socket | epoch | counter | ciphertext | tag |
//
// Numbers are big-endian. The tag authenticates the header and the ciphertext.
const (
	// HeaderLen is the length of the unencrypted header.
	HeaderLen = 16
	// TagLen is the length of the tag.
	TagLen = 16
	// Overhead is the number of bytes that sealing adds to a packet.
	Overhead = HeaderLen + TagLen

	version = 1

	headVersion, headSocket, headEpoch, headCounter = 4, 5, 6, 8
)

// Index returns the index of a sealed packet, which identifies the Association at the receiver. ok is false
// if b is not a sealed packet.
func Index(b []byte) (index uint32, ok bool) {
	if len(b) < Overhead || b[headVersion] != version {
		return 0, false
	}
	return binary.BigEndian.Uint32(b), true
}

// indexTo returns the index of packets from one NIC to another.
func indexTo(from, to *Greeting) uint32 { return to.Number()<<8 | uint32(from.Seat()) }
