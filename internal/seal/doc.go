// Package seal encrypts and authenticates packets between two NICs. docs/wire.md fixes the format and the
// key schedule, with test vectors; a change needs a new version.
//
// Two processes that share a secret create a [Session] each. Every NIC has a [Greeting] for a
// session, which it sends to its peers in the clear. Two greetings form an [Association]: the keys
// of both directions between two NICs. [Association.Seal] encrypts a packet in place. At the receiver,
// [Index] identifies the Association, and [Association.Open] verifies and decrypts the packet. This
// package never reads a clock, starts a goroutine or allocates per packet. An Association is not safe
// for concurrent use.
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

// Seats is the maximum number of NICs per process in a session. A NIC's seat is its number there. The low
// eight bits of an index are the seat of the sending NIC; the receiver chooses the others.
const Seats = 16

// NonceLen is the length of the random part of a Greeting.
const NonceLen = 16

// GreetingLen is the length of a Greeting in bytes.
const GreetingLen = 4 + NonceLen

// Greeting introduces a NIC to its peers in a session: four bytes with the NIC's receive number (24
// bits) and its seat (8 bits), and a nonce. It is not secret. The nonce must be new and random for
// every NIC and session: it makes the keys differ even if the secret is the same.
type Greeting [GreetingLen]byte

// NewGreeting returns a greeting. number has 24 bits.
func NewGreeting(number uint32, seat uint8, nonce [NonceLen]byte) (g Greeting) {
	binary.BigEndian.PutUint32(g[:], number<<8|uint32(seat))
	copy(g[4:], nonce[:])
	return g
}

// Number returns the NIC's receive number.
func (g *Greeting) Number() uint32 { return binary.BigEndian.Uint32(g[:]) >> 8 }

// Seat returns the NIC's number among the NICs of its process in the session.
func (g *Greeting) Seat() uint8 { return g[3] }

// indexTo returns the index of packets from one NIC to another.
func indexTo(from, to *Greeting) uint32 { return to.Number()<<8 | uint32(from.Seat()) }
