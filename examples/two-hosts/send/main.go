// Command send writes a file into the memory that command receive exposes, over all lanes, and
// notifies the receiver when every byte is in place.
//
//	go run ./examples/two-hosts/send -token-file token HOST:18510 FILE
package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"syscall"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/peer"
	"ibverbx/verbs"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "send:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	token := flag.String("token-file", "token", "`file` with the secret that both sides share")
	flag.Parse()
	if flag.NArg() != 2 {
		return fmt.Errorf("got %d arguments, want HOST:PORT and FILE", flag.NArg())
	}
	data, err := os.ReadFile(flag.Arg(1))
	if err != nil {
		return err
	}
	if len(data) == 0 || len(data) > math.MaxUint32 {
		return fmt.Errorf("%s has %d bytes: one request carries 1 byte to 4 GiB - 1", flag.Arg(1), len(data))
	}
	s, err := peer.Dial(ctx, flag.Arg(0), peer.Config{
		Auth:    bootstrap.Config{TokenFile: *token},
		Regions: []peer.RegionConfig{{Name: "outbox", Size: len(data)}},
	})
	if err != nil {
		return err
	}
	defer func() {
		if closed := s.Close(); err == nil {
			err = closed
		}
	}()

	inbox, outbox := s.Remote("inbox"), s.Local("outbox")
	if inbox == nil || inbox.Length < uint64(len(data)) {
		return fmt.Errorf("the receiver does not expose an inbox of %d bytes: start it with a larger -size", len(data))
	}
	copy(outbox.Bytes(), data)
	wr := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: inbox}
	wr.SetSGE(outbox.SGE(0, uint32(len(data))))
	if _, err := s.QP.PostSend([]ibverbx.SendWR{wr}); err != nil {
		return err
	}
	done := make([]ibverbx.WC, 1)
	if _, err := s.CQ.Wait(ctx, done); err != nil {
		return err
	}
	if err := done[0].Err(); err != nil {
		return err
	}
	fmt.Printf("sent %d bytes over %d lanes, SHA-256 %x\n", len(data), s.Agreed.Lanes, sha256.Sum256(data))
	return s.WaitDone(ctx) // both sides are done: now either may close
}
