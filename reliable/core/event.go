package core

import (
	"math"

	"ibverbx/reliable/wire"
)

// EventKind is the kind of an Event.
type EventKind uint8

const (
	// EvTick reports that Deadline is due.
	EvTick EventKind = iota
	// EvPost reports that the user posts Message on Flow. Room must not be 0.
	EvPost
	// EvData reports that a one-sided WRITE of Count bytes has arrived on Path in Epoch, with Imm.
	EvData
	// EvChunk reports that a chunk with Header has arrived on Path in Epoch, with Imm. Status is the
	// result of the owner's check: 0 if the bytes can be placed immediately, StatusPlacing if placing
	// them takes time, StatusNoRecv if their message has no receive yet, or the reason why they can
	// never be placed. The core checks responses, but not the memory for them. With such a Status, the
	// message that waits for the response fails with it.
	EvChunk
	// EvPlaced reports the result of the ActPlace of a chunk with StatusPlacing, identified by Imm and
	// Header. Status is 0 if the bytes are in place, StatusNoRecv if they are not and the peer must
	// retransmit them, or the reason why they can never be placed. In the last two cases they are no
	// longer being written.
	EvPlaced
	// EvRecord reports that Record has arrived in a control packet by Route.
	EvRecord
	// EvSent reports that Count more transmissions on Path in Epoch no longer refer to memory.
	EvSent
	// EvPathFailed reports that the QP of Path in Epoch has failed or could not be created.
	EvPathFailed
	// EvRebuilt completes ActRebuild: the QP of Path for Epoch has QPN and PSN.
	EvRebuilt
	// EvReceives reports that the user has posted Count more receives on Flow, or that Count more shared
	// receives are granted to the peer.
	EvReceives
	// EvFlush marks the end of a batch of arrivals, or of a chain of posts after which Asks is true. It
	// does nothing unless Owes is true.
	EvFlush
	// EvCredit sets the number of receives that the peer may use to Count, replacing Config.RecvCredit.
	EvCredit
	// EvGrant grants the peer Count more bytes, or unlimited credit if Count is NoLimit. Zero revokes
	// NoLimit.
	EvGrant
	// EvClose reports that the user of Flow closes it. Its oldest outstanding message fails with Status, the
	// others are flushed.
	EvClose
)

// NoLimit is the Count of an EvGrant for unlimited credit.
const NoLimit = math.MaxInt

const (
	// StatusNoRecv is the Status of an EvChunk whose message has no receive.
	StatusNoRecv uint8 = 255
	// StatusPlacing is the Status of an EvChunk whose bytes the owner cannot copy immediately. The chunk
	// counts as arrived after a successful EvPlaced.
	StatusPlacing uint8 = 254
)

// Event is an input of Conn.Step. Its Kind determines the valid fields.
type Event struct {
	Kind   EventKind
	Status uint8
	Flow   uint16
	// Age is the time in nanoseconds that an arrival (EvData, EvChunk or EvRecord) waited before this
	// step. Zero means unknown.
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
	// MsgWriteImm is an RDMA WRITE that consumes a receive.
	MsgWriteImm
	// MsgSend is a SEND.
	MsgSend
	// MsgFetch is a READ or an atomic. It completes when its response is in place. Its Length is
	// wire.FetchLen.
	MsgFetch
	// MsgInvalid completes with Status after everything before it has completed. It is not sent.
	MsgInvalid
	// MsgAnswer is the response to the peer's fetch. The core creates it.
	MsgAnswer
)

// MaxBreaks is the maximum number of offsets in Message.Breaks.
const MaxBreaks = 3

// Message is a message posted by the user.
type Message struct {
	Kind   MessageKind
	Flags  wire.HeaderFlags // FlagImm and FlagSolicited
	Fence  bool             // defers the message until all earlier ones have completed
	Status uint8            // the completion status of a MsgInvalid, 0 for other kinds
	Token  uint32           // identifies the message in actions
	Length uint32           // the length in bytes
	// Breaks are offsets where a chunk must end, in ascending order: chunks do not span them. Zero entries
	// are unused.
	Breaks [MaxBreaks]uint32
	Imm    uint32 // the user's immediate, with FlagImm
	Answer uint32 // the length of the response to a MsgFetch in bytes
}

// ActionKind is the kind of an Action.
type ActionKind uint8

const (
	// ActSend posts Len bytes at Offset of message Token of Flow on Path, with Imm. The post is
	// one-sided if Header.Op is 0. Otherwise it is a SEND with Header, in which the owner fills in the
	// address and key of a WRITE. In a response fragment, Token is that of its ActAnswer.
	ActSend ActionKind = iota
	// ActControl sends Record by Route.
	ActControl
	// ActPlace copies the bytes of the current EvChunk into place. The owner responds with EvPlaced if
	// its Status is StatusPlacing. Bytes of a response belong to message Token. A fetch is kept under
	// Token until its ActAnswer.
	ActPlace
	// ActDeliver completes the receive of message Header.Message of Flow with Len bytes, Header.Imm and
	// Header.Flags.
	ActDeliver
	// ActComplete completes message Token of Flow with Status.
	ActComplete
	// ActReset permanently removes the QP of Path in Epoch from service, before the next action. With
	// Carrier.Shared it only releases all memory that the path's transmissions refer to, and EvSent must not
	// report them later.
	ActReset
	// ActRebuild creates a QP for Path and the next Epoch. The owner responds with EvRebuilt or
	// EvPathFailed.
	ActRebuild
	// ActConnect connects the QP of Path in Epoch to the peer's QPN and PSN. With Carrier.Shared it gives the
	// path another route to the same QP. Epoch differs from that of earlier routes.
	ActConnect
	// ActAnswer executes the fetch kept under Token of Flow. Its response has Len bytes, whose fragments
	// follow under Token. Tokens are below Answers and are reused.
	ActAnswer
	// ActDemand reports that the peer waits for credit for Bytes, which EvGrant grants. Flying bytes are
	// granted and have not arrived. Both replace the values of the last ActDemand. Arrived bytes have
	// arrived since then, Beyond of them without credit.
	ActDemand
	// ActWant reports that the peer has Len messages in total that consume a receive of Flow, which
	// shares receives. The owner grants as many as possible by EvReceives, whose Count may be 0.
	ActWant
	// ActFault reports that the peer sent an unacceptable chunk on Flow. The receiving half has failed
	// with Status.
	ActFault
	// ActWrongKey reports that the chunk of the current EvChunk is new and has the status REM_ACCESS. ActFault
	// follows when all chunks before it have arrived, which a peer that guesses keys prevents.
	ActWrongKey
)

// Action is an output of Conn.Step for the owner to execute. Its Kind determines the valid fields.
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

// Route identifies the QP of a control packet: 0 and 1 are the control QPs, RoutePath plus a path index
// is that data path.
type Route uint16

// RoutePath is the route of the first data path.
const RoutePath Route = 2

// Statuses set by the core itself, numbered as in package verbs.
const (
	statusSuccess   uint8 = 0
	statusFlush     uint8 = 5
	statusInvalid   uint8 = 9
	statusRemAccess uint8 = 10
	statusRetryExc  uint8 = 12
	statusRNRExc    uint8 = 13
)
