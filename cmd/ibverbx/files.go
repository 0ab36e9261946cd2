package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ibverbx/bootstrap"
	"ibverbx/files"
	"ibverbx/internal/forward"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/settings"
	"ibverbx/transfer"
)

// Exit statuses of serve, get, put, ls and forward, beyond those of all commands.
const (
	exitNotFound = 3 // not found, or access denied
	exitChanged  = 4 // a file changed during its transfer, or a digest did not match
	exitPeer     = 5 // the peer is unreachable or was lost
)

// peerError means that the peer is unreachable.
type peerError struct{ err error }

func (e *peerError) Error() string { return e.err.Error() }
func (e *peerError) Unwrap() error { return e.err }

// severalErrors joins the errors of several transfers and determines the exit status.
type severalErrors struct {
	err    error
	status int
}

func (e *severalErrors) Error() string { return e.err.Error() }
func (e *severalErrors) Unwrap() error { return e.err }

// fileStatus returns the exit status of an error of a transfer.
func fileStatus(err error) int {
	var unreachable *peerError
	var local *localError
	var several *severalErrors
	switch {
	case errors.As(err, &several):
		return several.status
	case errors.As(err, &local):
		return exitFailure
	case errors.Is(err, errTerminated):
		return exitTerminated
	case errors.Is(err, files.ErrIncomplete):
		return exitFailure
	case errors.Is(err, files.ErrChanged), errors.Is(err, files.ErrDigest):
		return exitChanged
	case errors.Is(err, files.ErrNotFound), errors.Is(err, files.ErrDenied), errors.Is(err, forward.ErrUnnamed):
		return exitNotFound
	case errors.Is(err, bootstrap.ErrAuth), errors.Is(err, bootstrap.ErrConfig), errors.Is(err, peer.ErrMismatch):
		return exitFailure
	case errors.As(err, &unreachable), errors.Is(err, files.ErrPeerGone):
		return exitPeer
	}
	return exitFailure
}

// fileFlags are the flags that serve, get, put, ls and forward have in common.
type fileFlags struct {
	auth    authFlags
	fabric  fabricFlags
	json    bool
	quiet   bool
	verbose bool
	// metrics are not served by ls.
	metrics metricsFlags
	// logRails logs lost and recovered rails even without --verbose. It is set for servers.
	logRails bool
	// carried is the state of the Node before it was closed.
	carried carried
}

// commonFlags are the flags of all file commands that --help shows, beside the command's own.
var commonFlags = []string{"token-file", "ca", "provider", "addr", "link", "transport", "json", "quiet", "verbose"}

// define adds the flags in help order, starting with the command's own, which own adds. --help shows these and the common ones.
func (f *fileFlags) define(cmd *cobra.Command, s streams, own func(fl *pflag.FlagSet)) {
	fl := cmd.Flags()
	fl.SortFlags = false
	common := slices.Clone(commonFlags)
	if own != nil {
		own(fl)
	}
	fl.VisitAll(func(flag *pflag.Flag) { common = append(common, flag.Name) })
	grouped(fl, "Authentication", func() { f.auth.define(cmd) })
	f.fabric.define(cmd, "NICs", func(*settings.Setting) bool { return true })
	grouped(fl, "Output", func() {
		fl.BoolVar(&f.json, "json", false, "print JSON objects, one per line; the last is the result")
		fl.BoolVarP(&f.quiet, "quiet", "q", false, "print errors only")
		fl.BoolVarP(&f.verbose, "verbose", "v", false, "log connections, and print the cause of errors")
		if cmd.Name() != "ls" {
			f.metrics.define(fl)
		}
	})
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return f.fabric.during(cmd, s.logged(f.json), func() error { return run(cmd, args) })
	}
	addHelpAll(cmd, common)
}

// engine is a Node and the Engines of this process.
type engine struct {
	node   *node.Node
	memory *transfer.Engine
	*files.Engine
	// uncount stops the metrics of the Engines and the Node, see openNode.
	uncount func()
}

// closeTime limits the wait for peers to stop using granted memory.
const closeTime = 5 * time.Second

func (e *engine) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	e.uncount()
	return errors.Join(e.Close(ctx), e.memory.Close(ctx), e.node.Close())
}

// open creates the Engines. local is an address of this host that reaches peers. log is files.Config.OnOperation.
func (f *fileFlags) open(ctx context.Context, s streams, cfg node.Config, local netip.Addr, log func(files.Operation), exports ...files.ExportConfig) (*engine, error) {
	n, uncount, err := f.openNode(ctx, s, cfg, local)
	if err != nil {
		return nil, err
	}
	e := &engine{node: n, uncount: uncount}
	if e.memory, err = transfer.New(transfer.Config{Node: n}); err == nil {
		e.Engine, err = files.New(files.Config{Transfer: e.memory, Exports: exports, OnOperation: log})
	}
	if err != nil {
		uncount()
		return nil, errors.Join(err, n.Close())
	}
	engines := f.metrics.engines(e.memory, e.Engine)
	e.uncount = func() { engines(); uncount() }
	return e, nil
}

// openNode creates the Node. uncount stops its metrics and records its state for --json. Call it before closing the Node.
func (f *fileFlags) openNode(ctx context.Context, s streams, cfg node.Config, local netip.Addr) (n *node.Node, uncount func(), err error) {
	cfg.Fabric, cfg.Local = f.fabric.Fabric, local
	switch {
	case f.verbose:
		cfg.Log = s.log()
	case f.logRails && !f.quiet:
		cfg.Log = slog.New(railLog{s.log().Handler()})
	}
	if n, err = node.New(ctx, cfg); err != nil {
		return nil, nil, f.explainOpen(cfg.Listen, err)
	}
	remove := f.metrics.node(n)
	return n, func() {
		remove()
		f.carried = carriedBy(n)
	}, nil
}

// connectTime is the connect timeout.
const connectTime = 30 * time.Second

// reach connects to a host: open opens NICs with an address of this host that reaches addr, and dial
// connects to addr.
func (f *fileFlags) reach(ctx context.Context, s streams, host string, open func(cfg node.Config, local netip.Addr) error, dial func(ctx context.Context, addr string) error) error {
	auth, err := f.auth.config(&s, "the host "+host)
	if err != nil {
		return err
	}
	addr := withPort(host, node.DefaultPort)
	local, err := localAddr(ctx, addr)
	if err == nil {
		if err := open(node.Config{Auth: auth}, local); err != nil {
			return err
		}
		limit, cancel := context.WithTimeout(ctx, connectTime)
		defer cancel()
		err = dial(limit, addr)
	}
	if err != nil {
		return &peerError{fileServer.explainDial(addr, f.auth.token, err)}
	}
	return nil
}

// withPeer connects to a host, runs do and disconnects.
func (f *fileFlags) withPeer(ctx context.Context, s streams, host string, do func(*files.Peer) error) error {
	var e *engine
	var p *files.Peer
	err := f.reach(ctx, s, host, func(cfg node.Config, local netip.Addr) (err error) {
		e, err = f.open(ctx, s, cfg, local, nil)
		return err
	}, func(ctx context.Context, addr string) (err error) {
		p, err = e.Peer(ctx, addr)
		return err
	})
	if err != nil {
		if e != nil {
			err = errors.Join(err, e.close())
		}
		return stopped(ctx, err)
	}
	err = do(p)
	if closed := e.close(); err == nil {
		err = closed
	}
	return err
}

// localAddr returns the source address of this host for packets to addr. It sends nothing.
func localAddr(ctx context.Context, addr string) (netip.Addr, error) {
	conn, err := (&net.Dialer{Timeout: connectTime}).DialContext(ctx, "udp", addr)
	if err != nil {
		return netip.Addr{}, err
	}
	defer func() { _ = conn.Close() }()
	return conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// serverName returns the peer name of a server, by which clients recognize it after a restart. It is empty for a random port.
func serverName(listen string) string {
	host, err := os.Hostname()
	if _, port, _ := net.SplitHostPort(listen); err != nil || port == "0" {
		return "" // another server on this host may have the same
	}
	return nameOf(host, listen)
}

// nameOf returns a name for a server on a host, of at most 64 bytes.
func nameOf(host, listen string) string {
	name := fmt.Sprintf("serve %s %s", host, listen)
	if len(name) > 64 {
		sum := sha256.Sum256([]byte(name))
		name = fmt.Sprintf("serve %.24s %x", host, sum[:16])
	}
	return name
}
