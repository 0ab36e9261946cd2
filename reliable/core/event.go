package core

import "ibverbx/reliable/wire"

// EventKind says what happened.
type EventKind uint8

const (
	// EvTick says that time has passed: Deadline is due.
	EvTick EventKind = iota
	// EvPost says that the user posts Message. If Room is 0 it must not come.
	EvPost
	// EvData says that a one-sided WRITE has arrived: Path, Epoch, Imm, and
	// Count bytes.
	EvData
	// EvChunk says that a chunk with a header has arrived: Path, Epoch, Imm, Header.
	// Status is what the owner's check found: 0 if the bytes can be placed, StatusNoRecv
	// if their message has no receive yet, or why they never can be.
	EvChunk
	// EvRecord says that a record of a control packet has come: Record, Route.
	EvRecord
	// EvSent says that Count more transmissions on Path, in Epoch, left the memory.
	EvSent
	// EvPathFailed says that the QP of Path failed in Epoch, or could not be made.
	EvPathFailed
	// EvRebuilt answers ActRebuild: the new QP of Path for Epoch is QPN with PSN.
	EvRebuilt
	// EvReceives says that the user posted Count more receives.
	EvReceives
	// EvFlush says that a batch of arrivals ends.
	EvFlush
	// EvSide says that the side message Token has ended with Status.
	EvSide
	// EvCredit says that this end keeps Count receives for what arrives: from now on that
	// is what the peer is told in place of Config.RecvCredit.
	EvCredit
	// EvGrant says that the peer may send Count bytes more: no more than the last ActDemand
	// has asked for.
	EvGrant
	// EvClose says that the user of Flow gives up: its first message that is outstanding ends
	// with Status, the others are flushed.
	EvClose
)

// StatusNoRecv is the Status of an EvChunk whose message has no receive.
const StatusNoRecv uint8 = 255

// Event is one thing that happened; which fields count depends on Kind.
type Event struct {
	Kind        EventKind
	Status      uint8
	Flow        uint16 // of EvPost, EvReceives, EvSide, EvClose
	Path, Epoch uint16
	Route       Route
	Imm         wire.Imm
	Count       int
	QPN, PSN    uint32
	Token       uint32
	Message     Message
	Header      wire.Header
	Record      wire.Record
}

// MessageKind says what a message does at the other end.
type MessageKind uint8

const (
	// MsgWrite is an RDMA WRITE.
	MsgWrite MessageKind = iota
	// MsgWriteImm is an RDMA WRITE that takes a receive.
	MsgWriteImm
	// MsgSend is a SEND.
	MsgSend
	// MsgSide is something that travels outside of the connection, when everything
	// before it is acknowledged: a READ or an atomic.
	MsgSide
)

// Message is what the user posts.
type Message struct {
	Kind MessageKind
	// Flags are FlagImm and FlagSolicited.
	Flags wire.HeaderFlags
	// Fence holds the message back until all before it have completed.
	Fence bool
	// Token comes back in actions.
	Token uint32
	// Length is in bytes.
	Length uint32
	// Break is an offset at which a chunk ends: none has bytes on both sides of it. Zero
	// means none.
	Break uint32
	// Imm is the user's immediate, with FlagImm.
	Imm uint32
}

// ActionKind says what the owner has to do.
type ActionKind uint8

const (
	// ActSend is to post Len bytes at Offset of message Token on Path: one-sided if
	// Header.Op is 0, otherwise as a SEND with Header, in which the owner completes
	// address and key of a WRITE. Imm is the immediate.
	ActSend ActionKind = iota
	// ActControl is to send Record by Route.
	ActControl
	// ActPlace is to copy the bytes of the EvChunk being stepped to their place.
	ActPlace
	// ActDeliver is to complete the receive of message Header.Message with Len bytes,
	// Header.Imm and Header.Flags.
	ActDeliver
	// ActComplete is to complete message Token with Status.
	ActComplete
	// ActReset is to take the QP of Path, of Epoch, out of service, for good and before
	// anything else is done.
	ActReset
	// ActRebuild is to make a QP for Path and the coming Epoch, and to answer with
	// EvRebuilt.
	ActRebuild
	// ActConnect is to connect the QP of Path and Epoch to the peer's QPN and PSN.
	ActConnect
	// ActSide is to start the side message Token, and to answer with EvSide.
	ActSide
	// ActDemand says what credit the peer may be given by EvGrant, in place of what the last
	// one said: Bytes for what it wants to send, and Spare to have in hand. Used bytes are
	// on their way on credit that it had in hand.
	ActDemand
	// ActFault says that the peer sent what cannot be taken: Status. The receiving half
	// has ended.
	ActFault
)

// Action is one thing to do; which fields count depends on Kind.
type Action struct {
	Kind        ActionKind
	Status      uint8
	Flow        uint16 // of all that are about a message
	Path, Epoch uint16
	Route       Route
	Imm         wire.Imm
	Token       uint32
	Offset, Len uint32
	QPN, PSN    uint32
	Bytes       uint64
	Spare, Used uint64
	Header      wire.Header
	Record      wire.Record
}

// Route says how a control packet travels: 0 and 1 are the control QPs, RoutePath plus a
// path is that data path.
type Route uint16

// RoutePath is the route of the first data path.
const RoutePath Route = 2

// Statuses that the core itself causes, numbered as in package verbs.
const (
	statusSuccess  uint8 = 0
	statusFlush    uint8 = 5
	statusInvalid  uint8 = 9
	statusRetryExc uint8 = 12
	statusRNRExc   uint8 = 13
)
