package perf

import (
	"context"

	"ibverbx"
	"ibverbx/verbs"
)

// Partner leads to the process of the other half.
type Partner interface {
	// Send sends a message of at most 1 MiB. Messages arrive in order.
	Send(ctx context.Context, b []byte) error
	// Recv takes the next message.
	Recv(ctx context.Context) ([]byte, error)
	// Open opens NICs for this side, fewer than w asks for if there are no more. It is
	// called once, at the server when a client has said what to measure, and may wait until the client's turn.
	Open(w Wish) ([]ibverbx.RailConfig, error)
	// Connect makes a VirtualQP, connects it to the one of the partner, who calls Connect
	// too, and registers memory at both sides. Nothing is sent or received meanwhile.
	Connect(ctx context.Context, s Shape) (*Link, error)
}

// Shape is what one half of a row should be. The two sides agree on the rest.
type Shape struct {
	// QP describes the VirtualQP. Its lanes, lane depth and fragment size are wishes; its
	// send and receive depth are needed.
	QP ibverbx.Config
	// MTU is a wish in bytes, 0 for none.
	MTU int
	// Schemes are those that this side accepts, the best first.
	Schemes []ibverbx.Scheme
	// Direct means that a single lane should pass requests through unchanged.
	Direct bool
	// Bytes is how much memory this half has.
	Bytes int
	// Memory is memory of this half, which Connect registers. Nil means that Connect allocates it on the host.
	Memory *verbs.Memory
}

// Link is a VirtualQP that is connected, and what the two sides agreed on.
type Link struct {
	QP       *ibverbx.VirtualQP
	CQ       *ibverbx.VirtualCQ
	Name     string // of the link, as in Report.Link
	Reason   string // why it is not shared memory
	Local    *ibverbx.Region
	Remote   *ibverbx.RemoteRegion
	Rails    []ibverbx.RailConfig // of this side
	Lanes    int                  // for data
	Fragment int                  // bytes
	MTU      int                  // bytes
	Scheme   ibverbx.Scheme
	Sealed   bool // packets are encrypted and authenticated
	// SetPort takes the port of this side's NIC of a rail down or up. It is nil if this program cannot do that.
	SetPort func(rail int, up bool)
	Close   func() error
}
