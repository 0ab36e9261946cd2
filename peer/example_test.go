package peer_test

import (
	"context"
	"fmt"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// Two programs, one on each host. The listener exports a megabyte, the dialer fills it, and the listener is
// notified. Here both run in one process. Without NICs in Config, each side opens a software NIC on the
// connection's local address.
func Example() {
	addr := make(chan string)
	done := make(chan struct{})
	go func() {
		defer close(done)
		receive(context.Background(), addr)
	}()
	send(context.Background(), <-addr)
	<-done
	// Output:
	// notified of 1048576 bytes, the first is 'a'
}

// receive is the program on one host. With a fixed port, peer.Accept(ctx, ":18515", cfg) does
// the same in one call.
func receive(ctx context.Context, addr chan<- string) {
	l, err := peer.Listen(ctx, "127.0.0.1:0", peer.Config{
		Auth:    bootstrap.Config{Token: []byte("or from a file: TokenFile")},
		Regions: []peer.RegionConfig{{Name: "inbox", Size: 1 << 20}},
	})
	check(err)
	defer l.Close()
	addr <- l.Addr().String()
	s, err := l.Accept(ctx)
	check(err)
	defer s.Close()
	_, err = s.QP.PostRecv([]ibverbx.RecvWR{{WRID: 1}})
	check(err)
	wc := wait(ctx, s)
	fmt.Printf("notified of %d bytes, the first is %q\n", wc.ByteLen, s.Local("inbox").Bytes()[0])
	check(s.WaitDone(ctx))
}

// send is the program on the other host.
func send(ctx context.Context, addr string) {
	s, err := peer.Dial(ctx, addr, peer.Config{
		Auth:    bootstrap.Config{Token: []byte("or from a file: TokenFile")},
		Regions: []peer.RegionConfig{{Name: "outbox", Size: 1 << 20}},
	})
	check(err)
	defer s.Close()
	s.Local("outbox").Bytes()[0] = 'a'
	wr := ibverbx.SendWR{WRID: 2, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: s.Remote("inbox")}
	wr.SetSGE(s.Local("outbox").SGE(0, 1<<20))
	_, err = s.QP.PostSend([]ibverbx.SendWR{wr})
	check(err)
	wait(ctx, s)
	check(s.WaitDone(ctx)) // wait until both sides are done, then close
}

// wait returns the next completion.
func wait(ctx context.Context, s *peer.Session) ibverbx.WC {
	wcs := make([]ibverbx.WC, 1)
	_, err := s.CQ.Wait(ctx, wcs)
	check(err)
	check(wcs[0].Err())
	return wcs[0]
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
