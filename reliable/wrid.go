package reliable

// tag is the kind of an inner work request. The wr_id of such a request is
//
//	63    60 | 59      40 | 39   32 | 31        0
//	  kind   |     id     |  index  |    number
type tag uint8

const (
	// tagPath is a send on a path. id is the connection, index the path; number counts the sends.
	tagPath tag = 1
	// tagArrival is a receive of an SRQ. id is the PD, number the buffer.
	tagArrival tag = 2
	// tagControlSend is a control packet. id is the PD, index the control QP, number the slot.
	tagControlSend tag = 3
	// tagControlRecv is a receive of a control QP. number is the slot.
	tagControlRecv tag = 4
	// tagCardSend is a card on a handshake QP. id is the QP.
	tagCardSend tag = 6
	// tagCardRecv is a receive for a card. id is the QP, number the slot.
	tagCardRecv tag = 7
	// tagPathRecv is a receive of a path. id is the connection, index the path, number the buffer.
	tagPathRecv tag = 8
	// tagCopy is a request of a copier. id is the PD, index copySend or copyRecv; number counts the copies.
	tagCopy tag = 9
)

func (t tag) with(id uint32, index int, n uint32) uint64 {
	return uint64(t)<<60 | uint64(id)<<40 | uint64(index)<<32 | uint64(n)
}

func untag(wrid uint64) (t tag, id uint32, index int, n uint32) {
	return tag(wrid >> 60), uint32(wrid>>40) & maxConn, int(wrid>>32) & 0xff, uint32(wrid)
}

const (
	// connBits is the size of a connection's number.
	connBits = 20
	// maxConn is the largest number of a connection. All its bits are ones.
	maxConn = 1<<connBits - 1
	// indexBits is the size of the part of a connection's number that is its index in the table.
	indexBits = 14
	// maxIndex is the largest index of a connection. All its bits are ones.
	maxIndex = 1<<indexBits - 1
)
