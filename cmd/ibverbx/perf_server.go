package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"

	"ibverbx/bootstrap"
	"ibverbx/internal/perf/measure"
)

// maxClients limits the connected clients. One is served and the others are queued; further clients are rejected and
// may retry later.
const maxClients = 128

const perfServeLong = `Wait for clients and run their tests one after the other, until Ctrl-C or SIGTERM. A client is
"ibverbx perf HOST" on another host or in another process. It decides what to measure; both sides
print the results.

Both sides need --token-file with the same secret (ibverbx token makes one), or certificates
(ibverbx cert). If lanes, fragments or MTU differ between the sides, the smaller value applies.

The NICs are software NICs that exchange RoCE v2 packets over UDP. Processes of one user on one host
use shared memory instead. --provider rdmacore uses real NICs.`

const perfServeExample = `  ibverbx perf serve --token-file t        on node1
  ibverbx perf read node1 --token-file t   elsewhere: RDMA_READ from node1
  ibverbx perf serve --token-file t --metrics :9100
                                           also serve node1:9100/metrics`

// newPerfServe builds the perf serve command.
func newPerfServe(s streams) *cobra.Command {
	f := perfFlags{server: true}
	cmd := &cobra.Command{
		Use:     "serve",
		Short:   "Run the tests of clients",
		Long:    perfServeLong,
		Example: perfServeExample,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return wrong(cmd, "%q belongs to the client, which decides what to measure: use it with 'ibverbx perf'", args[0])
			}
			return f.checkLink(cmd, s)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd, s, runServer) },
	}
	f.defineServer(cmd)
	return cmd
}

// oldServer replaces "perf --server", the older name of "perf serve", in a command line.
func oldServer(args []string) []string {
	if len(args) < 2 || args[0] != "perf" || !slices.Contains(args, "--server") {
		return args
	}
	rest := slices.DeleteFunc(slices.Clone(args[1:]), func(a string) bool { return a == "--server" })
	return append([]string{"perf", "serve"}, rest...)
}

// runServer serves clients until ctx is done, or a single client with --once. Tests run one at a time and other
// clients are queued. A rejected client or a failed test does not stop the server.
func runServer(ctx context.Context, s streams, f *perfFlags) error {
	auth, err := f.auth.config(&s, "perf serve")
	if err != nil {
		return err
	}
	messages := &messageLog{s: s}
	messages.watch(&auth)
	listen := withPort(cmp.Or(f.listen, ":"+defaultPort), defaultPort)
	l, err := bootstrap.Listen(ctx, listen, auth)
	if err != nil {
		return explainListen(listen, f.auth.token, err)
	}
	defer func() { _ = l.Close() }()
	defer f.metrics.listening(l)()
	messages.printf("listening on %v", l.Addr())
	q := newQueue()
	places := make(chan struct{}, maxClients)
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := l.Accept(ctx)
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil // Ctrl-C stops a server normally
		}
		if err != nil {
			return err
		}
		messages.printf("let in %v%s", conn.Peer().Addr, tokenOf(conn.Peer()))
		if f.once {
			err := serveClient(ctx, s, f, conn, q)
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		select {
		case places <- struct{}{}:
		default:
			messages.printf("client %v: told to try again", conn.Peer().Addr)
			_ = conn.CloseWith(fmt.Sprintf("the server has %d clients: try again later", maxClients))
			continue
		}
		clients.Go(func() {
			err := serveClient(ctx, s, f, conn, q)
			switch {
			case ctx.Err() != nil:
			case err != nil:
				messages.printf("client %v: %v", conn.Peer().Addr, err)
			default:
				messages.printf("client %v: done", conn.Peer().Addr)
			}
			<-places
		})
	}
}

// serveClient runs a client's test once it reaches the head of the queue. A client joins the queue when its test
// request arrives, so an idle client cannot delay others.
func serveClient(ctx context.Context, s streams, f *perfFlags, conn *bootstrap.Conn, q *queue) error {
	p := &perfRemote{conn: conn, flags: f, notes: s.err}
	leave := func() {}
	defer func() { leave() }()
	p.begin = func() (err error) {
		leave, err = q.take(ctx, p)
		return err
	}
	return p.takePart(ctx, s)
}

// queue serializes the tests of a server's clients, in the arrival order of their requests.
type queue struct {
	// turn holds a token while a client is served.
	turn chan struct{}
	// length counts the served and queued clients.
	length atomic.Int32
}

func newQueue() *queue { return &queue{turn: make(chan struct{}, 1)} }

// take blocks until the client's test may run. leave removes the client from the queue. A queued client is sent the number
// of clients ahead of it. After an error the client is not in the queue.
func (q *queue) take(ctx context.Context, p *perfRemote) (leave func(), err error) {
	ahead := int(q.length.Add(1)) - 1
	select {
	case q.turn <- struct{}{}:
	default:
		if err = measure.SendWaiting(ctx, p, max(ahead, 1)); err != nil {
			break
		}
		select {
		case q.turn <- struct{}{}:
		case <-ctx.Done():
			err = ctx.Err()
		case <-p.conn.Done():
			err = p.conn.Err()
		}
	}
	if err != nil {
		q.length.Add(-1)
		return func() {}, err
	}
	return func() { <-q.turn; q.length.Add(-1) }, nil
}

// tokenOf names the client's token for log lines. It returns "" without --token-dir.
func tokenOf(p bootstrap.Peer) string {
	if p.Token == "" {
		return ""
	}
	return fmt.Sprintf(" with token %q", p.Token)
}
