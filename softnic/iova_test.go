package softnic_test

import (
	"errors"
	"math"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// registerAt registers 64 bytes at another address.
func registerAt(t *testing.T, pd verbs.PD, iova uint64) (*verbs.Memory, verbs.MR) {
	t.Helper()
	m, err := verbs.AllocMemory(64, nil)
	must(t, err)
	t.Cleanup(func() { must(t, m.Free()) })
	mr, err := pd.(interface {
		RegisterMemoryAt(m *verbs.Memory, iova uint64, access verbs.Access) (verbs.MR, error)
	}).RegisterMemoryAt(m, iova, verbs.AccessAll)
	must(t, err)
	t.Cleanup(func() { must(t, mr.Close()) })
	return m, mr
}

// TestRegisterMemoryAt: work requests on both sides address a region by its registered addresses,
// including the lowest and the highest, and not by its real ones.
func TestRegisterMemoryAt(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	const n = 64
	for _, iova := range []uint64{0, 0x1000, math.MaxUint64 - n + 1} {
		from, src := registerAt(t, r.pa, iova)
		to, dst := registerAt(t, r.pb, iova)
		if src.Addr() != iova || dst.Len() != n {
			t.Errorf("Addr = %#x, Len = %d, want %#x and %d", src.Addr(), dst.Len(), iova, n)
		}
		for i := range from.Bytes() {
			from.Bytes()[i] = byte(i) ^ 0x5a
		}
		cq := newCQ(t, r.ca, 8)
		qa, _ := r.pair(verbs.RC, cq, newCQ(t, r.cb, 8), 8)
		postWrites(t, qa, src, dst, 1)
		if wcs := poll(t, cq); len(wcs) != 1 || wcs[0].Status != verbs.StatusSuccess {
			t.Fatalf("iova %#x: completions %v, want a success", iova, wcs)
		}
		if string(to.Bytes()[:8]) != string(from.Bytes()[:8]) {
			t.Errorf("iova %#x: the bytes did not arrive", iova)
		}
		wr := writeWR(src, dst, 8)
		wr.RemoteAddr = to.Addr()
		if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
			t.Fatal(err)
		}
		if wcs := poll(t, cq); len(wcs) != 1 || wcs[0].Status != verbs.StatusRemAccessErr {
			t.Errorf("iova %#x: a WRITE to the memory's own address ended with %v, want %v", iova, wcs, verbs.StatusRemAccessErr)
		}
	}
}

// TestRegisterMemoryAtTheEnd: a region that would exceed the address space is refused, and its memory
// can be freed.
func TestRegisterMemoryAtTheEnd(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	m, err := verbs.AllocMemory(64, nil)
	must(t, err)
	_, err = r.pa.(interface {
		RegisterMemoryAt(m *verbs.Memory, iova uint64, access verbs.Access) (verbs.MR, error)
	}).RegisterMemoryAt(m, math.MaxUint64-62, verbs.AccessAll)
	if !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("RegisterMemoryAt beyond the last address = %v, want ErrInvalid", err)
	}
	must(t, m.Free())
}

// TestAtomicMisaligned: an atomic needs an aligned address and aligned memory behind it. The processor may not support other accesses,
// and crash the process.
func TestAtomicMisaligned(t *testing.T) {
	segmented, err := softnic.NewFaultLink(nil)
	must(t, err)
	for name, link := range map[string]softnic.Link{"direct": softnic.NewMemoryLink(nil), "packets": segmented} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, link)
			_, src := memory(t, r.pa, 64)
			mem, dst := registerAt(t, r.pb, 4)
			cq := newCQ(t, r.ca, 8)
			for _, op := range []verbs.Opcode{verbs.OpAtomicFetchAndAdd, verbs.OpAtomicCmpAndSwp} {
				for _, addr := range []uint64{8, 12} { // byte 4 and byte 8 of the memory
					qa, _ := r.pair(verbs.RC, cq, newCQ(t, r.cb, 8), 8)
					wr := writeWR(src, dst, 8)
					wr.Opcode, wr.RemoteAddr, wr.CompareAdd = op, addr, 1
					if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
						t.Fatal(err)
					}
					if wcs := poll(t, cq); len(wcs) != 1 || wcs[0].Status != verbs.StatusRemInvReqErr {
						t.Errorf("%v at %d: completions %v, want one with %v", op, addr, wcs, verbs.StatusRemInvReqErr)
					}
				}
			}
			if string(mem.Bytes()) != string(make([]byte, 64)) {
				t.Error("a refused atomic has changed the memory")
			}
		})
	}
}

// TestReregisterMemoryAt: a region that replaces another inherits its key, but not its memory, rights
// and PD. A refusal leaves the old one unchanged.
func TestReregisterMemoryAt(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	_, src := memory(t, r.pa, 64)
	_, old := registerAt(t, r.pb, 0x1000)
	cq := newCQ(t, r.ca, 8)
	write := func(want verbs.Status) {
		t.Helper()
		qa, _ := r.pair(verbs.RC, cq, newCQ(t, r.cb, 8), 8)
		if _, err := qa.PostSend([]verbs.SendWR{writeWR(src, old, 8)}); err != nil {
			t.Fatal(err)
		}
		if wcs := poll(t, cq); len(wcs) != 1 || wcs[0].Status != want {
			t.Fatalf("a WRITE ended with %v, want %v", wcs, want)
		}
	}
	other, err := verbs.AllocMemory(64, nil)
	must(t, err)
	t.Cleanup(func() { must(t, other.Free()) })
	again := func(pd verbs.PD, was verbs.MR, access verbs.Access) (verbs.MR, error) {
		mr, err := pd.(interface {
			ReregisterMemoryAt(old verbs.MR, m *verbs.Memory, iova uint64, access verbs.Access) (verbs.MR, error)
		}).ReregisterMemoryAt(was, other, 0x1000, access)
		if err == nil {
			t.Cleanup(func() { must(t, mr.Close()) })
		}
		return mr, err
	}
	if _, err := again(r.pb, old, verbs.AccessRemoteWrite); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("remote write without local write: %v, want %v", err, verbs.ErrInvalid)
	}
	if _, err := again(r.pa, old, verbs.AccessAll); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a region of another NIC: %v, want %v", err, verbs.ErrInvalid)
	}
	write(verbs.StatusSuccess)
	second, err := again(r.pb, old, verbs.AccessLocalWrite)
	must(t, err)
	if second.RKey() != old.RKey() {
		t.Errorf("key %#x, want that of the old region, %#x", second.RKey(), old.RKey())
	}
	write(verbs.StatusRemAccessErr)
	must(t, old.Close()) // it is already closed
	third, err := again(r.pb, second, verbs.AccessAll)
	must(t, err)
	write(verbs.StatusSuccess)
	if third.RKey() != old.RKey() {
		t.Errorf("key %#x, want that of the old region, %#x", third.RKey(), old.RKey())
	}
	if _, err := again(r.pb, second, verbs.AccessAll); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a region that is gone: %v, want %v", err, verbs.ErrInvalid)
	}
}
