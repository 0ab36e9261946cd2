package peer

// Decoders of a peer's messages, and the negotiation.
var (
	DecodeOffer   = decodeOffer
	DecodeRegions = decodeRegions
	Negotiate     = negotiate
)
