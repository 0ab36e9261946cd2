package stream_test

import (
	"net"
	"sync"
	"testing"

	"golang.org/x/net/nettest"

	"ibverbx/stream"
)

// TestConn runs golang.org/x/net's conformance tests for net.Conn.
func TestConn(t *testing.T) {
	onNetworks(t, func(t *testing.T, p *pair) {
		l := p.listen(t, "conn")
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			c1, err = stream.Dialer(p.client)(soon(t), "", p.addr("conn"))
			if err != nil {
				return nil, nil, nil, err
			}
			if c2, err = l.Accept(); err != nil {
				return nil, nil, nil, err
			}
			return c1, c2, func() {
				var both sync.WaitGroup // closing one end takes seconds while the other is not read
				both.Go(func() { _ = c1.Close() })
				both.Go(func() { _ = c2.Close() })
				both.Wait()
			}, nil
		})
	})
}
