package service

import (
	"sync/atomic"

	"ibverbx"
	"ibverbx/internal/opaque"
	"ibverbx/verbs"
)

// Op is an operation: blocks that are written or read, and perhaps an immediate behind them. The service fills in the upper fields
// before Submit and does not change them until End. An Op may be submitted again after End. The zero State is ready for the
// first Submit.
//
// The Node cuts blocks into pieces of at most 1 MiB and posts them in order, between those of other operations. Operations of
// one Flow are posted in the order of Submit. Otherwise there is no order among operations, and none among the bytes
// of one, except that an immediate comes after all bytes that were posted to the peer before it.
type Op struct {
	// Blocks is what to do, at least one.
	Blocks []Block
	// Notify makes the last block a WRITE_WITH_IMM with Imm. That block must be a write of at most MaxNotify bytes, and
	// may have none. The peer's service gets Imm when the bytes of all blocks posted before it are in memory. That
	// does not cover reads: a service that wants to notify after a read submits another Op in End.
	Notify bool
	// Imm is the immediate if Notify is set.
	Imm uint32
	// Replay makes the operation survive its session: pieces that have not ended are posted again in the next session with the
	// same process. Bytes may then be written or read twice. Without it, and always if the peer's process is
	// another one, the operation ends with the session. It also decides what happens without a session: the operation
	// waits for one, or ends with node.ErrLost.
	Replay bool
	// Incarnation is the process that has lent what Blocks refer to (Session.Incarnation). If the peer's process is
	// another one the operation ends with node.ErrRestarted. Zero means any.
	Incarnation uint64
	// Session is the only session (Session.Number) in which the operation may be posted. Without it, and in another one, the
	// operation ends with node.ErrLost. Zero means any.
	Session uint64
	// Flow is the queue that the operation joins. Nil means one of its own.
	Flow *Flow
	// Sink is told what becomes of the operation.
	Sink Sink

	// State belongs to the Node.
	State opaque.Box[State]
}

// MaxNotify is how many bytes the last block of an Op with Notify has at most.
const MaxNotify = 1 << 20

// Block is a run of bytes that is written to the peer or read from it.
type Block struct {
	// Local is this side's memory: a Region of the Peer's realm (Memory.Region).
	Local *ibverbx.Region
	// Remote is the peer's memory, which the peer has lent. It must not change until End.
	Remote *ibverbx.RemoteRegion
	// LocalOffset and RemoteOffset are in bytes. If a block does not fit its Regions, the operation ends with verbs.ErrInvalid
	// and nothing is posted.
	LocalOffset, RemoteOffset uint64
	// Length is in bytes and may be 0.
	Length uint64
	// Opcode is verbs.OpRDMAWrite or verbs.OpRDMARead.
	Opcode verbs.Opcode
}

// Sink is told what becomes of operations. It is called with the shard's lock (see the package comment).
type Sink interface {
	// End says that the operation has ended. Without an error all bytes are in place: those that were read in this side's
	// memory, those that were written in the peer's. An immediate has then reached the peer's NIC, and may be lost
	// if the session ends before the peer's service has it. With an error Op.Failed says how far the operation came.
	//
	// Errors wrap node.ErrCanceled, node.ErrLost, node.ErrRestarted, node.ErrPeerGone or node.ErrClosed, or are those of
	// a request: a *node.RequestError, or verbs.ErrInvalid for one that could not be posted. A request that the peer
	// refuses ends its own operation and the session. Other operations with Replay go on.
	End(op *Op, err error)
}

// Progress returns how many bytes have ended in success. It lags behind a little until End. Any goroutine may call it at any
// time.
func (op *Op) Progress() (bytes uint64) { return opaque.Open(&op.State).Bytes.Load() }

// Pending reports whether the operation was submitted and has not ended. Any goroutine may call it at any time.
func (op *Op) Pending() bool { return opaque.Open(&op.State).Runs.Load()%2 == 1 }

// Failed returns the first block that has not ended in success, and how many of its bytes have. It is valid in Sink.End and after
// it. Without an error block is len(Blocks).
func (op *Op) Failed() (block int, offset uint64) {
	st := opaque.Open(&op.State)
	return st.DoneBlock, st.DoneOffset
}

// State is what a Node knows of an Op. Only package node opens its box. Services that never cancel an Op may set the box to zero between
// End and Submit.
type State struct {
	// Runs is odd from Submit until the call of Sink.End. It counts both, so a Cancel knows for which Submit it is.
	Runs atomic.Uint64
	// Next links operations in the inbox, and then in the Flow.
	Next *Op
	// Owner is the *node.Peer.
	Owner any
	// Own is the Flow of an Op without one.
	Own Flow
	// Bytes have ended in success: Done, as published.
	Bytes atomic.Uint64
	// Block and Offset are where the next piece begins.
	Block  int
	Offset uint64
	// Left is how many bytes are not posted.
	Left uint64
	// DoneBlock and DoneOffset are where the first piece begins that has not ended, and Done the bytes before it.
	DoneBlock  int
	DoneOffset uint64
	Done       uint64
	// Flight is how many pieces are posted and have not ended.
	Flight int
	// Tried says that a piece was posted in the last session.
	Tried bool
	// Queued says that the Op is in its Flow.
	Queued bool
	// Canceled says that the Op ends with node.ErrCanceled instead of posting a piece.
	Canceled bool
	// Err is the error with which the Op ends when Flight is 0.
	Err error
}

// Flow is a queue of operations of one Peer that are posted in order. The Node takes turns between the Flows of a Peer, so that each
// gets its share of the bytes. The zero value is ready. All its operations must have ended before it is used with another
// Peer.
type Flow struct {
	// State belongs to the Node.
	State opaque.Box[FlowState]
}

// FlowState is what a Node knows of a Flow.
type FlowState struct {
	// Head and Tail are the first and the last Op that is not posted as a whole.
	Head, Tail *Op
	// Next links Flows that wait for their turn.
	Next *Flow
	// Deficit is how many bytes the Flow may still post in its turn.
	Deficit int
	// Waiting says that the Flow is linked.
	Waiting bool
}
