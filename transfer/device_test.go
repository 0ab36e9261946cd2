package transfer

import (
	"errors"
	"slices"
	"testing"

	"ibverbx/cuda/cudatest"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// write fills n bytes of a segment at off, wherever its memory is, and returns them.
func (s *Segment) write(t *testing.T, off, n int64, seed uint64) []byte {
	t.Helper()
	b := make([]byte, n)
	fill(b, seed)
	_, err := s.mem.WriteAt(b, off)
	wantOK(t, "WriteAt", err)
	return b
}

// wantBytes compares bytes of a segment at off, wherever its memory is.
func (s *Segment) wantBytes(t *testing.T, what string, off int64, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	_, err := s.mem.ReadAt(got, off)
	wantOK(t, "ReadAt", err)
	wantSame(t, what, got, want)
}

// flip changes a byte of a segment.
func (s *Segment) flip(t *testing.T, at int64) {
	t.Helper()
	var b [1]byte
	_, err := s.mem.ReadAt(b[:], at)
	wantOK(t, "ReadAt", err)
	b[0] ^= 1
	_, err = s.mem.WriteAt(b[:], at)
	wantOK(t, "WriteAt", err)
}

// onDevices runs a test with device memory on one side and on both, on every link.
func onDevices(t *testing.T, d device, size int64, f func(t *testing.T, p *pair, here, there bool)) {
	onLinks(t, func(t *testing.T, n *network) {
		t.Run("from a device", func(t *testing.T) { f(t, newPairOn(t, n, size, d, nil), true, false) })
		t.Run("to a device", func(t *testing.T) { f(t, newPairOn(t, n, size, nil, d), false, true) })
		t.Run("between devices", func(t *testing.T) { f(t, newPairOn(t, n, size, d, d), true, true) })
	})
}

// TestDeviceSegments moves blocks between device and host memory, in both directions, with notifications and
// digests.
func TestDeviceSegments(t *testing.T) { checkSegments(t, new(verbstest.MemoryDevice)) }

// TestGPUSegments is TestDeviceSegments with GPU memory.
func TestGPUSegments(t *testing.T) { checkSegments(t, cudatest.Open(t)) }

func checkSegments(t *testing.T, d device) {
	const size, block = 3<<20 + 17, 4096
	onDevices(t, d, size, func(t *testing.T, p *pair, here, there bool) {
		if (p.local.Bytes() == nil) != here || (p.target.Bytes() == nil) != there {
			t.Error("Bytes: want nil for memory of devices, and only for that")
		}
		want := p.local.write(t, 0, size, 1)
		wantOK(t, "Put", p.peer.Batch().Verify().Put(p.remote.At(0), p.local.Slice(0, size)).Notify([]byte("put")).Do(soon(t)))
		wantNote(t, p.there, "put")
		p.target.wantBytes(t, "the peer's segment", 0, want)

		want = p.target.write(t, 0, size, 2)
		wantOK(t, "Notify", p.back.Notify(soon(t), []byte("filled")))
		wantNote(t, p.here, "filled")
		wantOK(t, "Get", p.peer.Batch().Verify().Get(p.local.Slice(0, size), p.remote.At(0)).Do(soon(t)))
		p.local.wantBytes(t, "the segment", 0, want)

		// A batch that includes blocks of host memory.
		host := p.here.alloc("", size, 0)
		b := p.peer.Batch().Verify()
		var blocks [64][]byte
		for i := range int64(len(blocks)) {
			from := []*Segment{p.local, host}[i%2]
			blocks[i] = from.write(t, i*block, block, uint64(3+i))
			b.Put(p.remote.At((63-i)*block), from.Slice(i*block, block))
		}
		wantOK(t, "Put of blocks", b.Notify([]byte("blocks")).Do(soon(t)))
		wantNote(t, p.there, "blocks")
		for i := range int64(len(blocks)) {
			p.target.wantBytes(t, "a block", (63-i)*block, blocks[i])
		}
	})
}

// TestDigestsOfDevices: Verify detects a wrong byte in device memory on either side. An unreadable device
// fails the transfer.
func TestDigestsOfDevices(t *testing.T) {
	const size, at = 3 << 20, 2<<20 + 5
	for name, fails := range map[string]error{"local": verbstest.ErrCopy, "target": ErrFailed} {
		t.Run(name, func(t *testing.T) {
			d := new(verbstest.MemoryDevice)
			var p *pair
			var h *host
			var s *Segment
			if name == "local" {
				p = newPairOn(t, memoryNetwork(2), size, d, nil)
				h, s = p.here, p.local
			} else {
				p = newPairOn(t, memoryNetwork(2), size, nil, d)
				h, s = p.there, p.target
			}
			for _, c := range []struct {
				what   string
				change func()
				want   error
			}{
				{"a wrong byte", func() { s.flip(t, at) }, ErrDigest},
				{"a device that fails", func() { d.FailAfter(1) }, fails},
			} {
				thaw := h.freeze()
				tr := p.peer.Batch().Verify().Put(p.remote.At(0), p.local.Slice(0, size)).Notify([]byte("wrong")).Submit(soon(t))
				verifying(t, tr)
				c.change()
				thaw()
				err := tr.Wait(soon(t))
				d.FailAfter(-1)
				wantErr(t, c.what, err, c.want)
				var e *Error
				if !errors.As(err, &e) || e.Op != "put" || e.Name != "target" || e.Index != 0 || errors.Is(c.want, ErrDigest) && e.Offset != 2<<20 {
					t.Errorf("%s: got error %v, want an Error of put that names target and block 0", c.what, err)
				}
			}
			wantOK(t, "Put", p.peer.Batch().Verify().Put(p.remote.At(0), p.local.Slice(0, size)).Notify([]byte("right")).Do(soon(t)))
			wantNote(t, p.there, "right")
		})
	}
}

// TestDeviceFails: a device failure in the middle of a transfer fails it, and its notification is not sent.
// Other transfers work once the device has recovered.
func TestDeviceFails(t *testing.T) {
	const size = 4 << 20
	broken := new(verbstest.MemoryDevice)
	onDevices(t, broken, size, func(t *testing.T, p *pair, here, there bool) {
		want := []verbs.Status{verbs.StatusGeneralErr, verbs.StatusRemOpErr}
		switch {
		case !here:
			want = want[1:]
		case !there:
			want = want[:1]
		}
		after := 0 // one batch of copies may be everything, and a failing batch is half done
		if len(p.here.net.links) == 0 && p.here.net.link == "" {
			after = 10 // packets
		}
		batches := map[string]func(b *Batch){
			"put": func(b *Batch) { b.Put(p.remote.At(0), p.local.Slice(0, size)) },
			"get": func(b *Batch) { b.Get(p.local.Slice(0, size), p.remote.At(0)) },
		}
		for op, add := range batches {
			broken.FailAfter(after)
			b := p.peer.Batch()
			add(b)
			err := b.Notify([]byte("wrong")).Do(soon(t))
			broken.FailAfter(-1)
			var wc *verbs.WCError
			var e *Error
			if !errors.As(err, &wc) || !slices.Contains(want, wc.Status) || !errors.As(err, &e) || e.Op != op || e.Index != 0 {
				t.Errorf("%s: got error %v, want one of %v of block 0", op, err, want)
			}
		}
		content := p.local.write(t, 0, size, 5)
		wantOK(t, "Put", p.peer.Batch().Put(p.remote.At(0), p.local.Slice(0, size)).Notify([]byte("right")).Do(soon(t)))
		wantNote(t, p.there, "right")
		p.target.wantBytes(t, "the peer's segment", 0, content)
	})
}

// TestCloseAdopted: adopted memory cannot be freed while it is a segment, and can be used afterwards. Peers
// lose access to it.
func TestCloseAdopted(t *testing.T) {
	onHost, err := verbs.AllocMemory(closedSize, nil)
	wantOK(t, "AllocMemory", err)
	onDevice, err := new(verbstest.MemoryDevice).Alloc(closedSize)
	wantOK(t, "Alloc", err)
	closeAdopted(t, map[string]*verbs.Memory{"host": onHost, "device": onDevice})
}

// TestGPUCloseAdopted is TestCloseAdopted with GPU memory.
func TestGPUCloseAdopted(t *testing.T) {
	mem, err := cudatest.Open(t).Alloc(closedSize)
	wantOK(t, "Alloc", err)
	closeAdopted(t, map[string]*verbs.Memory{"GPU": mem})
}

const closedSize = 1 << 20

func closeAdopted(t *testing.T, memory map[string]*verbs.Memory) {
	const size = closedSize
	n := memoryNetwork(1)
	a, b := n.start(t, hostConfig{}), n.start(t, hostConfig{})
	p, local := a.to(b), a.alloc("", size, 0)
	for name, mem := range memory {
		t.Run(name, func(t *testing.T) {
			s, err := b.Adopt(name, mem, SegmentConfig{DefaultAccess: Read | Write})
			wantOK(t, "Adopt", err)
			_, err = b.Adopt(name, mem, SegmentConfig{})
			wantErr(t, "Adopt by the same name", err, verbs.ErrInvalid)
			wantErr(t, "Free of memory that is not registered yet", mem.Free(), verbs.ErrBusy)
			remote := open2(t, p, name, Read|Write)
			result := make(chan error)
			go func() {
				var err error
				for err == nil {
					err = p.Get(soon(t), local.Slice(0, size), remote.At(0)).Wait(soon(t))
				}
				result <- err
			}()
			wantOK(t, "Close", s.Close(soon(t)))
			wantErr(t, "Get of a segment that was closed", <-result, ErrRevoked)
			_, err = mem.WriteAt([]byte("used"), 0)
			wantOK(t, "WriteAt", err)
			wantOK(t, "Free", mem.Free())
			_, err = b.Adopt(name, mem, SegmentConfig{})
			wantErr(t, "Adopt of memory that is free", err, verbs.ErrClosed)
		})
	}
	_, err := b.Adopt("none", nil, SegmentConfig{})
	wantErr(t, "Adopt of nothing", err, verbs.ErrInvalid)
}
