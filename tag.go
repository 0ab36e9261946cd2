package ibverbx

// A tag is the wr_id of every physical request that the engine posts on a tracked
// VirtualQP. With the rail and the QP number of a completion it says all that routing
// needs; the opcode of a completion is never looked at, because it is not valid in a
// failed one (ibv_poll_cq(3)).
//
//	63         48 | 47   44 | 43       32 | 31             0
//	  generation  |  kind   |    lane     |      entry
//
// entry is the number of the request in its lane's ledger, counted without end.
type tag uint64

// kind says what a physical request is.
type kind uint8

const (
	kindPlain   kind = iota + 1 // a fragment of one piece of memory
	kindData                    // another fragment
	kindNotify                  // an immediate of no bytes that tells the receiver
	kindRecord                  // a record of Tally that tells the receiver
	kindMessage                 // a SEND on the message lane
	kindAtomic                  // a FETCH_AND_ADD or CMP_AND_SWP
	kindRecv                    // a receive
	kindControl                 // nobody's: it marks a place
	kindProbe                   // nobody's: it tries a lane
)

// maxLanes is what the lane field of a tag holds.
const maxLanes = 1 << 12

func newTag(generation uint16, k kind, lane uint16, entry uint32) tag {
	return tag(generation)<<48 | tag(k)<<44 | tag(lane)<<32 | tag(entry)
}

// tag is the part of a tag that says the kind.
func (k kind) tag() tag { return tag(k) << 44 }

func (t tag) generation() uint16 { return uint16(t >> 48) }
func (t tag) kind() kind         { return kind(t >> 44 & 0xf) }
func (t tag) lane() uint16       { return uint16(t>>32) & (maxLanes - 1) }
func (t tag) entry() uint32      { return uint32(t) }
