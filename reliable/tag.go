package reliable

// tag is the kind of an inner work request. Its wr_id says everything:
//
//	63    60 | 59          40 | 39   32 | 31        0
//	  kind   |   connection   |   path  |    number
//
// With tagSide, tagCardSend and tagCardRecv it is the number of a QP in place of the connection.
type tag uint8

const (
	tagPath        tag = 1 // a send on a path; the number counts them
	tagArrival     tag = 2 // a receive of the SRQ; the number is its buffer
	tagControlSend tag = 3 // a control packet; the number is its slot
	tagControlRecv tag = 4 // a receive of a control QP; the number is its slot
	tagSide        tag = 5 // a READ or an atomic; the number is its token
	tagCardSend    tag = 6 // a card on the side QP
	tagCardRecv    tag = 7 // a receive for a card; the number is its slot
	tagPathRecv    tag = 8 // a receive of a path; the number is its buffer
)

func (t tag) with(conn uint32, path int, n uint32) uint64 {
	return uint64(t)<<60 | uint64(conn)<<40 | uint64(path)<<32 | uint64(n)
}

func untag(id uint64) (t tag, conn uint32, path int, n uint32) {
	return tag(id >> 60), uint32(id>>40) & maxConn, int(id>>32) & 0xff, uint32(id)
}

const (
	connBits = 20
	// maxConn is the largest number of a connection, and its bits are all one.
	maxConn = 1<<connBits - 1
	// Of a connection's number these bits are its place in the table.
	indexBits = 14
	maxIndex  = 1<<indexBits - 1
)
