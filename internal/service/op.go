package service

import (
	"sync/atomic"

	"ibverbx"
	"ibverbx/internal/opaque"
	"ibverbx/verbs"
)

// Op is an operation: blocks to write or read, optionally followed by an immediate. The service
// fills in the fields above State before Submit and does not change them until End. An Op may be
// submitted again after End. The zero State is ready for the first Submit.
//
// The Node splits blocks into fragments of at most 1 MiB and posts them in order, interleaved with
// other operations. Operations of one Flow are posted in Submit order. Otherwise neither operations
// nor the bytes of one operation are ordered, except that an immediate arrives after all data
// posted to the peer before it.
type Op struct {
	// Blocks lists the transfers, at least one.
	Blocks []Block
	// Notify makes the last block a WRITE_WITH_IMM with Imm. That block must be a write of 0 to
	// MaxNotify bytes. The peer's service receives Imm once the data of all blocks posted before it
	// is in memory. Reads are not covered: to notify after a read, submit another Op in End.
	Notify bool
	// Imm is the immediate if Notify is set.
	Imm uint32
	// Replay makes the operation survive its session: incomplete fragments are posted again in the
	// next session with the same process, so bytes may be written or read twice. Without Replay, or
	// if the peer's process has changed, the operation fails with the session. Without a session,
	// an operation with Replay waits for one; any other fails with node.ErrLost.
	Replay bool
	// Incarnation is the process that granted the memory in Blocks (Session.Incarnation). If the
	// peer's process has changed, the operation fails with node.ErrRestarted. Zero means any.
	Incarnation uint64
	// Session is the only session (Session.Number) that the operation may be posted in. Without it,
	// or in another session, the operation fails with node.ErrLost. Zero means any.
	Session uint64
	// Flow is the queue that the operation joins. Nil means a separate one.
	Flow *Flow
	// Sink receives the result of the operation.
	Sink Sink

	// State belongs to the Node.
	State opaque.Box[State]
}

// MaxNotify is the maximum size in bytes of the last block of an Op with Notify.
const MaxNotify = 1 << 20

// Block is a byte range to write to the peer or read from it.
type Block struct {
	// Local is local memory: a Region of the Peer's realm (Memory.Region).
	Local *ibverbx.Region
	// Remote is memory granted by the peer. It must not change until End.
	Remote *ibverbx.RemoteRegion
	// LocalOffset and RemoteOffset are in bytes. If a block does not fit its Regions, the operation
	// fails with verbs.ErrInvalid before anything is posted.
	LocalOffset, RemoteOffset uint64
	// Length is in bytes and may be 0.
	Length uint64
	// Opcode is verbs.OpRDMAWrite or verbs.OpRDMARead.
	Opcode verbs.Opcode
}

// Sink receives the results of operations. It is called with the shard's lock (see the package
// comment).
type Sink interface {
	// End reports the result of the operation. If err is nil, all bytes are in place: data read in
	// local memory, data written in the peer's. An immediate has then reached the peer's NIC, but
	// may be lost if the session closes before the peer's service receives it. After an error,
	// Op.Failed reports the progress.
	//
	// Errors wrap node.ErrCanceled, node.ErrLost, node.ErrRestarted, node.ErrPeerGone or
	// node.ErrClosed, or describe a request: a *node.RequestError, or verbs.ErrInvalid if it could
	// not be posted. A request refused by the peer fails its own operation and the session. Other
	// operations with Replay continue.
	End(op *Op, err error)
}

// Progress returns the number of bytes completed successfully. It may lag behind until End. It is
// safe for concurrent use.
func (op *Op) Progress() (bytes uint64) { return opaque.Open(&op.State).Bytes.Load() }

// Pending reports whether the operation was submitted and is not complete. It is safe for
// concurrent use.
func (op *Op) Pending() bool { return opaque.Open(&op.State).Runs.Load()%2 == 1 }

// Failed returns the first incomplete block and the number of its completed bytes. It is valid in
// and after Sink.End. After success, block is len(Blocks).
func (op *Op) Failed() (block int, offset uint64) {
	st := opaque.Open(&op.State)
	return st.DoneBlock, st.DoneOffset
}

// State is the Node's state of an Op. Only package node opens its box. A service that never cancels
// an Op may zero the box between End and Submit.
type State struct {
	// Runs is incremented by Submit and right before Sink.End, so it is odd in between. It lets
	// Cancel identify its Submit.
	Runs atomic.Uint64
	// Next links operations in the inbox, and then in the Flow.
	Next *Op
	// Owner is the *node.Peer.
	Owner any
	// Own is the Flow of an Op without one.
	Own Flow
	// Bytes publishes Done.
	Bytes atomic.Uint64
	// Block and Offset locate the next fragment.
	Block  int
	Offset uint64
	// Left is the number of unposted bytes.
	Left uint64
	// DoneBlock and DoneOffset locate the first incomplete fragment; Done is the number of bytes
	// before it.
	DoneBlock  int
	DoneOffset uint64
	Done       uint64
	// Flight is the number of fragments in flight.
	Flight int
	// Tried is set if a fragment was posted in the last session.
	Tried bool
	// Queued is set while the Op is in its Flow.
	Queued bool
	// Canceled is set if the Op must fail with node.ErrCanceled instead of posting another
	// fragment.
	Canceled bool
	// Err is the error that the Op fails with once Flight is 0.
	Err error
}

// Flow is a queue of operations of one Peer, posted in order. The Node serves the Flows of a Peer
// round-robin by bytes. The zero value is ready. A Flow may be used with another Peer once all its
// operations are complete.
type Flow struct {
	// State belongs to the Node.
	State opaque.Box[FlowState]
}

// FlowState is the Node's state of a Flow.
type FlowState struct {
	// Head and Tail are the first and the last Op not yet posted in full.
	Head, Tail *Op
	// Next links Flows waiting for their turn.
	Next *Flow
	// Deficit is the number of bytes the Flow may still post in this turn.
	Deficit int
	// Waiting is set while the Flow is linked.
	Waiting bool
}
