package transfers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"time"

	"ibverbx/stream"
)

// echoService is the stream service of every process. It returns the bytes it receives.
const echoService = "echo"

const (
	// streamsPerPeer is the number of streams that a process opens to each other host, one after the other.
	streamsPerPeer = 3
	maxStreamBytes = 1 << 20
	// redialTime is the pause before a failed stream is repeated.
	redialTime = time.Millisecond
)

// listen starts the echo service, which ends with the process.
func (p *process) listen() error {
	l, err := stream.Listen(p.node, echoService)
	if err != nil {
		return err
	}
	context.AfterFunc(p.ctx, func() { _ = l.Close() })
	p.work.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			p.work.Go(func() { p.echo(c) })
		}
	})
	return nil
}

// echo returns the bytes of a stream.
func (p *process) echo(c net.Conn) {
	stop := context.AfterFunc(p.ctx, func() { _ = c.(*stream.Conn).Reset() })
	defer stop()
	if _, err := io.Copy(c, c); err != nil {
		_ = c.(*stream.Conn).Reset() // the client must not see the end of the bytes
	}
	_ = c.Close() // the client reports what is missing
}

// streamTo sends bytes to a host and compares what it returns. A failed stream is repeated.
func (p *process) streamTo(to int) {
	w := p.host.world
	r := rand.New(rand.NewPCG(w.plan.Seed, uint64(1<<32|p.host.index<<16|p.incarnation<<8|to)))
	for range streamsPerPeer {
		sent := make([]byte, 1+r.IntN(maxStreamBytes))
		fill(sent, r.Uint64())
		for {
			err := p.exchange(to, sent)
			if err == nil {
				w.mu.Lock()
				w.sum.Streams++
				w.mu.Unlock()
				break
			}
			if p.ctx.Err() != nil {
				return
			}
			if !w.plan.losesSessions() {
				w.broken("a stream from host %d to host %d failed, and no session can be lost: %w", p.host.index, to, err)
				return
			}
			w.sleep(redialTime)
		}
	}
}

// exchange sends bytes over a new stream and receives them.
func (p *process) exchange(to int, sent []byte) error {
	w := p.host.world
	there, err := p.node.Peer(p.ctx, w.hosts[to].relay.addr())
	if err != nil {
		return err
	}
	c, err := stream.Dial(p.ctx, there, echoService)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(p.ctx, func() { _ = c.Reset() })
	defer stop()
	wrote := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		if err == nil {
			err = c.CloseWrite()
		}
		wrote <- err
	}()
	got, err := io.ReadAll(c)
	if err != nil {
		_ = c.Reset() // ends the Write
	}
	switch {
	case !bytes.HasPrefix(sent, got):
		w.broken("a stream from host %d to host %d returned wrong bytes", p.host.index, to)
	case err == nil && len(got) != len(sent):
		w.broken("a stream from host %d to host %d ended after %d of %d bytes", p.host.index, to, len(got), len(sent))
	}
	return errors.Join(err, <-wrote, c.Close())
}
