// Package service is the contract between package node and the packages on top of it, such as
// transfer and stream, called services here. Programs do not use it: node.Node.Service and
// node.Peer.Service return its interfaces.
//
// # Writing a service
//
// A service attaches itself to a Node once (Node.Attach). The Node introduces it to every peer
// (Handler.Hello) and notifies it of every session with a peer that runs the same service
// (Handler.Up). The service exchanges messages over the authenticated connection (Session.Send,
// Handler.Message), submits operations to the peer's shard (Peer.Submit), and receives the
// immediates of its classes (Handler.Immediate). Keys travel only over the connection. A service
// with state for each peer uses Peers as its Handler, and Link or package rpc for the session with
// the peer.
//
// # Locks
//
// A shard has one lock. Op.Sink and Handler.Immediate are called with it held, by the goroutine
// that drives the shard: the shard's own, or one in Submit, Cancel or Help. They must not block and
// must not acquire a lock that is ever held while calling this package. Of this package they may
// call only Submit, Cancel and Op methods. All other methods may be called from any goroutine,
// without the lock.
//
// For one Peer, calls of Handler.Hello, Up, Down, Message and Gone are serialized, without a lock.
// For different Peers they run concurrently.
//
// # Order
//
//	Hello         before everything else of a session
//	Up            after the peer's Hello has arrived, before everything below
//	Message       in the peer's sending order
//	Immediate     in the peer's posting order; all data the peer wrote before it is in memory
//	Sink.End      when the local NICs have finished with the operation's memory
//	Down          after the last Message and Immediate of the session
//	Gone          after Down, if no session follows for long
//
// Operations and messages are not ordered relative to each other.
//
// # Changes
//
// The encoding of a region ([AppendRegion]) is part of every service's protocol: a change needs a new
// version of each. Interfaces may change together with package node and the services.
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

// ID identifies a service. It is the first byte of its messages.
type ID uint8

// Services.
const (
	NodeID     ID = iota // package node itself
	TransferID           // package transfer
	StreamID             // package stream
	FilesID              // package files
	// IDs is the maximum number of services.
	IDs = 16
)

var names = [...]string{NodeID: "node", TransferID: "transfer", StreamID: "stream", FilesID: "files"}

// String returns the name of the service for errors.
func (id ID) String() string {
	if int(id) < len(names) {
		return names[id]
	}
	return fmt.Sprintf("service %d", uint8(id))
}

// MaxMessage is the maximum size of a service message in bytes.
const MaxMessage = bootstrap.MaxMessage - 1

// Classes of immediates. The class is in the upper four bits, the service's argument in the other
// 28.
const (
	ClassShift = 28
	ArgMask    = 1<<ClassShift - 1
)

// Class returns the class of an immediate.
func Class(imm uint32) uint8 { return uint8(imm >> ClassShift) }

// Immediate combines a class and the lower 28 bits of arg into an immediate.
func Immediate(class uint8, arg uint32) uint32 { return uint32(class)<<ClassShift | arg&ArgMask }

// MaxHello is the maximum length of Handler.Hello.
const MaxHello = 1024

// Service describes a service to a Node.
type Service struct {
	// ID identifies the service. A Node has at most one service per ID.
	ID ID
	// Version is the protocol version, from 1. Both sides must have the same one. Extending Hello
	// at its end does not require a new version.
	Version uint16
	// Classes has bit c set if the service receives immediates of class c. Services must not share
	// a class.
	Classes uint16
	// Handler receives the Node's calls.
	Handler Handler
}

// Handler receives calls from a Node. Arguments are untrusted: peers choose messages, immediates
// and lengths. A Handler must not close the Node or a Peer, because Close waits for the Handler.
// Session.End does not.
type Handler interface {
	// Hello returns the body that introduces the service to the peer, at most MaxHello bytes. The
	// Node calls it once per session and sends the body to the peer's service, which receives it in
	// Up. From then on the peer's service may use all keys in it; its immediates are deferred until
	// Up on this side. Hello must not call Send. If ok is false, the service does not take part in
	// the session.
	Hello(s Session) (body []byte, ok bool)
	// Up reports that both sides of a session run the service. body is the Hello of the peer's
	// service. Ignore trailing bytes: they belong to a later version. If the peer's process has
	// changed, s.Incarnation differs, and all keys and state of the earlier process are invalid.
	Up(s Session, body []byte)
	// Down reports that a session has closed, and why. Messages already sent may not have arrived.
	// The Peer may reconnect in another session.
	Down(s Session, cause error)
	// Gone reports that the Node has given up a peer: it was lost for node.Config.LostTimeout, or
	// is closed. cause wraps node.ErrPeerGone or node.ErrClosed, as do the errors of all further
	// operations. Gone follows the last Down, and may be called without any Up. Unless it is
	// closed, the Peer may reconnect, which calls Up. If cause wraps node.ErrVersion instead, the
	// peer's service has another Version, and Up is not called in this session.
	Gone(p Peer, cause error)
	// Message delivers a message from the peer's service, without its ID. The service may keep
	// body. Message must return quickly, because it delays the peer's next message. It may call
	// Send for a response if the service limits its unanswered data to 1 MiB in total. Otherwise
	// two services can deadlock.
	Message(s Session, body []byte)
	// Immediate delivers a WRITE_WITH_IMM from the peer, with the shard's lock (see the package
	// comment). length is the length of the write, as the peer's NICs reported it.
	Immediate(s Session, imm, length uint32)
}

// Node is a node.Node as services see it.
type Node interface {
	// Attach registers a service with the Node and announces it to connected peers. It fails if the
	// ID or a class is in use, or if the Node is closed.
	Attach(s Service) error
	// Detach removes a service and closes the sessions of peers that know it. Down is not called.
	// After Detach returns, the Handler is never called again. A Handler or a Sink must not call
	// Detach.
	Detach(id ID)
	// Attached returns the Handler of a service, or nil. A service that is created on first use
	// finds its existing Handler this way.
	Attached(id ID) Handler
	// Alloc allocates memory for Register. It is Shared if sessions may use shared memory, unless cfg
	// requests huge pages. cfg may be nil.
	Alloc(n int, cfg *verbs.MemoryConfig) (*verbs.Memory, error)
	// Register makes memory usable with peers. Registration is deferred until first use. The caller
	// still owns the memory and frees it after Memory.Close.
	Register(m *verbs.Memory) Memory
	// Log returns the logger for services.
	Log() *slog.Logger
	// Done is closed when the Node closes.
	Done() <-chan struct{}
}

// Memory is memory and its registrations: one for each realm and access, created on demand and
// shared by all peers of the realm. A key grants only the access of its registration.
type Memory interface {
	// Region returns the registration for a peer. Access 0 means verbs.AccessLocalWrite, for local
	// requests. Only a Region with remote access may be granted to a peer, over Session.Send.
	Region(p Peer, access verbs.Access) (*ibverbx.Region, error)
	// Remote returns the remote description of the registration for the peer. Unlike Region.Remote,
	// it may be called while the Node is closed.
	Remote(p Peer, access verbs.Access) (ibverbx.RemoteRegion, error)
	// Close deregisters the memory. Its keys are invalid after Close returns. Operations that use a
	// registration must be complete, and new ones must not be submitted. After an error some keys may
	// still be valid; call Close again.
	Close() error
}

// Peer is a node.Peer as services see it. It outlives its sessions.
type Peer interface {
	// Owner returns the *node.Peer.
	Owner() any
	// Submit queues an operation on the Peer's shard, and drives the shard unless another goroutine
	// does. The Node owns the operation and its memory until Sink.End, which is called exactly
	// once, possibly before Submit returns. Submit never waits for the peer. It is unlimited: the
	// service must bound its outstanding operations.
	Submit(op *Op)
	// Cancel stops posting an operation. It fails with node.ErrCanceled once its posted fragments
	// are complete, and the content of the peer's memory is then undefined. If all fragments were
	// posted already and the session is not lost, the operation completes as usual. Cancel is a
	// no-op for a completed operation, even if it is submitted again before Cancel returns. The
	// operation must have been submitted to this Peer.
	Cancel(op *Op)
	// Help drives the shard once: it posts, polls and calls Sinks. It returns false if another goroutine is driving. A
	// goroutine that waits for an operation should call Help for a while before it sleeps.
	Help() bool
	// Leave leaves the shard to its own goroutine. Call it after Help, before sleeping until an operation completes.
	// Otherwise the completion may be detected 50 us late.
	Leave()
	// Redial makes the Node dial a lost peer as soon as the last attempt is 1 s old. Services call it when the program
	// needs the peer; Link.Wait does so itself. Redial never waits for the peer. It must not be called with the shard's lock.
	Redial()
	// Session returns the current session, or nil. A parked Peer has one.
	Session() Session
	// Identity describes the peer as it last authenticated.
	Identity() bootstrap.Peer
	// Forgotten returns the reason why the Node has forgotten the Peer, which is final; nil
	// otherwise.
	Forgotten() error
}

// Session is a connection with a peer's process, until it closes. Its VirtualQP may be parked and recreated meanwhile;
// services do not notice.
type Session interface {
	Peer() Peer
	// Number counts the sessions of a Peer from 1.
	Number() uint64
	// Incarnation identifies the peer's process.
	Incarnation() uint64
	// Send sends a message to the peer's service with that ID. It blocks while the queue is full,
	// until ctx is done. After an error the message was not sent, and the session is closed unless
	// ctx is done. It must not be called with the shard's lock.
	Send(ctx context.Context, id ID, body []byte) error
	// End closes the session because of an error, such as a message that no honest peer sends. The
	// side that dialed redials. End does not block and may be called with the shard's lock.
	End(cause error)
}
