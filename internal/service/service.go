// Package service is the contract between package node and the packages on top of it, such as transfer and stream. Those are
// called services here. Programs do not use it: node.Node.Service and node.Peer.Service return its interfaces.
//
// # What a service does
//
// A service attaches itself to a Node once (Node.Attach). The Node introduces it to every peer (Handler.Hello). The service then
// hears of every session with a peer that has the same service (Handler.Up), sends and gets messages over the authenticated connection (Session.Send, Handler.Message), hands operations to the shard of a peer
// (Peer.Submit), and gets the immediates of its classes (Handler.Immediate). Keys go over the connection, never elsewhere.
// A service with state for each peer uses Peers as its Handler, and Link or package rpc for the session with the peer.
//
// # Locks
//
// A shard has one lock. Op.Sink and Handler.Immediate are called with it, by whichever goroutine drives the shard: the
// shard's own, or one that is in Submit, Cancel or Help. They must not block, not take a lock that is ever held during a call
// of this package, and call nothing of this package but Submit, Cancel and Op methods. All other methods may be
// called from any goroutine, without the lock.
//
// Handler.Hello, Up, Down, Message and Gone of one Peer are called one after the other, without a lock. Different Peers call them at
// the same time.
//
// # Order
//
//	Hello         before everything else of a session
//	Up            when the peer's Hello has come, before everything below
//	Message       in the order in which the peer sent them
//	Immediate     in the order in which the peer posted them; all bytes that the peer wrote before are in memory
//	Sink.End      when no NIC of this side touches the memory of the operation any more
//	Down          after the last Message and Immediate of the session
//	Gone          after Down, if no session follows for long
//
// The bytes of an operation and the messages of the connection are not ordered with each other.
package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/verbs"
)

// ErrVersion means that the two sides speak different versions of a protocol.
var ErrVersion = errors.New("protocol versions differ")

// ID names a service. It is the first byte of its messages.
type ID uint8

// Services.
const (
	NodeID     ID = iota // package node itself
	TransferID           // package transfer
	StreamID             // package stream
	FilesID              // package files
	// IDs is how many services there can be.
	IDs = 16
)

var names = [...]string{NodeID: "node", TransferID: "transfer", StreamID: "stream", FilesID: "files"}

// String names the service in errors.
func (id ID) String() string {
	if int(id) < len(names) {
		return names[id]
	}
	return fmt.Sprintf("service %d", uint8(id))
}

// MaxMessage is how many bytes a message of a service has at most.
const MaxMessage = bootstrap.MaxMessage - 1

// Classes of immediates. The class is in the upper four bits, an argument of the service in the other 28.
const (
	ClassShift = 28
	ArgMask    = 1<<ClassShift - 1
)

// Class returns the class of an immediate.
func Class(imm uint32) uint8 { return uint8(imm >> ClassShift) }

// Immediate returns the immediate of a class and an argument, of which the lower 28 bits count.
func Immediate(class uint8, arg uint32) uint32 { return uint32(class)<<ClassShift | arg&ArgMask }

// MaxHello is the maximum length of Handler.Hello.
const MaxHello = 1024

// Service describes a service to a Node.
type Service struct {
	// ID is the service. There is one service of an ID on a Node.
	ID ID
	// Version is the version of its protocol, from 1. Both sides must have the same one. A service that only adds to the end of
	// Hello keeps its version.
	Version uint16
	// Classes has bit c set if the service gets immediates of class c. No two services have a class in common.
	Classes uint16
	// Handler is what the Node calls.
	Handler Handler
}

// Handler is what a Node calls in a service. Nothing in the arguments can be trusted: peers choose messages, immediates and
// lengths. A Handler does not close the Node or a Peer: that would wait for the Handler. Session.End does not.
type Handler interface {
	// Hello returns the body that introduces the service to the peer, at most MaxHello bytes. The Node calls it once for each
	// session and sends it to the peer's service, which gets it with Up. From then on the peer's service may use all keys in it,
	// and its immediates wait for Up of this side. Hello must not call Send. Without ok the service does not take part in the session.
	Hello(s Session) (body []byte, ok bool)
	// Up says that both sides of a session have the service. body is the Hello of the peer's service. Bytes behind those that
	// the service knows are from a later version and must be ignored. If the peer's process is another one than before,
	// s.Incarnation differs. Then all keys and state of the earlier process are worthless.
	Up(s Session, body []byte)
	// Down says that a session has ended, and why. Messages that were sent may not have arrived. The Peer may
	// come back with another session.
	Down(s Session, cause error)
	// Gone says that the Node has given up a peer: it was lost for node.Config.LostTimeout, or is closed. cause wraps
	// node.ErrPeerGone or node.ErrClosed, and so do the errors of all its operations from now on. It comes after the last Down. A Peer that is not
	// closed may come back, with an Up. The service may never have got an Up of the Peer. If cause wraps node.ErrVersion instead, the
	// peer's service has another Version, and there is no Up in this session.
	Gone(p Peer, cause error)
	// Message is a message of the peer's service, without its ID. The service keeps body if it likes. Message must return
	// soon: the next message of the peer waits for it. It may call Send for an answer, if the service bounds what
	// it leaves unanswered to 1 MiB in all. Otherwise two services can wait for each other.
	Message(s Session, body []byte)
	// Immediate is a WRITE_WITH_IMM of the peer, with the shard's lock (see the package comment). length is that of the
	// write, as the peer's NICs reported it.
	Immediate(s Session, imm, length uint32)
}

// Node is a node.Node as services see it.
type Node interface {
	// Attach makes a service known, also to peers that are connected. An error means that the ID or a class is taken, or that the
	// Node is closed.
	Attach(s Service) error
	// Detach ends what Attach began, and the sessions in which peers know the service. Down is not called. When it returns, no
	// method of the Handler is running and none will be called. It must not be called by a Handler or a Sink.
	Detach(id ID)
	// Attached returns the Handler of a service, nil if there is none. A service that programs use without making it first finds
	// itself so.
	Attached(id ID) Handler
	// Register makes memory usable with peers. It registers nothing yet. The caller keeps the memory and frees it after
	// Memory.Close.
	Register(m *verbs.Memory) Memory
	// Log is where a service logs.
	Log() *slog.Logger
	// Done is closed when the Node closes.
	Done() <-chan struct{}
}

// Memory is memory and its registrations: one for each realm and each kind of access, made when it is first needed and shared by
// all peers of the realm. The key of a registration with less access does not open the others.
type Memory interface {
	// Region returns the registration for a peer. Access 0 means verbs.AccessLocalWrite: this side's own
	// requests. Only a Region with remote access is lent to a peer, over Session.Send.
	Region(p Peer, access verbs.Access) (*ibverbx.Region, error)
	// Remote returns what a peer needs to use the registration. Unlike Region.Remote it may be called while the Node is closed.
	Remote(p Peer, access verbs.Access) (ibverbx.RemoteRegion, error)
	// Close ends all registrations. Keys of them are invalid when it returns. No operation that uses one may be under way, and
	// none may follow.
	Close() error
}

// Peer is a node.Peer as services see it. It outlives its sessions.
type Peer interface {
	// Owner returns the *node.Peer.
	Owner() any
	// Submit hands an operation to the Peer's shard and drives the shard if nobody else does. The operation and what it refers to
	// belong to the Node until Sink.End, which is called exactly once, perhaps before Submit returns. Submit never
	// blocks for the peer and has no limit: the service bounds how many operations it submits.
	Submit(op *Op)
	// Cancel makes an operation post nothing more. It ends with node.ErrCanceled when its posted pieces have ended, or
	// as it would have ended if all are posted and the session is not lost. What the peer's memory holds then is unknown. Cancel of an
	// operation that has ended does nothing, even if the operation is submitted again before Cancel returns. The
	// operation must have been submitted to this Peer.
	Cancel(op *Op)
	// Help drives the shard once: it posts, polls and calls Sinks. It reports whether it could: another goroutine may be
	// driving. A goroutine that waits for an operation should Help a while before it sleeps.
	Help() bool
	// Leave leaves the shard to its own goroutine. One that has helped and now sleeps until an operation ends calls it.
	// Otherwise the end may be noticed 50 us late.
	Leave()
	// Session returns the present session, nil if there is none. A parked Peer has one.
	Session() Session
	// Identity describes the peer as it authenticated last.
	Identity() bootstrap.Peer
	// Forgotten returns why the Node has forgotten the Peer, nil if it has not. No session follows then.
	Forgotten() error
}

// Session is the time from one connection with a peer's process until its end. The connection is the same all the time.
// The VirtualQP may be parked and made again meanwhile, which services do not see.
type Session interface {
	Peer() Peer
	// Number counts the sessions of a Peer from 1.
	Number() uint64
	// Incarnation identifies the peer's process.
	Incarnation() uint64
	// Send sends a message to the peer's service of that ID. It waits until there is room or ctx ends. An error means that it
	// was not sent, and that the session has ended unless ctx has. It must not be called with the shard's lock.
	Send(ctx context.Context, id ID, body []byte) error
	// End ends the session because of an error, such as a message that no honest peer sends. The side that
	// dialed dials again. It returns at once and may be called with the shard's lock.
	End(cause error)
}
