package perf

import (
	"context"

	"ibverbx"
)

// Partner is the way to a process at which the other end of a test lives.
type Partner interface {
	// Send sends a message of at most 1 MiB and Recv takes one, in order.
	Send(ctx context.Context, b []byte) error
	Recv(ctx context.Context) ([]byte, error)
	// Open opens NICs for this end, fewer than the wish says if it has no more. It is
	// called once.
	Open(w Wish) ([]ibverbx.RailConfig, error)
	// Connect makes a VirtualQP that is connected to one of the partner, who calls it at
	// the same time, and registers memory at both ends. Meanwhile nobody calls Send or
	// Recv.
	Connect(ctx context.Context, s Shape) (*Link, error)
}

// Shape is what one end of a row should be. What the two ends want is settled between them.
type Shape struct {
	// QP describes the VirtualQP. Its lanes, lane depth and fragment size are wishes; its
	// send and receive depth are needed.
	QP ibverbx.Config
	// MTU is a wish in bytes, 0 for none.
	MTU int
	// Schemes are those that this end takes, the best first.
	Schemes []ibverbx.Scheme
	// Direct says that a single lane should pass requests straight through.
	Direct bool
	// Bytes is how much memory this end has.
	Bytes int
}

// Link is a VirtualQP that is connected.
type Link struct {
	QP     *ibverbx.VirtualQP
	CQ     *ibverbx.VirtualCQ
	Local  *ibverbx.Region
	Remote *ibverbx.RemoteRegion
	Rails  int // of this end
	// What was settled.
	Lanes, Fragment, MTU int
	Scheme               ibverbx.Scheme
	Close                func() error
}
