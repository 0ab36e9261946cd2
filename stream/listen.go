package stream

import (
	"fmt"
	"net"
	"sync"
	"unicode/utf8"

	"ibverbx/node"
	"ibverbx/verbs"
)

// Listener accepts streams from peers to one service. It implements net.Listener. All methods are safe for concurrent use.
type Listener struct {
	service *streamService
	cfg     Config
	name    string
	queue   chan *Conn
	done    chan struct{}

	// mu guards closed, and is held while a stream is queued.
	mu     sync.Mutex
	closed bool
}

// Listen is like the function Listen, with this Config.
func (cfg Config) Listen(n *node.Node, service string) (net.Listener, error) {
	l, err := cfg.listen(n, service)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: Addr{}.Network(), Addr: Addr{Service: service}, Err: err}
	}
	return l, nil
}

func (cfg Config) listen(n *node.Node, service string) (*Listener, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := checkService(service); err != nil {
		return nil, err
	}
	h, err := serviceOf(n)
	if err != nil {
		return nil, err
	}
	l := &Listener{service: h, cfg: cfg, name: service, queue: make(chan *Conn, cfg.Backlog), done: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listeners[service] != nil {
		return nil, fmt.Errorf("%w: the Node has this service already", verbs.ErrBusy)
	}
	h.listeners[service] = l
	return l, nil
}

func checkService(name string) error {
	if name == "" || len(name) > MaxService || !utf8.ValidString(name) {
		return verbs.Invalidf("service %q: want 1 to %d bytes of UTF-8", name, MaxService)
	}
	return nil
}

// offer queues a stream for Accept. It returns false if the queue is full or closed.
func (l *Listener) offer(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	select {
	case l.queue <- c:
		return true
	default:
		return false
	}
}

func (l *Listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// Accept waits for the next stream and returns a *Conn. It returns net.ErrClosed after Close, and node.ErrClosed after the Node was closed.
func (l *Listener) Accept() (net.Conn, error) {
	if l.service == nil {
		return nil, &net.OpError{Op: "accept", Net: Addr{}.Network(), Err: net.ErrClosed}
	}
	err := net.ErrClosed
	select {
	case <-l.done:
	default:
		select {
		case c := <-l.queue:
			return c, nil
		case <-l.done:
		case <-l.service.service.Done():
			err = node.ErrClosed
		}
	}
	return nil, l.service.opError("accept", l.name, nil, err)
}

// Close withdraws the service. Streams waiting for Accept are reset; accepted ones stay open. A second Close returns net.ErrClosed.
func (l *Listener) Close() error {
	if l.service == nil {
		return &net.OpError{Op: "close", Net: Addr{}.Network(), Err: net.ErrClosed}
	}
	l.service.mu.Lock()
	if l.service.listeners[l.name] == l {
		delete(l.service.listeners, l.name) // first, so that peers get "unknown service"
	}
	l.service.mu.Unlock()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return l.service.opError("close", l.name, nil, net.ErrClosed)
	}
	l.closed = true
	close(l.done)
	l.mu.Unlock()
	for {
		select {
		case c := <-l.queue:
			c.abandon()
		default:
			return nil
		}
	}
}

// Addr returns the Node's address with the service, as an Addr.
func (l *Listener) Addr() net.Addr {
	if l.service == nil {
		return Addr{}
	}
	return l.service.addr(l.name)
}
