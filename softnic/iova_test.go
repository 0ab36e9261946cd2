package softnic_test

import (
	"errors"
	"math"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// registerAt registers n bytes under another address.
func registerAt(t *testing.T, pd verbs.PD, n int, iova uint64) (*verbs.Memory, verbs.MR) {
	t.Helper()
	m, err := verbs.AllocMemory(n, nil)
	must(t, err)
	t.Cleanup(func() { must(t, m.Free()) })
	mr, err := pd.(interface {
		RegisterMemoryAt(m *verbs.Memory, iova uint64, access verbs.Access) (verbs.MR, error)
	}).RegisterMemoryAt(m, iova, verbs.AccessAll)
	must(t, err)
	t.Cleanup(func() { must(t, mr.Close()) })
	return m, mr
}

// TestRegisterMemoryAt: work requests of both sides address a region by the addresses that it was registered under, the lowest
// and the highest too, and not by its own.
func TestRegisterMemoryAt(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	const n = 64
	for _, iova := range []uint64{0, 0x1000, math.MaxUint64 - n + 1} {
		from, src := registerAt(t, r.pa, n, iova)
		to, dst := registerAt(t, r.pb, n, iova)
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

// TestRegisterMemoryAtTheEnd: a region that would go beyond the last address is refused, and its memory can be freed.
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
