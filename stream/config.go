package stream

import (
	"context"
	"errors"
	"math/bits"
	"net"

	"ibverbx/node"
	"ibverbx/verbs"
)

// ErrBusy means that one of the two sides has no room for another stream: Config.Memory, Config.Backlog or MaxStreams.
var ErrBusy = errors.New("no room for another stream")

// errProtocol means that the peer has sent what no honest peer sends. It ends the session.
var errProtocol = errors.New("protocol violation")

// Bounds.
const (
	// MaxStreams is how many streams two Nodes have with each other at most.
	MaxStreams = 4096
	// MaxService is how many bytes the name of a service has at most.
	MaxService = 255
	// MinRing and MaxRing bound Config.Ring.
	MinRing = 64 << 10
	MaxRing = 16 << 20

	defaultRing    = 1 << 20
	defaultMemory  = 1 << 30
	defaultBacklog = 128
	maxBacklog     = 1 << 16
)

// Config describes streams. The zero value is what Listen, Dial and Dialer use.
type Config struct {
	// Ring is how many bytes a stream buffers in each direction, on each side. It is a power of two from MinRing to MaxRing. Zero
	// means 1 MiB. A stream whose bytes travel for long needs more.
	Ring int
	// Memory bounds the rings of all streams of the Node, in bytes. Above it, Dial returns ErrBusy and a Listener refuses. Zero
	// means 1 GiB. A stream takes twice Ring.
	Memory int64
	// Backlog is how many streams may wait for Accept. More are refused. Zero means 128.
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

// Listen makes a service known to peers, with the default Config. Its Addr names the service.
func Listen(n *node.Node, service string) (net.Listener, error) {
	return Config{}.Listen(n, service)
}

// Dial opens a stream to a service of a peer, with the default Config. It waits until the peer is connected, and uses streams itself,
// or ctx ends. If the session is lost meanwhile, it tries again in the next one. If the peer has no such service, the error wraps syscall.ECONNREFUSED.
func Dial(ctx context.Context, p *node.Peer, service string) (*Conn, error) {
	return Config{}.Dial(ctx, p, service)
}

// Dialer returns a function for http.Transport.DialContext and grpc.WithContextDialer, with the default Config. It dials addresses
// such as "node7:18510/grpc", whose last part is the service. Without that part the service is "http". The network is
// ignored.
func Dialer(n *node.Node) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return Config{}.Dialer(n)
}

// Addr is the address of a service.
type Addr struct {
	// Host is the address of the Node, "host:port". It is empty if it does not listen.
	Host string
	// Service is the name of the service.
	Service string
}

// Network returns "ibverbx".
func (Addr) Network() string { return "ibverbx" }

// String returns "host:port/service".
func (a Addr) String() string { return a.Host + "/" + a.Service }
