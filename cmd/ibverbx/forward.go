package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ibverbx/internal/forward"
	"ibverbx/node"
	"ibverbx/stream"
)

const forwardLong = `Forward TCP connections over all NICs to targets that another host reaches, as ssh -L does. Programs connect
to a local port and need no change. The other host must run ibverbx serve --forward HOST:PORT with the
same HOST:PORT.

-L [BIND:]PORT:HOST:PORT listens on PORT and connects to HOST:PORT as seen from the other host. BIND is the
local address (default 127.0.0.1; * means all addresses). PORT 0 picks a free port. HOST:PORT may also be
the path of a Unix socket.

Connections survive the loss of a NIC. If the other host is lost, they are reset, and new ones succeed when
it is back. Ctrl-C and SIGTERM reset all connections and exit with status 0.

Exit status: 0 stopped by a signal; 1 failed; 2 wrong usage; 3 the host does not forward to the target; 5
the host is unreachable.`

const forwardExample = `  ibverbx serve --forward 127.0.0.1:5432 --token-file t         on host db
  ibverbx forward -L 5432:127.0.0.1:5432 db --token-file t
  psql -h 127.0.0.1

  ibverbx forward -L 0:redis1:6379 -L 0:redis2:6379 gateway --token-file t
                                            two free ports, which it prints
  ibverbx forward -L 10.0.0.5:8080:127.0.0.1:80 node1 --token-file t
                                            reachable from other hosts`

// replaceTime is the interval between attempts to connect to a host with a new identity.
const replaceTime = time.Second

// forwardStreams returns the configuration of forwarded streams. Their memory covers connected, queued and closing streams, and what the
// slabs of several clients leave unused.
func forwardStreams() stream.Config {
	const ring, backlog = 256 << 10, forward.MaxConns / 2
	return stream.Config{Ring: ring, Backlog: backlog, Memory: (forward.MaxServed + 2*backlog) * 2 * ring}
}

// forwardFlags are the flags of forward.
type forwardFlags struct {
	fileFlags
	local []string
}

func newForward(s streams) *cobra.Command {
	f := &forwardFlags{}
	f.logRails = true
	cmd := &cobra.Command{
		Use:     "forward -L [BIND:]PORT:HOST:PORT HOST[:PORT] [flags]",
		Short:   "Carry TCP connections to another host, as ssh -L does",
		Long:    forwardLong,
		Example: forwardExample,
		Args:    wantArgs(1, 1, "HOST"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(f.local) == 0 {
				return wrong(cmd, "name what to forward, such as -L 5432:127.0.0.1:5432")
			}
			s := s.logged(f.json)
			err := f.metrics.during(cmd.Context(), s, func() error { return f.run(cmd.Context(), s, args[0]) })
			return f.conclude(s, err, f.plainResult)
		},
	}
	f.define(cmd, s, func(fl *pflag.FlagSet) {
		fl.StringArrayVarP(&f.local, "local", "L", nil, "forward local PORT to HOST:PORT: `[BIND:]PORT:HOST:PORT`; repeatable")
	})
	return cmd
}

// localForward is an -L.
type localForward struct {
	listen string
	target forward.Target
	l      net.Listener
}

// parseLocal reads [BIND:]PORT:TARGET.
func parseLocal(text string) (*localForward, error) {
	bind, rest := "127.0.0.1", text
	if i := strings.IndexByte(rest, ':'); i < 0 || !isPort(rest[:i]) {
		if host, after, ok := strings.Cut(rest, "]:"); ok && strings.HasPrefix(host, "[") {
			bind, rest = host[1:], after
		} else {
			bind, rest, _ = strings.Cut(rest, ":")
		}
	}
	port, to, ok := strings.Cut(rest, ":")
	if !isPort(port) || !ok || bind == "" {
		return nil, refuse("-L "+text, "it is not [BIND:]PORT:HOST:PORT", "use for example -L 5432:127.0.0.1:5432")
	}
	target, err := forward.ParseTarget(to)
	if err != nil {
		return nil, refuse("-L "+text, "its target is wrong: "+err.Error(), "use for example -L 5432:127.0.0.1:5432")
	}
	if bind == "*" {
		bind = ""
	}
	return &localForward{listen: net.JoinHostPort(bind, port), target: target}, nil
}

func isPort(text string) bool {
	_, err := strconv.ParseUint(text, 10, 16)
	return err == nil
}

func (f *forwardFlags) run(ctx context.Context, s streams, host string) error {
	var all []*localForward
	for _, text := range f.local {
		x, err := parseLocal(text)
		if err != nil {
			return err
		}
		if x.l, err = (&net.ListenConfig{}).Listen(ctx, "tcp", x.listen); err != nil {
			return explain(err, "-L %s: cannot listen on %s: %s", text, x.listen, listenCause(err))
		}
		defer func() { _ = x.l.Close() }()
		all = append(all, x)
	}
	err := f.forward(ctx, s, host, all)
	if ctx.Err() != nil {
		return nil // a signal stops forward normally, even while it connects
	}
	return err
}

// forward connects to the host and forwards until ctx is done.
func (f *forwardFlags) forward(ctx context.Context, s streams, host string, all []*localForward) (err error) {
	messages := &messageLog{s: s}
	addr := withPort(host, node.DefaultPort)
	far := &forwardHost{addr: addr, logf: messages.printf}
	var uncount func()
	err = f.reach(ctx, s, host, func(cfg node.Config, local netip.Addr) (err error) {
		far.node, uncount, err = f.openNode(ctx, s, cfg, local)
		return err
	}, func(ctx context.Context, addr string) error {
		p, err := far.node.Peer(ctx, addr)
		far.peer.Store(p)
		return err
	})
	if far.node != nil {
		defer func() { err = errors.Join(err, far.node.Close()) }()
		defer uncount()
	}
	if err != nil {
		return err
	}
	client := forward.NewClient(func(ctx context.Context) (net.Conn, error) {
		c, err := forwardStreams().Dial(ctx, far.peer.Load(), forward.Service)
		if errors.Is(err, stream.ErrBusy) || errors.Is(err, node.ErrClosed) { // there will be room, or the peer is being replaced
			err = fmt.Errorf("%w: %w", forward.ErrBusy, err)
		}
		return c, err
	}, messages.printf)
	for _, x := range all {
		if err := client.Check(ctx, x.target); err != nil {
			return err
		}
	}
	if err := f.ready(s, all, addr); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var serving sync.WaitGroup
	ended := make(chan error, len(all))
	for _, x := range all {
		serving.Go(func() {
			defer cancel()
			ended <- client.Serve(ctx, x.l, x.target)
		})
	}
	serving.Go(func() { far.watch(ctx) })
	serving.Wait()
	close(ended)
	for e := range ended {
		err = errors.Join(err, e)
	}
	return err
}

// ready prints the addresses that programs can connect to.
func (f *forwardFlags) ready(s streams, all []*localForward, addr string) error {
	out := printer{w: s.out}
	for _, x := range all {
		switch {
		case f.json:
			out.json(servedLine{Type: lineListening, Event: lineListening, Listen: x.l.Addr().String(), Target: string(x.target), Host: addr})
		case !f.quiet:
			out.printf("%v forwards to %s on %s\n", x.l.Addr(), x.target, addr)
		}
	}
	return out.err
}

// forwardHost is the host of a forward.
type forwardHost struct {
	node *node.Node
	addr string
	logf forward.Logf
	// peer is the Peer that answered at the address last.
	peer atomic.Pointer[node.Peer]
}

// watch reports the loss and the recovery of the host. A host with another identity at the same address replaces it, because it has passed
// the authentication.
func (h *forwardHost) watch(ctx context.Context) {
	for lost := false; ctx.Err() == nil; {
		p := h.peer.Load()
		changed := p.Changed()
		switch state := p.State(); {
		case !lost && state == node.StateLost:
			lost = true
			h.logf("%s is lost, its connections are reset; trying again", h.addr)
		case lost && state == node.StateReady:
			lost = false
			h.logf("%s is back", h.addr)
		}
		if lost && errors.Is(p.Err(), node.ErrOther) {
			lost = !h.replace(ctx, p)
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// replace connects to the successor of an old peer, trying until ctx is done. It reports whether it has succeeded.
func (h *forwardHost) replace(ctx context.Context, old *node.Peer) bool {
	_ = old.Close() // never fails
	for ctx.Err() == nil {
		p, err := h.node.Peer(ctx, h.addr)
		if err == nil {
			h.peer.Store(p)
			h.logf("%s is back under another identity: %v instead of %v", h.addr, p, old)
			return true
		}
		select {
		case <-time.After(replaceTime):
		case <-ctx.Done():
		}
	}
	return false
}
