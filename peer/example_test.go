package peer_test

import (
	"context"
	"fmt"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// Two programs, one on each host: the one that listens lends a megabyte, the one that dials
// fills it, and the first is told. Here both run in one process and share a link; NICs of
// two hosts have a network between them.
func Example() {
	link := softnic.NewMemoryLink(nil)
	listening := make(chan string)
	done := make(chan struct{})
	go func() {
		defer close(done)
		receive(link, listening)
	}()
	send(link, <-listening)
	<-done
	// Output:
	// 8 lanes, scheme tally
	// told of 1048576 bytes, the first is 'a'
}

// receive is the program on one host.
func receive(link *softnic.MemoryLink, listening chan<- string) {
	ctx := context.Background()
	l, err := peer.Listen(ctx, "127.0.0.1:0", peer.Config{
		Door:    bootstrap.Config{Token: []byte("from a file, see TokenFile")},
		Open:    nics(link),
		Regions: []peer.RegionConfig{{Name: "inbox", Size: 1 << 20}},
	})
	check(err)
	defer l.Close()
	listening <- l.Addr().String()
	s, err := l.Accept(ctx)
	check(err)
	defer s.Close()
	_, err = s.QP.PostRecv([]ibverbx.RecvWR{{ID: 1}})
	check(err)
	check(s.Send(ctx, []byte("go")))
	wcs := make([]ibverbx.WC, 1)
	for n := 0; n == 0; {
		n, err = s.CQ.Wait(ctx, wcs)
		check(err)
	}
	fmt.Printf("told of %d bytes, the first is %q\n", wcs[0].ByteLen, s.Local[0].Bytes()[0])
	check(s.Send(ctx, []byte("thanks")))
}

// send is the program on the other.
func send(link *softnic.MemoryLink, addr string) {
	ctx := context.Background()
	s, err := peer.Dial(ctx, addr, peer.Config{
		Door:    bootstrap.Config{Token: []byte("from a file, see TokenFile")},
		Open:    nics(link),
		Regions: []peer.RegionConfig{{Name: "outbox", Size: 1 << 20}},
	})
	check(err)
	defer s.Close()
	fmt.Printf("%d lanes, scheme %s\n", s.Agreed.Lanes, s.Agreed.Scheme)
	s.Local[0].Bytes()[0] = 'a'
	_, err = s.Recv(ctx)
	check(err)
	wr := ibverbx.SendWR{ID: 2, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: s.Region("inbox")}
	wr.SetSGE(s.Local[0].SGE(0, 1<<20))
	_, err = s.QP.PostSend([]ibverbx.SendWR{wr})
	check(err)
	wcs := make([]ibverbx.WC, 1)
	for n := 0; n == 0; {
		n, err = s.CQ.Wait(ctx, wcs)
		check(err)
	}
	check(wcs[0].Err())
	_, err = s.Recv(ctx) // it has what it wanted
	check(err)
}

// nics opens two NICs of a host.
func nics(link *softnic.MemoryLink) func() (peer.NICs, error) {
	return network{link, link}.open(2, softnic.Config{})
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
