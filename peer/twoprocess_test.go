package peer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/peer"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// farSideEnv holds the address to dial. If it is set, this test binary is the far side of
// TestTwoProcesses.
const farSideEnv = "IBVERBX_TEST_FAR_SIDE"

// relayPatience is the time limit of the two processes. They need 2 s on an idle machine, and
// 20 s on a busy one with the race detector.
const relayPatience = 3 * time.Minute

// The two processes write to each other in slots. The far side fills a slot with a notified
// write. The near side checks every byte and fills the same slot of the far side.
const (
	relaySlots    = 4
	relaySlotSize = 128 << 10
	relayRounds   = 6 // minimum number of responses per slot and phase
)

// The phases of the exchange. The far side moves from one to the next.
const (
	phaseWhole = iota
	phaseCut   // rail 1 is cut in both directions
	phaseBack
	phaseLast
)

// relayImm is the layout of an immediate.
//
//	31    24 | 23           8 | 7   0
//	  phase  |     round      | slot
type relayImm uint32

func newRelayImm(phase, round, slot int) relayImm {
	return relayImm(phase<<24 | round&0xffff<<8 | slot)
}
func (i relayImm) phase() int { return int(i >> 24) }
func (i relayImm) round() int { return int(i >> 8 & 0xffff) }
func (i relayImm) slot() int  { return int(i & 0xff) }

// fillSlot writes the bytes that a side sends.
func fillSlot(b []byte, side int, i relayImm) {
	seed := side*101 + i.round()*31 + i.slot()*17
	for k := range b {
		b[k] = byte(seed + k*7 + k>>8)
	}
}

// badRails are the rails of a process. Each loses one packet in a hundred.
type badRails struct {
	links []*softnic.UDPLink
	nics  []*softnic.NIC
	peers []netip.Addr
}

// railAddrs are the addresses of a side's rails.
func railAddrs(side int) []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, byte(41 + side)}), netip.AddrFrom4([4]byte{127, 0, 1, byte(41 + side)})}
}

func (r *badRails) open(side int) func() (peer.NICs, error) {
	return func() (n peer.NICs, err error) {
		r.peers = railAddrs(1 - side)
		n.Close = func() (err error) {
			for _, nic := range r.nics {
				err = errors.Join(err, nic.Close())
			}
			return err
		}
		for i, addr := range railAddrs(side) {
			link, err := softnic.NewUDPLink(&softnic.UDPConfig{Seed: uint64(10*side + i + 1), Impairment: softnic.Impairment{Loss: 0.01}})
			if err != nil {
				return n, err
			}
			nic, err := softnic.New(link, softnic.Config{Addr: addr})
			if err != nil {
				return n, err
			}
			r.links, r.nics = append(r.links, link), append(r.nics, nic)
			ctx, err := nic.Open()
			if err != nil {
				return n, err
			}
			n.Rails = append(n.Rails, ibverbx.RailConfig{Context: ctx})
		}
		return n, nil
	}
}

// cut cuts the outgoing direction of rail 1, or restores it.
func (r *badRails) cut(yes bool) {
	for _, to := range r.peers {
		if yes {
			r.links[1].Cut(r.nics[1], to)
		} else {
			r.links[1].Restore(r.nics[1], to)
		}
	}
}

// harm returns the numbers of packets that a side's rails have lost and that the cut dropped.
func (r *badRails) harm() (lost, cut uint64) {
	for i, link := range r.links {
		for _, to := range r.peers {
			s := link.FaultStats(r.nics[i], to)
			lost, cut = lost+s.Lost, cut+s.Cut
		}
	}
	return lost, cut
}

// relay is one side of the exchange.
type relay struct {
	s       *peer.Session
	side    int
	want    []byte
	sending [relaySlots]bool // the last write of the slot has not completed
}

func newRelay(s *peer.Session, side int) (*relay, error) {
	r := &relay{s: s, side: side, want: make([]byte, relaySlotSize)}
	for i := range 2 * relaySlots {
		if _, err := s.QP.PostRecv([]ibverbx.RecvWR{{WRID: uint64(i)}}); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// send fills a slot of the peer.
func (r *relay) send(i relayImm) error {
	off := i.slot() * relaySlotSize
	fillSlot(r.s.Local("out").Bytes()[off:][:relaySlotSize], r.side, i)
	wr := ibverbx.SendWR{
		WRID: uint64(i.slot()), Opcode: verbs.OpRDMAWriteWithImm, Imm: uint32(i), Flags: verbs.SendSignaled,
		Remote: r.s.Remote("in"), RemoteOffset: uint64(off),
	}
	wr.SetSGE(r.s.Local("out").SGE(uint64(off), relaySlotSize))
	r.sending[i.slot()] = true
	_, err := r.s.QP.PostSend([]ibverbx.SendWR{wr})
	return err
}

// next waits for completions. It checks every byte of the peer's writes and passes their
// immediates to took.
func (r *relay) next(ctx context.Context, took func(relayImm) error) error {
	var wcs [8]ibverbx.WC
	n, err := r.s.CQ.Wait(ctx, wcs[:])
	if err != nil {
		return fmt.Errorf("wait for completions: %w; the lanes are %+v", err, r.s.QP.Stats().Lanes)
	}
	for k := range wcs[:n] {
		wc := &wcs[k]
		if err := wc.Err(); err != nil {
			return err
		}
		if wc.Flags&ibverbx.WCHasImm == 0 {
			r.sending[wc.WRID] = false
			continue
		}
		i := relayImm(wc.Imm)
		fillSlot(r.want, 1-r.side, i)
		if got := r.s.Local("in").Bytes()[i.slot()*relaySlotSize:][:relaySlotSize]; !bytes.Equal(got, r.want) {
			return fmt.Errorf("slot %d, round %d, phase %d: the bytes are not those that were sent", i.slot(), i.round(), i.phase())
		}
		if _, err := r.s.QP.PostRecv([]ibverbx.RecvWR{{WRID: wc.WRID}}); err != nil {
			return err
		}
		if err := took(i); err != nil {
			return err
		}
	}
	return nil
}

// relayConfig is the Config of both sides.
func relayConfig(rails *badRails, side int) peer.Config {
	cfg := tokenConfig(rails.open(side))
	cfg.Regions = []peer.RegionConfig{{Name: "in", Size: relaySlots * relaySlotSize}, {Name: "out", Size: relaySlots * relaySlotSize}}
	return cfg
}

// TestTwoProcesses connects two processes with two rails each. Both networks lose one packet in
// a hundred, and both sides lose the second rail in the middle and get it back. Every byte
// arrives, and the lanes of that rail are rebuilt. The other process is this test binary.
func TestTwoProcesses(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), relayPatience)
	defer cancel()
	var rails badRails
	listener, err := peer.Listen(ctx, "127.0.0.1:0", relayConfig(&rails, 0))
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	defer func() { _ = listener.Close() }()
	far := exec.CommandContext(ctx, os.Args[0])
	far.Env = append(os.Environ(), farSideEnv+"="+listener.Addr().String())
	var said bytes.Buffer
	far.Stdout, far.Stderr = &said, &said
	if err := far.Start(); err != nil {
		t.Fatalf("Start: got %v, want no error", err)
	}
	s, err := listener.Accept(ctx)
	if err != nil {
		cancel()
		_ = far.Wait()
		t.Fatalf("Accept: got %v, want no error; the far side says %q", err, said.String())
	}
	err = nearSide(ctx, s, &rails)
	if err != nil {
		cancel()
	}
	if farErr := far.Wait(); err != nil || farErr != nil {
		t.Errorf("the exchange ended in %v here and %v on the far side, which printed %q; want no errors", err, farErr, said.String())
	}
	// The cut here may not have dropped any packet: if the control channel reported the dead lanes before the
	// first byte of the phase arrived, this side did not use them. The far side's cut drops some.
	if lost, _ := rails.harm(); lost == 0 {
		t.Error("no packet was lost, want some")
	}
	if err := s.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
}

// nearSide responds until the far side finishes the exchange.
func nearSide(ctx context.Context, s *peer.Session, rails *badRails) error {
	r, err := newRelay(s, 0)
	if err != nil {
		return err
	}
	var owed [relaySlots]bool
	var imms [relaySlots]relayImm
	took := func(i relayImm) error {
		if i.slot() >= relaySlots || i.phase() > phaseLast {
			return fmt.Errorf("immediate %#x: want a slot below %d and a phase up to %d", uint32(i), relaySlots, phaseLast)
		}
		owed[i.slot()], imms[i.slot()] = true, i
		switch i.phase() {
		case phaseCut:
			rails.cut(true)
		case phaseBack, phaseLast:
			rails.cut(false)
		}
		return nil
	}
	for last := 0; last < relaySlots || r.sending != [relaySlots]bool{}; {
		if err := r.next(ctx, took); err != nil {
			return err
		}
		for slot := range owed {
			if !owed[slot] || r.sending[slot] {
				continue
			}
			owed[slot] = false
			if imms[slot].phase() == phaseLast {
				last++
			}
			if err := r.send(imms[slot]); err != nil {
				return err
			}
		}
	}
	if r.deaths() == 0 {
		return errors.New("no lane of rail 1 died here, want those that died on the far side")
	}
	return s.WaitDone(ctx)
}

// farSide is the other process.
func farSide(addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), relayPatience)
	defer cancel()
	var rails badRails
	s, err := peer.Dial(ctx, addr, relayConfig(&rails, 1))
	if err != nil {
		return err
	}
	if err := lead(ctx, s, &rails); err != nil {
		return errors.Join(err, s.Close())
	}
	lost, cut := rails.harm()
	if lost == 0 || cut == 0 {
		err = fmt.Errorf("%d packets were lost and %d cut, want some of both", lost, cut)
	}
	return errors.Join(err, s.Close())
}

// lead runs through the phases.
func lead(ctx context.Context, s *peer.Session, rails *badRails) error {
	r, err := newRelay(s, 1)
	if err != nil {
		return err
	}
	phase, answers, rounds, ended := phaseWhole, 0, [relaySlots]int{}, 0
	var before uint64              // deaths of rail 1's lanes before this phase, for example on a stalled machine
	var out, said [relaySlots]bool // out: unanswered; said: the last write was sent
	took := func(i relayImm) error {
		if i.slot() >= relaySlots || i.round() != rounds[i.slot()] {
			return fmt.Errorf("an answer to slot %d, round %d, want one to the outstanding round", i.slot(), i.round())
		}
		out[i.slot()] = false
		answers++
		if i.phase() == phaseLast {
			ended++
		}
		return nil
	}
	for ended < relaySlots || r.sending != [relaySlots]bool{} {
		if phase != phaseLast && answers >= relayRounds*relaySlots && r.passed(phase, before) {
			phase, answers, before = phase+1, 0, r.deaths()
			rails.cut(phase == phaseCut)
		}
		for slot := range out {
			if out[slot] || r.sending[slot] || said[slot] {
				continue
			}
			out[slot], said[slot] = true, phase == phaseLast
			rounds[slot] = (rounds[slot] + 1) & 0xffff
			if err := r.send(newRelayImm(phase, rounds[slot], slot)); err != nil {
				return err
			}
		}
		if err := r.next(ctx, took); err != nil {
			return err
		}
	}
	return s.WaitDone(ctx)
}

// passed reports whether a phase has reached its goal. before is the number of lane deaths on rail 1 when the
// phase began.
func (r *relay) passed(phase int, before uint64) bool {
	if phase == phaseCut {
		return r.deaths() > before
	}
	for _, lane := range r.s.QP.Stats().Lanes {
		if lane.State != "up" {
			return false
		}
	}
	return true
}

// deaths returns the number of lane deaths on rail 1.
func (r *relay) deaths() (n uint64) {
	for _, lane := range r.s.QP.Stats().Lanes {
		if lane.Rail == 1 {
			n += lane.Deaths
		}
	}
	return n
}
