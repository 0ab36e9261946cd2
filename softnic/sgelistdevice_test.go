//go:build linux

package softnic_test

import (
	"bytes"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// TestListedDevice: the elements of a list may be on the host and on a device.
func TestListedDevice(t *testing.T) {
	r := newListRig(t, newRig(t, softnic.NewMemoryLink(nil)), verbs.RC)
	onDevice := (&deviceRig{rig: r.rig}).register(r.pa, new(verbstest.MemoryDevice).Alloc)
	theirs := onDevice.fill(t, 3)
	const n, size = 10, 100
	sges, want := make([]verbs.SGE, n), []byte(nil)
	for i := range sges {
		if sges[i] = onDevice.sge(i*size, size); i%2 == 0 {
			sges[i] = verbs.SGE{Addr: r.ra.Addr() + uint64(i*size), Length: size, LKey: r.ra.LKey()}
			want = append(want, r.ma.Bytes()[i*size:][:size]...)
		} else {
			want = append(want, theirs[i*size:][:size]...)
		}
	}
	list := listAddr(pinned(t, sges))
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		_, err := r.qa.PostSend([]verbs.SendWR{{
			Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: r.rb.Addr(), RKey: r.rb.RKey(), NumSGE: n, Listed: 1, SGE: list,
		}})
		must(t, err)
		if wc := await(t, r.cqa, 1)[0]; wc.Status != verbs.StatusSuccess {
			t.Fatalf("%v = %v, want success", op, wc.Status)
		}
		if op == verbs.OpRDMAWrite && !bytes.Equal(r.mb.Bytes()[:n*size], want) {
			t.Error("the WRITE brings other bytes")
		}
		for i := range n * size { // the data that the READ fetches
			want[i] = ^want[i]
		}
		copy(r.mb.Bytes(), want)
	}
	got := make([]byte, 0, n*size)
	for i := range n {
		if i%2 == 0 {
			got = append(got, r.ma.Bytes()[i*size:][:size]...)
		} else {
			got = append(got, onDevice.read(t, i*size, size)...)
		}
	}
	for i := range want {
		want[i] = ^want[i] // the value when the READ was posted
	}
	if !bytes.Equal(got, want) {
		t.Error("the READ brings other bytes")
	}
}
