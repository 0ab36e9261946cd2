package reliable_test

import (
	"errors"
	"strings"
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// TestConformanceDevice runs the RC part of the suite on lossy links with memory that only a device can
// access: the NIC repairs losses there.
func TestConformanceDevice(t *testing.T) {
	pickVariant(t, 5)
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		link, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1, Impairment: softnic.Impairment{Loss: 0.01}})
		must(tb, err)
		p := open(tb, link, reliable.Config{})
		p.Lossy, p.Device, p.Alloc = true, true, new(verbstest.MemoryDevice).Alternate
		return p
	})
}

// TestDeviceInline: INLINE bytes on a device are refused, whatever their key, until their memory is
// deregistered.
func TestDeviceInline(t *testing.T) {
	link := softnic.NewMemoryLink(nil)
	a, b := newSide(t, link, reliable.Config{}, 4096), newSide(t, link, reliable.Config{}, 4096)
	connect(t, a, b)
	mem, err := new(verbstest.MemoryDevice).Alloc(100)
	must(t, err)
	mr, err := a.pd.RegisterMemory(mem, verbs.AccessAll)
	must(t, err)
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendInline}
	wr.SetSGE(verbs.SGE{Addr: mem.Addr() + 50, Length: 8})
	_, err = a.qp.PostSend([]verbs.SendWR{wr})
	if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "memory of fake:0; send them without INLINE") {
		t.Errorf("PostSend = %v, want ErrInvalid", err)
	}
	must(t, mr.Close())
	must(t, mem.Free())
}
