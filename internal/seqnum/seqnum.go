// Package seqnum does arithmetic on the 24-bit packet sequence numbers (PSNs) of the
// InfiniBand transport, which wrap around.
package seqnum

// Bits is the width of a PSN in the base transport header, and Mask has a one in each
// of them.
const (
	Bits = 24
	Mask = 1<<Bits - 1
)

// Half is half the PSN space. Seen from a responder's expected PSN, one half is valid
// or ahead and the other is duplicate, so a send queue never has more than Half packets
// outstanding (IBTA volume 1, section 9.7.1, "Packet Sequence Numbers").
const Half = 1 << (Bits - 1)

// PSN is a packet sequence number. Only its low 24 bits are significant: the methods
// ignore the upper eight of their operands, and what they return has them clear, so
// that their results can be compared with ==. A PSN that was made by conversion from
// an unknown number becomes comparable by Add(0).
type PSN uint32

// Add returns the PSN n packets after p.
func (p PSN) Add(n uint32) PSN { return PSN((uint32(p) + n) & Mask) }

// Sub returns the signed distance from q to p, in [-Half, Half): the d of smallest
// magnitude for which q plus d is p, and -Half if p is just opposite.
func (p PSN) Sub(q PSN) int32 {
	// The difference is moved to the top of the word, where its highest bit is the
	// sign, and back down with that sign.
	const up = 32 - Bits
	return int32((uint32(p)-uint32(q))<<up) >> up
}

// Less reports whether p comes before q. It orders PSNs that are less than Half apart;
// two that are exactly Half apart are each before the other.
func (p PSN) Less(q PSN) bool { return p.Sub(q) < 0 }
