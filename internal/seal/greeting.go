package seal

import "encoding/binary"

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
