package peer

// What came from a peer.
var (
	DecodeOffer   = decodeOffer
	DecodeRegions = decodeRegions
)
