// Command receive exposes memory to one peer, waits until the peer has filled it, and prints the
// length and the SHA-256 of the received data. Command send, next to it, is the peer.
//
//	go run ./cmd/ibverbx token token      # copy it to the other host
//	go run ./examples/two-hosts/receive -token-file token
package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/peer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "receive:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	listen := flag.String("listen", ":18510", "`address` to wait at")
	token := flag.String("token-file", "token", "`file` with the secret that both sides share")
	size := flag.Int("size", 64<<20, "`bytes` to expose")
	flag.Parse()

	// Without NICs in its Config a side opens a software NIC on the address that leads to the
	// peer. peer.OpenDevices opens real ones.
	l, err := peer.Listen(ctx, *listen, peer.Config{
		Auth:    bootstrap.Config{TokenFile: *token},
		Regions: []peer.RegionConfig{{Name: "inbox", Size: *size}},
	})
	if err != nil {
		return err
	}
	fmt.Println("waiting at", l.Addr())
	s, err := l.Accept(ctx)
	if closed := l.Close(); err != nil {
		return err
	} else if closed != nil {
		return closed
	}
	defer func() {
		if closed := s.Close(); err == nil {
			err = closed
		}
	}()

	// A receive without a buffer waits for the notification of a WRITE_WITH_IMM.
	if _, err := s.QP.PostRecv([]ibverbx.RecvWR{{WRID: 1}}); err != nil {
		return err
	}
	done := make([]ibverbx.WC, 1)
	if _, err := s.CQ.Wait(ctx, done); err != nil {
		return err
	}
	if err := done[0].Err(); err != nil {
		return err
	}
	data := s.Local("inbox").Bytes()[:done[0].ByteLen]
	fmt.Printf("received %d bytes from %v, SHA-256 %x\n", len(data), s.Conn.Peer().Addr, sha256.Sum256(data))
	return s.WaitDone(ctx) // both sides are done: now either may close
}
