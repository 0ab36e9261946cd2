package peer

// Decoders of a peer's messages, and the negotiation.
var (
	DecodeOffer   = decodeOffer
	DecodeRegions = decodeRegions
	Negotiate     = negotiate
)

// LoseSharedMemory closes the connections of s for shared memory with Config.SharedCQ.
func LoseSharedMemory(s *Session) {
	for _, c := range s.shmConns {
		_ = c.Close()
	}
}
