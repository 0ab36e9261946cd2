package stream

import (
	"context"
	"errors"
	"math/bits"
	"net"

	"ibverbx/internal/printable"
	"ibverbx/node"
	"ibverbx/verbs"
)

// ErrBusy means that one side has reached a limit: Config.Memory, Config.Backlog or MaxStreams. Try again later.
var ErrBusy = errors.New("stream limit reached")

// errProtocol reports a protocol violation by the peer. It closes the session.
var errProtocol = errors.New("protocol violation")

// Limits of this package.
const (
	// MaxStreams is the maximum number of streams between two Nodes.
	MaxStreams = 4096
	// MaxService is the maximum length of a service name in bytes.
	MaxService = 255
	// MinRing is the minimum of Config.Ring, in bytes.
	MinRing = 64 << 10
	// MaxRing is the maximum of Config.Ring, in bytes.
	MaxRing = 16 << 20

	defaultRing    = 1 << 20
	defaultMemory  = 1 << 30
	defaultBacklog = 128
	maxBacklog     = 1 << 16
)

// Config configures streams. Listen, Dial, Dialer and ContextDialer use the zero value. An invalid Config makes them fail with verbs.ErrInvalid.
type Config struct {
	// Ring is the buffer size per direction, on each side, in bytes: a power of two from MinRing to MaxRing. Zero means 1 MiB. Raise it for
	// streams with a large bandwidth-delay product.
	Ring int
	// Memory limits the rings of all streams of the Node, in bytes. Beyond it, Dial returns ErrBusy and a Listener refuses streams. Zero
	// means 1 GiB. A stream uses twice Ring.
	Memory int64
	// Backlog is the maximum number of streams waiting for Accept, at most 65536. Further streams are refused with ErrBusy. Zero means 128.
	Backlog int
}

func (c Config) withDefaults() (Config, error) {
	if c.Ring == 0 {
		c.Ring = defaultRing
	}
	if c.Memory == 0 {
		c.Memory = defaultMemory
	}
	if c.Backlog == 0 {
		c.Backlog = defaultBacklog
	}
	switch {
	case c.Ring < MinRing || c.Ring > MaxRing || bits.OnesCount(uint(c.Ring)) != 1:
		return c, verbs.Invalidf("Config.Ring is %d: want a power of two from %d to %d", c.Ring, MinRing, MaxRing)
	case c.Memory < 0:
		return c, verbs.Invalidf("Config.Memory is %d", c.Memory)
	case c.Backlog < 0 || c.Backlog > maxBacklog:
		return c, verbs.Invalidf("Config.Backlog is %d: want at most %d", c.Backlog, maxBacklog)
	}
	return c, nil
}

// Listen announces a service to peers, with the default Config. The listener's Addr is an Addr with the service. Listen returns
// verbs.ErrBusy if the Node already has the service, verbs.ErrInvalid for a name that is empty, longer than MaxService or not UTF-8, and
// node.ErrClosed for a closed Node.
func Listen(n *node.Node, service string) (net.Listener, error) {
	return Config{}.Listen(n, service)
}

// Dial opens a stream to a peer's service, with the default Config. It waits until the peer is connected and supports streams, or ctx is
// done. If the session is lost meanwhile, Dial retries in the next one. Errors wrap syscall.ECONNREFUSED if the peer does not have the
// service, ErrBusy if a limit is reached on either side, or the cause of ctx.
func Dial(ctx context.Context, p *node.Peer, service string) (*Conn, error) {
	return Config{}.Dial(ctx, p, service)
}

// Dialer returns a function for http.Transport.DialContext, with the default Config. It dials addresses such as "node7:18510/grpc", where
// the part after the slash is the service; the default service is "http". It ignores the network. See node.Node.Peer for connection errors
// and Dial for the others.
func Dialer(n *node.Node) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return Config{}.Dialer(n)
}

// ContextDialer is like Dialer, for grpc.WithContextDialer: the function does not have the network argument.
func ContextDialer(n *node.Node) func(ctx context.Context, addr string) (net.Conn, error) {
	return Config{}.ContextDialer(n)
}

// Addr is the address of a service. It implements net.Addr.
type Addr struct {
	// Host is the Node's address, "host:port". It is empty for a Node that does not listen.
	Host string
	// Service is the service name.
	Service string
}

// Network returns "ibverbx".
func (Addr) Network() string { return "ibverbx" }

// String returns "host:port/service", with non-printable characters escaped as in Go.
func (a Addr) String() string { return printable.Text(a.Host + "/" + a.Service) }
