// Command pingpong sends a message back and forth between two RDMA NICs in one process, without hardware:
// both are software NICs on a memory link. It shows how two goroutines wait for completions without spinning.
// Each has a CQ with a Waker, and verbs.Wait sleeps until a completion arrives.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

func main() {
	if err := run(context.Background(), os.Stdout, 3); err != nil {
		fmt.Fprintln(os.Stderr, "pingpong:", err)
		os.Exit(1)
	}
}

// run runs the given number of rounds between two players and prints them to w.
func run(ctx context.Context, w io.Writer, rounds int) error {
	link := softnic.NewMemoryLink(nil)
	ping, pong := newPlayer(link, "soft0"), newPlayer(link, "soft1")
	defer ping.close()
	defer pong.close()
	// Between hosts the endpoints would be exchanged over TCP.
	pingEnd, pongEnd := must(ping.qp.Endpoint()), must(pong.qp.Endpoint())
	if err := errors.Join(ping.qp.Connect(pongEnd), pong.qp.Connect(pingEnd), ping.postRecv(), pong.postRecv()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, 2)
	go func() { errs <- ping.play(ctx, w, "ping", rounds, true) }()
	go func() { errs <- pong.play(ctx, w, "pong", rounds, false) }()
	err := <-errs
	if err != nil {
		cancel() // the other player would wait forever
	}
	return errors.Join(err, <-errs)
}

// player is one end: a NIC, a QP, a CQ with a Waker, and registered memory.
type player struct {
	nic   *softnic.NIC
	waker *verbs.Waker
	cq    verbs.CQ
	qp    verbs.QP
	mem   *verbs.Memory // the first half is sent, the second received
	mr    verbs.MR
}

const half = 64

// newPlayer creates everything up to an unconnected QP.
func newPlayer(link *softnic.MemoryLink, name string) *player {
	p := &player{waker: verbs.NewWaker()}
	p.nic = must(softnic.New(link, softnic.Config{Name: name}))
	ctx := must(p.nic.Open())
	pd := must(ctx.AllocPD())
	p.mem = must(verbs.AllocMemory(2*half, nil))
	p.mr = must(pd.RegisterMemory(p.mem, verbs.AccessLocalWrite))
	p.cq = must(ctx.CreateCQ(verbs.CQConfig{Depth: 16, Waker: p.waker}))
	p.qp = must(pd.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: p.cq, RecvCQ: p.cq, MaxSendWR: 8, MaxRecvWR: 8, MaxInline: half}))
	return p
}

// close closes the NIC with all its objects, and then frees the memory.
func (p *player) close() { _ = errors.Join(p.nic.Close(), p.mem.Free()) }

// must is for setup that cannot fail on a software NIC.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// play sends and receives in turns. The serving player starts.
func (p *player) play(ctx context.Context, w io.Writer, word string, rounds int, serves bool) error {
	for i := range 2 * rounds {
		if (i%2 == 0) == serves {
			if err := p.send(fmt.Sprintf("%s %d", word, i/2)); err != nil {
				return err
			}
			continue
		}
		text, err := p.receive(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s got %q\n", p.nic.Name(), text)
	}
	return nil
}

// send posts text inline: the bytes are copied immediately, so the buffer can be reused.
func (p *player) send(text string) error {
	wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled | verbs.SendInline}
	wr.SetSGE(verbs.SGE{Addr: p.mr.Addr(), Length: uint32(copy(p.mem.Bytes()[:half], text))})
	_, err := p.qp.PostSend([]verbs.SendWR{wr})
	return err
}

func (p *player) postRecv() error {
	var wr verbs.RecvWR
	wr.SetSGE(verbs.SGE{Addr: p.mr.Addr() + half, Length: half, LKey: p.mr.LKey()})
	_, err := p.qp.PostRecv([]verbs.RecvWR{wr})
	return err
}

// receive sleeps until a message arrives. Completions of this player's sends also arrive here
// and are checked for errors.
func (p *player) receive(ctx context.Context) (string, error) {
	for {
		var wcs [1]verbs.WC
		if _, err := verbs.Wait(ctx, p.cq, p.waker, wcs[:]); err != nil {
			return "", err
		}
		if err := wcs[0].Err(); err != nil {
			return "", err
		}
		if wcs[0].Opcode == verbs.WCRecv {
			text := string(p.mem.Bytes()[half : half+wcs[0].ByteLen])
			return text, p.postRecv() // only now may the next message overwrite it
		}
	}
}
