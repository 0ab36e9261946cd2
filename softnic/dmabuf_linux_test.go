package softnic_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	enginerig "ibverbx/internal/enginetest"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestDMABufOperations: every operation can access a dma-buf, even at an offset, at the requested iova, and
// after its fd is closed.
func TestDMABufOperations(t *testing.T) {
	r := newRig(t, softnic.NewMemoryLink(nil))
	page := uint64(os.Getpagesize())
	fd, file := enginerig.DMABuf(t, int(3*page))
	offset, length := page+64, page
	buf, err := r.pb.RegisterDMABuf(fd, offset, length, 7*page+64, verbs.AccessAll)
	must(t, err)
	must(t, unix.Close(fd))
	if buf.Addr() != 7*page+64 || buf.Len() != length {
		t.Fatalf("the region is %d bytes at %#x, want %d at %#x", buf.Len(), buf.Addr(), length, 7*page+64)
	}
	file = file[offset : offset+length]
	mem, mr := memory(t, r.pa, int(length))
	qa, qb := r.pair(verbs.RC, newCQ(t, r.ca, 16), newCQ(t, r.cb, 16), 16)
	do := func(wr verbs.SendWR, n uint32) {
		t.Helper()
		wr.Flags, wr.RemoteAddr, wr.RKey = verbs.SendSignaled, buf.Addr()+8, buf.RKey()
		wr.SetSGE(verbs.SGE{Addr: mr.Addr(), Length: n, LKey: mr.LKey()})
		if n, err := qa.PostSend([]verbs.SendWR{wr}); n != 1 || err != nil {
			t.Fatalf("PostSend of %s = %d, %v", wr.Opcode, n, err)
		}
	}
	do(verbs.SendWR{Opcode: verbs.OpRDMAWrite}, 1000)
	if !bytes.Equal(file[8:1008], mem.Bytes()[:1000]) || file[7] != 0 || file[1008] != 0 {
		t.Error("the WRITE is not in the dma-buf, or next to its place")
	}
	copy(file[8:], "device memory")
	do(verbs.SendWR{Opcode: verbs.OpRDMARead}, 13)
	if got := string(mem.Bytes()[:13]); got != "device memory" {
		t.Errorf("READ = %q, want what is in the dma-buf", got)
	}
	file[8] = 5
	clear(file[9:16])
	do(verbs.SendWR{Opcode: verbs.OpAtomicFetchAndAdd, CompareAdd: 37}, 8)
	if file[8] != 42 {
		t.Errorf("the word in the dma-buf is %d, want 42", file[8])
	}
	recv := verbs.RecvWR{}
	recv.SetSGE(verbs.SGE{Addr: buf.Addr() + 100, Length: 50, LKey: buf.LKey()})
	postRecv(t, qb, []verbs.RecvWR{recv})
	copy(mem.Bytes(), "hello")
	do(verbs.SendWR{Opcode: verbs.OpSend}, 5)
	if got := string(file[100:105]); got != "hello" {
		t.Errorf("the SEND put %q into the dma-buf, want hello", got)
	}
	must(t, buf.Close())
	must(t, buf.Close()) // closing twice is harmless
	do(verbs.SendWR{Opcode: verbs.OpRDMAWrite}, 8)
	if qa.State() != verbs.StateErr {
		t.Errorf("the QP is in %s after a WRITE to a closed region, want ERR", qa.State())
	}
}

// TestDMABufRefused: a descriptor that is not a dma-buf, or a range outside it, returns an error and leaks no
// resources.
func TestDMABufRefused(t *testing.T) {
	_, _, pd := plug(t, softnic.NewMemoryLink(nil))
	page := uint64(os.Getpagesize())
	fd, _ := enginerig.DMABuf(t, int(2*page))
	closed, _ := enginerig.DMABuf(t, int(page))
	must(t, unix.Close(closed))
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	defer w.Close()
	readOnly, err := unix.Open("/proc/self/exe", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(readOnly)
	for _, tt := range []struct {
		name                 string
		fd                   int
		offset, length, iova uint64
		access               verbs.Access
	}{
		{"a negative fd", -1, 0, page, 0, verbs.AccessAll},
		{"a closed fd", closed, 0, page, 0, verbs.AccessAll},
		{"a pipe", int(r.Fd()), 0, page, 0, verbs.AccessAll},
		{"no bytes", fd, 0, 0, 0, verbs.AccessAll},
		{"an offset beyond the end", fd, 3 * page, 1, 0, verbs.AccessAll},
		{"a length beyond the end", fd, page, page + 1, 0, verbs.AccessAll},
		{"an offset and a length that wrap", fd, ^uint64(0) - 9, 100, ^uint64(0) - 9, verbs.AccessAll},
		{"an iova that wraps", fd, 0, 2 * page, ^uint64(0) - page + 1, verbs.AccessAll},
		{"an iova with another place in a page", fd, 8, 100, 0, verbs.AccessAll},
		{"unknown access", fd, 0, page, 0, 1 << 30},
		{"remote writes without local ones", fd, 0, page, 0, verbs.AccessRemoteWrite},
		{"writes to a file that is read only", readOnly, 0, page, 0, verbs.AccessAll},
	} {
		mr, err := pd.RegisterDMABuf(tt.fd, tt.offset, tt.length, tt.iova, tt.access)
		if mr != nil || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("RegisterDMABuf of %s = %v, %v, want %v", tt.name, mr, err, verbs.ErrInvalid)
		}
	}
	must(t, pd.Close()) // no region is left
	if _, err := pd.RegisterDMABuf(fd, 0, page, 0, verbs.AccessAll); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("RegisterDMABuf on a closed PD = %v, want %v", err, verbs.ErrClosed)
	}
}

// TestDMABufKeepsPosition: registering a file does not move its file offset.
func TestDMABufKeepsPosition(t *testing.T) {
	_, _, pd := plug(t, softnic.NewMemoryLink(nil))
	fd, _ := enginerig.DMABuf(t, 8192)
	_, err := unix.Seek(fd, 100, io.SeekStart)
	must(t, err)
	mr, err := pd.RegisterDMABuf(fd, 0, 8192, 0, verbs.AccessAll)
	must(t, err)
	must(t, mr.Close())
	if at, err := unix.Seek(fd, 0, io.SeekCurrent); at != 100 || err != nil {
		t.Errorf("the file is at %d, %v, want 100", at, err)
	}
}
