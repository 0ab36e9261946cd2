package core

import (
	"math"

	"ibverbx/reliable/wire"
)

// EventKind is the kind of an Event.
type EventKind uint8

const (
	// EvTick says: Deadline is due.
	EvTick EventKind = iota
	// EvPost says: the user posts Message on Flow. Room must not be 0.
	EvPost
	// EvData says: a one-sided WRITE of Count bytes has arrived on Path in Epoch, with Imm.
	EvData
	// EvChunk says: a chunk with Header has arrived on Path in Epoch, with Imm. Status is the result of the
	// owner's check: 0 if the bytes can be placed at once, StatusPlacing if placing them takes time,
	// StatusNoRecv if their message has no receive yet, or why they can never be placed. The core checks
	// answers, but not the memory for them. With such a Status the message that waits for the answer ends so.
	EvChunk
	// EvPlaced answers the ActPlace of a chunk with StatusPlacing, whose Imm and Header it has. Status is 0 if
	// the bytes are in place, StatusNoRecv if they are not and the peer must send them again, or why they can
	// never be placed. In the last two cases nothing writes them any more.
	EvPlaced
	// EvRecord says: Record has arrived in a control packet by Route.
	EvRecord
	// EvSent says: Count more transmissions on Path in Epoch no longer refer to memory.
	EvSent
	// EvPathFailed says: the QP of Path in Epoch has failed or could not be made.
	EvPathFailed
	// EvRebuilt answers ActRebuild: the QP of Path for Epoch has QPN and PSN.
	EvRebuilt
	// EvReceives says: the user has posted Count more receives on Flow, or as many shared ones are promised
	// to the peer.
	EvReceives
	// EvFlush says: a batch of arrivals ends, or a chain of posts after which Asks is true. Without Owes it does nothing.
	EvFlush
	// EvCredit says: from now on the peer may use Count receives, in place of Config.RecvCredit.
	EvCredit
	// EvGrant says that the peer may send Count more bytes, or anything if Count is NoLimit. Zero ends NoLimit.
	EvGrant
	// EvClose says: the user of Flow gives up. Its oldest outstanding message ends with Status, the others
	// are flushed.
	EvClose
)

// NoLimit is the Count of an EvGrant that lets the peer send anything.
const NoLimit = math.MaxInt

const (
	// StatusNoRecv is the Status of an EvChunk whose message has no receive.
	StatusNoRecv uint8 = 255
	// StatusPlacing is the Status of an EvChunk whose bytes the owner cannot copy at once. The chunk counts
	// as arrived when EvPlaced says so.
	StatusPlacing uint8 = 254
)

// Event is something that happened. EventKind tells which fields are valid.
type Event struct {
	Kind   EventKind
	Status uint8
	Flow   uint16
	// Age is how long an arrival has waited before this step, in nanoseconds: EvData, EvChunk and
	// EvRecord. Zero means unknown.
	Age         int64
	Path, Epoch uint16
	Route       Route
	Imm         wire.Imm
	Count       int
	QPN, PSN    uint32
	Message     Message
	Header      wire.Header
	Record      wire.Record
}

// MessageKind is the kind of a Message.
type MessageKind uint8

const (
	// MsgWrite is an RDMA WRITE.
	MsgWrite MessageKind = iota
	// MsgWriteImm is an RDMA WRITE that takes a receive.
	MsgWriteImm
	// MsgSend is a SEND.
	MsgSend
	// MsgFetch is a READ or an atomic. It completes when its answer is in place. Length is that of a
	// wire.Fetch.
	MsgFetch
	// MsgInvalid ends with Status when everything before it has completed. Nothing is sent.
	MsgInvalid
	// MsgAnswer is the answer to a fetch of the peer. The core makes it.
	MsgAnswer
)

// Message is what the user posts.
type Message struct {
	Kind   MessageKind
	Flags  wire.HeaderFlags // FlagImm and FlagSolicited
	Fence  bool             // holds the message back until all before it have completed
	Status uint8            // the status with which a MsgInvalid ends, 0 for other kinds
	Token  uint32           // identifies the message in actions
	Length uint32           // the length in bytes
	// Break is an offset at which a chunk ends: no chunk has bytes on both sides of it. Zero means
	// none.
	Break  uint32
	Imm    uint32 // the user's immediate, with FlagImm
	Answer uint32 // the length of the answer to a MsgFetch in bytes
}

// ActionKind is the kind of an Action.
type ActionKind uint8

const (
	// ActSend asks: post Len bytes at Offset of message Token of Flow on Path, with Imm. The post is
	// one-sided if Header.Op is 0. Otherwise it is a SEND with Header, in which the owner fills in the
	// address and key of a WRITE. In a piece of an answer, Token is that of its ActAnswer.
	ActSend ActionKind = iota
	// ActControl asks: send Record by Route.
	ActControl
	// ActPlace asks: copy the bytes of the present EvChunk to their place, and answer with EvPlaced if its
	// Status is StatusPlacing. Those of an answer belong to message Token. A fetch is kept under Token until
	// its ActAnswer.
	ActPlace
	// ActDeliver asks: complete the receive of message Header.Message of Flow with Len bytes, Header.Imm and
	// Header.Flags.
	ActDeliver
	// ActComplete asks: complete message Token of Flow with Status.
	ActComplete
	// ActReset asks: take the QP of Path in Epoch out of service for good, before the next action.
	ActReset
	// ActRebuild asks: make a QP for Path and the coming Epoch, and answer with EvRebuilt or EvPathFailed.
	ActRebuild
	// ActConnect asks: connect the QP of Path in Epoch to the peer's QPN and PSN.
	ActConnect
	// ActAnswer asks: carry out the fetch that is kept under Token of Flow. Its answer has Len bytes, whose
	// pieces follow under Token. Tokens are below Answers and are used again.
	ActAnswer
	// ActDemand says: the peer waits for credit for Bytes, which EvGrant grants. Flying bytes were granted and
	// have not arrived. Both replace those of the last ActDemand. Arrived bytes have arrived since then, and
	// Beyond of them without credit.
	ActDemand
	// ActWant asks: the peer has Len messages in total that take a receive of Flow, which shares receives.
	// Promise as many as it can have, by EvReceives, whose Count may be 0.
	ActWant
	// ActFault asks: the peer sent something on Flow that cannot be taken. The receiving half has ended
	// with Status.
	ActFault
)

// Action is something to do. ActionKind tells which fields are valid.
type Action struct {
	Kind            ActionKind
	Status          uint8
	Flow            uint16
	Path, Epoch     uint16
	Route           Route
	Imm             wire.Imm
	Token           uint32
	Offset, Len     uint32
	QPN, PSN        uint32
	Bytes           uint64
	Flying, Arrived uint64
	Beyond          uint64
	Header          wire.Header
	Record          wire.Record
}

// Route is the way of a control packet: 0 and 1 are the control QPs, RoutePath plus the index of a path
// is that data path.
type Route uint16

// RoutePath is the route of the first data path.
const RoutePath Route = 2

// Statuses that the core itself sets, numbered as in package verbs.
const (
	statusSuccess   uint8 = 0
	statusFlush     uint8 = 5
	statusInvalid   uint8 = 9
	statusRemAccess uint8 = 10
	statusRetryExc  uint8 = 12
	statusRNRExc    uint8 = 13
)
