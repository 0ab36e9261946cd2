// Command failover moves data over two rails of software NICs, loses one of them halfway, and recovers it.
// The program does not handle the loss: it only gives both ends a control channel (Config.Control) and polls.
// The VirtualQP retransmits the lost rail's requests on the other one. Each request completes once and in
// order.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

const (
	size     = 64 << 10 // bytes in a message
	messages = 512      // each has its own offset, so that all can be compared
)

func main() {
	if err := run(os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "failover:", err)
		os.Exit(1)
	}
}

// host is one end: two NICs, a VirtualQP over both, and memory registered with both.
type host struct {
	nics   [2]*softnic.NIC
	cq     *ibverbx.VirtualCQ
	qp     *ibverbx.VirtualQP
	mem    *verbs.Memory
	region *ibverbx.Region
	done   int // number of completed requests
}

func run(w io.Writer) error {
	var links [2]*softnic.MemoryLink // a rail is a link with one NIC of each host
	for i := range links {
		links[i] = softnic.NewMemoryLink(nil)
	}
	toB, toA := ibverbx.ControlPair() // between hosts this could be a TCP connection
	a, b := newHost(links, toB), newHost(links, toA)
	defer a.close()
	defer b.close()
	cardA, cardB := must(a.qp.Card()), must(b.qp.Card())
	if err := errors.Join(a.qp.Connect(cardB), b.qp.Connect(cardA)); err != nil {
		return err
	}
	for i := range a.mem.Bytes() {
		a.mem.Bytes()[i] = byte(i % 251)
	}
	posted := 0
	for limit := time.Now().Add(4 * time.Second); ; {
		switch posted { // rail 1 is down for the second quarter of the messages
		case messages / 4:
			fmt.Fprintln(w, "rail 1 loses its ports")
			setPorts(a, b, false)
		case messages / 2:
			fmt.Fprintln(w, "rail 1 gets its ports back")
			setPorts(a, b, true)
		}
		if posted < messages {
			if err := a.write(posted, b.region.Remote()); err != nil {
				return err
			}
			posted++
		}
		// Both ends must poll, even the one that only exports its memory.
		if err := errors.Join(a.poll(w, "a"), b.poll(io.Discard, "b")); err != nil {
			return err
		}
		if a.done == messages && a.whole() && b.whole() {
			break
		}
		if time.Now().After(limit) {
			return fmt.Errorf("%d of %d messages are complete after 4 s, want all, and all lanes up", a.done, messages)
		}
	}
	if !bytes.Equal(a.mem.Bytes(), b.mem.Bytes()) {
		return errors.New("the bytes at b differ from those at a")
	}
	repeated := uint64(0)
	for _, lane := range a.qp.Stats().Lanes {
		repeated += lane.Replayed
	}
	fmt.Fprintf(w, "%d messages are complete, every byte is right, %d requests were repeated on the other rail\n", a.done, repeated)
	return nil
}

// write posts message i, to the same offset at the other end.
func (h *host) write(i int, remote *ibverbx.RemoteRegion) error {
	wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote, RemoteOffset: uint64(i * size)}
	wr.SetSGE(h.region.SGE(uint64(i*size), size))
	_, err := h.qp.PostSend([]ibverbx.SendWR{wr})
	return err
}

// poll checks that completions are in order, and prints rail events.
func (h *host) poll(w io.Writer, name string) error {
	var wcs [16]ibverbx.WC
	n, err := h.cq.Poll(wcs[:])
	for i := range wcs[:n] {
		err = errors.Join(err, wcs[i].Err())
		if wcs[i].WRID != uint64(h.done) {
			err = errors.Join(err, fmt.Errorf("message %d completed, want %d", wcs[i].WRID, h.done))
		}
		h.done++
	}
	var events [16]ibverbx.Event
	for _, e := range events[:h.cq.Events(events[:])] {
		switch e.Kind {
		case ibverbx.EventRailDown, ibverbx.EventRailUp:
			fmt.Fprintf(w, "%s: %s: rail %d\n", name, e.Kind, e.Rail)
		case ibverbx.EventRecovered:
			fmt.Fprintf(w, "%s: %s: all lanes are in service\n", name, e.Kind)
		default: // single lanes
		}
	}
	return err
}

// whole reports whether all lanes are in service and rail 1 was rebuilt.
func (h *host) whole() bool {
	for _, lane := range h.qp.Stats().Lanes {
		if lane.State != "up" || (lane.Rail == 1 && lane.Generation == 0) {
			return false
		}
	}
	return true
}

// setPorts sets the ports at both ends of rail 1 down or up, like a failing switch.
func setPorts(a, b *host, up bool) {
	a.nics[1].SetPort(up)
	b.nics[1].SetPort(up)
}

// newHost creates everything up to an unconnected VirtualQP.
func newHost(links [2]*softnic.MemoryLink, control ibverbx.Control) *host {
	h := &host{}
	var rails []ibverbx.RailConfig
	for i, link := range links {
		h.nics[i] = must(softnic.New(link, softnic.Config{}))
		rails = append(rails, ibverbx.RailConfig{Context: must(h.nics[i].Open())})
	}
	all := must(ibverbx.NewRails(rails...))
	h.cq = must(all.NewCQ(ibverbx.CQConfig{}))
	// NICs on a memory link copy on the caller's core, so by default the VirtualQP would not fragment
	// messages of this size. Here every message uses all lanes, as on real NICs.
	h.qp = must(h.cq.NewQP(ibverbx.Config{Lanes: 4, FragmentSize: size / 4, SendDepth: messages, Control: control}))
	h.mem = must(verbs.AllocMemory(messages*size, nil))
	h.region = must(all.Register(h.mem, verbs.AccessAll))
	return h
}

// close closes the NICs and all objects on them.
func (h *host) close() { _ = errors.Join(h.nics[0].Close(), h.nics[1].Close(), h.mem.Free()) }

// must is for setup that cannot fail on a software NIC.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
