//go:build unix

package transfer

import (
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// sparse maps memory that uses only the pages touched.
func sparse(t *testing.T, size int) *verbs.Memory {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		t.Skipf("no memory of %d bytes can be mapped: %v", size, err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	m, err := verbs.AdoptMemory(b)
	wantOK(t, "AdoptMemory", err)
	return m
}

// TestFiveGiB uses offsets and lengths that do not fit 32 bits.
func TestFiveGiB(t *testing.T) {
	const size, mark = 5 << 30, 4 << 30
	n := faultNetwork(t, 1, softnic.Impairment{})
	a, b := n.start(t, hostConfig{}), n.start(t, hostConfig{})
	local, err := a.Adopt("", sparse(t, size), SegmentConfig{Local: true})
	wantOK(t, "Adopt", err)
	target, err := b.Adopt("target", sparse(t, size), SegmentConfig{DefaultAccess: Read | Write})
	wantOK(t, "Adopt", err)
	p := a.to(b)
	remote := open2(t, p, "target", Read|Write)
	const off, length = mark - 1<<20, 3 << 20
	fill(local.Bytes()[off:off+length], 10)
	wantOK(t, "Put", p.Batch().Put(remote.At(off), local.Slice(off, length)).Notify(nil).Do(soon(t)))
	wantNote(t, b, "")
	wantSame(t, "bytes around 4 GiB", target.Bytes()[off:off+length], local.Bytes()[off:off+length])
	if target.Bytes()[0] != 0 || target.Bytes()[length] != 0 {
		t.Error("bytes at the beginning were written")
	}
	release := n.hold(a, b, 0) // so that memory stays untouched
	defer release()
	tr := p.Put(soon(t), remote.At(0), local.Slice(0, size))
	if got := tr.Status().Total; got != size {
		t.Errorf("a transfer of %d bytes says that it has %d", int64(size), got)
	}
	tr.Cancel()
	release()
	wantErr(t, "Wait", tr.Wait(soon(t)), ErrCanceled)
	wantOK(t, "Close", local.Close(soon(t)))
	wantOK(t, "Close", target.Close(soon(t)))
}
