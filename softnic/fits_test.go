//go:build linux

package softnic_test

import (
	"errors"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestFits: Fits posts nothing, and refuses exactly the chains of which PostSend would not post all.
func TestFits(t *testing.T) {
	for name, on := range map[string]func(t *testing.T) *rig{
		"memory": func(t *testing.T) *rig { return newRig(t, softnic.NewMemoryLink(nil)) },
		"udp":    func(t *testing.T) *rig { return newUDPRig(t, softnic.UDPConfig{}).rig },
		"shm":    func(t *testing.T) *rig { return shmRig(t) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newListRig(t, on(t), verbs.RC)
			list := pinned(t, make([]verbs.SGE, listMost+1))
			ok := verbs.SendWR{Opcode: verbs.OpRDMAWrite, NumSGE: 1, SGE: [verbs.MaxSGE]verbs.SGE{{Addr: r.ra.Addr(), Length: 8, LKey: r.ra.LKey()}}, RemoteAddr: r.rb.Addr(), RKey: r.rb.RKey()}
			listed := verbs.SendWR{Opcode: verbs.OpRDMAWrite, NumSGE: listMost, Listed: 1, SGE: listAddr(list), RemoteAddr: r.rb.Addr(), RKey: r.rb.RKey()}
			long, inline, atomic, opcode := listed, ok, ok, ok
			long.NumSGE++
			inline.Flags, inline.SGE[0].Length = verbs.SendInline, 1025
			atomic.Opcode, atomic.SGE[0].Length = verbs.OpAtomicFetchAndAdd, 4
			opcode.Opcode = 200
			fits := func(wrs ...verbs.SendWR) error {
				return r.qa.(interface{ Fits([]verbs.SendWR) error }).Fits(wrs)
			}
			for i, bad := range []verbs.SendWR{long, inline, atomic, opcode} {
				err := fits(ok, bad)
				if n, want := r.qa.PostSend([]verbs.SendWR{bad}); n != 0 || !errors.Is(err, verbs.ErrInvalid) || !errors.Is(want, verbs.ErrInvalid) {
					t.Errorf("invalid request %d: Fits = %v and PostSend = %d, %v, want ErrInvalid", i, err, n, want)
				}
			}
			if err := fits(ok, listed); err != nil {
				t.Errorf("Fits of valid requests = %v", err)
			}
			full := make([]verbs.SendWR, 33)
			for i := range full {
				full[i] = ok
			}
			full[31].Flags = verbs.SendSignaled
			if err := fits(full...); !errors.Is(err, verbs.ErrQueueFull) {
				t.Errorf("Fits of 33 requests with a queue of 32 = %v, want ErrQueueFull", err)
			}
			if err := fits(full[:32]...); err != nil {
				t.Errorf("Fits of 32 requests with a queue of 32 = %v", err)
			}
			if n, err := r.qa.PostSend(full[:32]); n != 32 || err != nil {
				t.Fatalf("PostSend of 32 requests = %d, %v", n, err)
			}
			if err := fits(ok); !errors.Is(err, verbs.ErrQueueFull) {
				t.Errorf("Fits with a full queue = %v, want ErrQueueFull", err)
			}
			r.ended(t, r.cqa, "the last request")
			if err := fits(full[:32]...); err != nil {
				t.Errorf("Fits after the completion = %v", err)
			}
		})
	}
}
