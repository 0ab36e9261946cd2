package ibverbx

// A tag is the wr_id of every physical request of a VirtualQP that tracks its requests. Routing needs
// only the tag, and the rail and the QP number of a completion. It never reads the opcode, which is not
// valid in a failed completion (ibv_poll_cq(3)).
//
//	63         48 | 47   44 | 43       32 | 31             0
//	  generation  |  kind   |    lane     |      entry
//
// entry is the number of the request in its lane's ledger. It wraps at 2^32.
type tag uint64

// kind is the kind of a physical request.
type kind uint8

const (
	kindPlain   kind = iota + 1 // a fragment of one piece of memory
	kindData                    // any other fragment
	kindNotify                  // a WRITE_WITH_IMM of no bytes that notifies the receiver
	kindRecord                  // a record of Tally that notifies the receiver
	kindMessage                 // a SEND on the message lane
	kindAtomic                  // a FETCH_AND_ADD or CMP_AND_SWP
	kindRecv                    // a receive
	kindControl                 // no request of the user: it marks a place
	kindProbe                   // no request of the user: it tries a lane
)

// maxLanes is how many lanes the lane field of a tag can name.
const maxLanes = 1 << 12

func newTag(generation uint16, k kind, lane uint16, entry uint32) tag {
	return tag(generation)<<48 | tag(k)<<44 | tag(lane)<<32 | tag(entry)
}

// tag is the kind as a part of a tag.
func (k kind) tag() tag { return tag(k) << 44 }

func (t tag) generation() uint16 { return uint16(t >> 48) }
func (t tag) kind() kind         { return kind(t >> 44 & 0xf) }
func (t tag) lane() uint16       { return uint16(t>>32) & (maxLanes - 1) }
func (t tag) entry() uint32      { return uint32(t) }
