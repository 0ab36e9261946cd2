package metrics

import (
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"ibverbx/verbs"
)

// serverTimeout is the read and the write timeout of a scrape.
const serverTimeout = 10 * time.Second

// Server serves a Collector over HTTP at /metrics, without authentication, together with the metrics of the Go runtime and of the process.
// Its methods are safe for concurrent use.
type Server struct {
	collector *Collector
	listener  net.Listener
	server    *http.Server
	served    chan error
}

// NewServer starts a Server on addr ("host:port", or ":port" for all addresses). ctx only bounds the call. more are served as well. It
// returns a network error if the port is not available, and verbs.ErrInvalid for a nil argument
// or an empty addr.
func NewServer(ctx context.Context, addr string, more ...prometheus.Collector) (*Server, error) {
	if ctx == nil || addr == "" {
		return nil, verbs.Invalidf("the Context is nil or the address is empty")
	}
	s := &Server{collector: NewCollector(), served: make(chan error, 1)}
	r := prometheus.NewRegistry()
	all := append([]prometheus.Collector{
		s.collector, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}, more...)
	for _, c := range all {
		if c == nil {
			return nil, verbs.Invalidf("a Collector is nil")
		}
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	var err error
	if s.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", addr); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	s.server = &http.Server{Handler: mux, ReadTimeout: serverTimeout, WriteTimeout: serverTimeout, IdleTimeout: time.Minute}
	go func() { s.served <- s.server.Serve(s.listener) }()
	return s, nil
}

// ProcessPorts is the number of ports that NewProcessServer tries.
const ProcessPorts = 64

// NewProcessServer is NewServer for programs that run as several processes on a host with the same addr: if the port is in use, the Server listens on
// the first free one of the ProcessPorts-1 that follow.
func NewProcessServer(ctx context.Context, addr string, more ...prometheus.Collector) (*Server, error) {
	s, err := NewServer(ctx, addr, more...)
	host, port, _ := net.SplitHostPort(addr)
	first, notNumber := strconv.Atoi(port)
	for k := 1; k < ProcessPorts && notNumber == nil && first+k <= math.MaxUint16 && errors.Is(err, syscall.EADDRINUSE); k++ {
		s, err = NewServer(ctx, net.JoinHostPort(host, strconv.Itoa(first+k)), more...)
	}
	return s, err
}

// Collector returns the Collector, nil for the zero value.
func (s *Server) Collector() *Collector { return s.collector }

// Addr returns the listening address, nil for the zero value.
func (s *Server) Addr() net.Addr {
	if s.listener == nil {
		return nil
	}
	return s.listener.Addr()
}

// Close closes the port and all connections. It returns the Server's earlier error, if any. Later
// calls return nil.
func (s *Server) Close() error {
	if s.server == nil {
		return nil
	}
	err := s.server.Close()
	if ended, ok := <-s.served; ok {
		close(s.served)
		if !errors.Is(ended, http.ErrServerClosed) {
			err = errors.Join(err, ended)
		}
	}
	return err
}
