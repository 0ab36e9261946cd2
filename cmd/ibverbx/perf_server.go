package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"

	"ibverbx/bootstrap"
)

// runServer serves one client after the other until ctx ends, or one with --once. It goes on after
// a client that was turned away or whose test failed.
func runServer(ctx context.Context, s streams, f *perfFlags) error {
	if _, err := f.cfg.Complete(); err != nil {
		return err // otherwise every client would get this error
	}
	auth, err := f.auth.config("--server")
	if err != nil {
		return err
	}
	if _, err := f.remote(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		return err
	}
	tell := &teller{s: s}
	auth.Rejected = func(from net.Addr, err error) { tell.say("turned away %v: %v", from, err) }
	auth.Reloaded = func(err error) {
		if err != nil {
			tell.say("a changed file is not used: %v", err)
			return
		}
		tell.say("using the changed files of --token-file, --token-dir, --ca, --cert or --key")
	}
	l, err := bootstrap.Listen(ctx, withPort(cmp.Or(f.listen, ":"+defaultPort)), auth)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	tell.say("listening on %v", l.Addr())
	for {
		conn, err := l.Accept(ctx)
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil // Ctrl-C is the normal end of a server
		}
		if err != nil {
			return err
		}
		from := conn.Peer().Addr
		tell.say("let in %v%s", from, tokenOf(conn.Peer()))
		err = takePart(ctx, s, f, conn, false)
		switch {
		case ctx.Err() != nil:
			return nil
		case f.once:
			return err
		case err != nil:
			tell.say("client %v: %v", from, err)
		default:
			tell.say("client %v: done", from)
		}
	}
}

// tokenOf tells which token a client has, if there are several.
func tokenOf(p bootstrap.Peer) string {
	if p.Token == "" {
		return ""
	}
	return fmt.Sprintf(" with token %q", p.Token)
}

// teller writes lines to stderr for several goroutines.
type teller struct {
	mu sync.Mutex
	s  streams
}

func (t *teller) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Fprintf(t.s.err, "ibverbx: "+format+"\n", args...)
}
