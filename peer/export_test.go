package peer

// Decoders of a peer's messages.
var (
	DecodeOffer   = decodeOffer
	DecodeRegions = decodeRegions
)
