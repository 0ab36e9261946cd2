package roce

// PSNBits is the width of a packet sequence number in the BTH, PSNMask its highest value.
const (
	PSNBits = 24
	PSNMask = 1<<PSNBits - 1
)

// PSNHalf is half the PSN space. Relative to a responder's expected PSN, one half is valid
// or ahead and the other half is duplicate. A send queue therefore never has more than PSNHalf
// packets outstanding (IBTA volume 1, section 9.7.1, "Packet Sequence Numbers").
const PSNHalf = 1 << (PSNBits - 1)

// PSN is a packet sequence number. It has 24 bits and wraps. The methods ignore the upper eight
// bits of their operands and clear them in their results, so results can be compared with ==.
// Add(0) makes a PSN of unknown origin comparable.
type PSN uint32

// Add returns the PSN n packets after p.
func (p PSN) Add(n uint32) PSN { return PSN((uint32(p) + n) & PSNMask) }

// Sub returns the signed distance from q to p, in [-PSNHalf, PSNHalf): the d of smallest
// magnitude for which q plus d is p, and -PSNHalf if p is exactly opposite.
func (p PSN) Sub(q PSN) int32 {
	// The difference moves to the top of the word, where its highest bit is the sign, and
	// back down with that sign.
	const up = 32 - PSNBits
	return int32((uint32(p)-uint32(q))<<up) >> up
}
