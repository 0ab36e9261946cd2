package engine_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// matrix runs a test for every scheme, 1 to 64 lanes, one and two rails.
func matrix(t *testing.T, run func(t *testing.T, rails int, cfg ibverbx.Config)) {
	for _, scheme := range enginetest.Schemes {
		for _, rails := range []int{1, 2} {
			for _, lanes := range []int{1, 2, 8, 64} {
				t.Run(fmt.Sprintf("%s/rails=%d/lanes=%d", scheme, rails, lanes), func(t *testing.T) {
					run(t, rails, ibverbx.Config{Scheme: scheme, Lanes: lanes, FragmentSize: 8192, NotifyDepth: 16, LaneDepth: 32})
				})
			}
		}
	}
}

// TestWrite: notified and plain WRITEs of many sizes. A notification arrives after the bytes of its
// request and of all earlier requests.
func TestWrite(t *testing.T) {
	matrix(t, func(t *testing.T, rails int, cfg ibverbx.Config) {
		a, b := pair(t, rails, cfg)
		sizes := []int{1, 4096, 8192, 8193, 50_000, 200_000}
		total := 0
		for _, n := range sizes {
			total += 2 * n
		}
		local, remote := a.Region(total), b.Region(total)
		enginetest.Fill(local.Bytes(), uint64(cfg.Lanes))
		off := 0
		for i, n := range sizes {
			recv := ibverbx.RecvWR{WRID: uint64(i)}
			b.PostRecv(recv)
			plain := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Remote: remote.Remote(), RemoteOffset: uint64(off)}
			plain.SetSGE(local.SGE(uint64(off), uint32(n)))
			delivered := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(1000 + i), Remote: remote.Remote(), RemoteOffset: uint64(off + n)}
			delivered.SetSGE(local.SGE(uint64(off+n), uint32(n)))
			a.PostSend(plain, delivered)
			wcs := wait(t, fmt.Sprintf("write of %d bytes", n), []int{1, 1}, a, b)
			off += 2 * n
			if !bytes.Equal(local.Bytes()[:off], remote.Bytes()[:off]) {
				t.Fatalf("the bytes differ after the write of %d", n)
			}
			if wc := wcs[1][0]; wc.Flags&ibverbx.WCHasImm != 0 && wc.Imm != uint32(1000+i) {
				t.Errorf("immediate %d, want %d", wc.Imm, 1000+i)
			} else if wc.Flags&ibverbx.WCHasLength != 0 && wc.ByteLen != uint32(n) {
				t.Errorf("length %d, want %d", wc.ByteLen, n)
			}
		}
	})
}

// TestReadSendAtomics: the other operations, on the same VirtualQP.
func TestReadSendAtomics(t *testing.T) {
	matrix(t, func(t *testing.T, rails int, cfg ibverbx.Config) {
		a, b := pair(t, rails, cfg)
		const size = 100_000
		local, remote := a.Region(size), b.Region(size)
		enginetest.Fill(remote.Bytes(), uint64(cfg.Lanes))
		read := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: remote.Remote()}
		read.SetSGE(local.SGE(0, size/2), local.SGE(size/2, size/2))
		a.PostSend(read)
		wait(t, "read", []int{1}, a)
		if !bytes.Equal(local.Bytes(), remote.Bytes()) {
			t.Fatal("what was read differs")
		}
		enginetest.Fill(local.Bytes(), 99)
		recv := ibverbx.RecvWR{WRID: 5}
		recv.SetSGE(remote.SGE(0, 9000))
		b.PostRecv(recv)
		send := ibverbx.SendWR{WRID: 2, Opcode: verbs.OpSendWithImm, Flags: verbs.SendSignaled, Imm: 7}
		send.SetSGE(local.SGE(0, 9000))
		a.PostSend(send)
		wcs := wait(t, "send", []int{1, 1}, a, b)
		if wc := wcs[1][0]; wc.WRID != 5 || wc.ByteLen != 9000 || wc.Imm != 7 || !bytes.Equal(local.Bytes()[:9000], remote.Bytes()[:9000]) {
			t.Errorf("received %+v", wc)
		}
		clear(remote.Bytes()[:8])
		for i := range 10 {
			add := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled, CompareAdd: 3, Remote: remote.Remote()}
			add.SetSGE(local.SGE(0, 8))
			a.PostSend(add)
		}
		wait(t, "atomics", []int{10}, a)
		if sum := binary.NativeEndian.Uint64(remote.Bytes()); sum != 30 {
			t.Errorf("the counter is %d, want 30", sum)
		}
	})
}

// TestAccessError: a WRITE beyond the granted region fails, later requests are flushed in order, and the
// VirtualQP's error names the cause.
func TestAccessError(t *testing.T) {
	for _, rails := range []int{1, 2} {
		a, b := pair(t, rails, ibverbx.Config{Lanes: 4})
		local, remote := a.Region(4096), b.Region(4096)
		bad := remote.Remote()
		for i := range bad.RKeys {
			bad.RKeys[i] ^= 0x5500
		}
		var wrs []ibverbx.SendWR
		for i := range 8 {
			wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
			if i == 3 {
				wr.Remote = bad
			}
			wr.SetSGE(local.SGE(0, 4096))
			wrs = append(wrs, wr)
		}
		a.PostSend(wrs...)
		got := [][]ibverbx.WC{nil}
		collect(t, "all ended", func(got [][]ibverbx.WC) bool { return len(got[0]) == len(wrs) }, got, make([]ibverbx.WC, 16), []*enginetest.Host{a})
		failed := verbs.StatusSuccess
		for i, wc := range got[0] {
			if wc.WRID != uint64(i) {
				t.Fatalf("completion %d is of request %d", i, wc.WRID)
			}
			if i == 3 {
				failed = wc.Status
			}
		}
		if failed != verbs.StatusRemAccessErr || a.QP.Err() == nil {
			t.Errorf("request 3 ended with %s, Err = %v", failed, a.QP.Err())
		}
	}
}

// TestLaneForcedToERR: a lane is moved to ERR in mid-message, on either side. With a Control, all
// messages arrive and the lane recovers.
func TestLaneForcedToERR(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		for side := range 2 {
			t.Run(fmt.Sprintf("%s/side=%d", scheme, side), func(t *testing.T) {
				a, b := pair(t, 2, ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 8192, Deadline: patience - 10*time.Second})
				const messages, size = 6, 400_000
				local, remote := a.Region(messages*size), b.Region(messages*size)
				enginetest.Fill(local.Bytes(), 5)
				for i := range messages {
					recv := ibverbx.RecvWR{WRID: uint64(i)}
					b.PostRecv(recv)
					wr := ibverbx.SendWR{WRID: uint64(i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote(), RemoteOffset: uint64(i * size)}
					wr.SetSGE(local.SGE(uint64(i*size), size))
					a.PostSend(wr)
					if i == messages/2 {
						enginetest.Must(t, []*enginetest.Host{a, b}[side].QP.KillLane(1))
					}
				}
				wcs := wait(t, "all complete", []int{messages, messages}, a, b)
				for i := range messages {
					if wcs[0][i].WRID != uint64(i) || wcs[1][i].WRID != uint64(i) {
						t.Fatalf("completion %d is of %d and %d", i, wcs[0][i].WRID, wcs[1][i].WRID)
					}
				}
				if !bytes.Equal(local.Bytes(), remote.Bytes()) {
					t.Error("the bytes differ")
				}
				poll(t, "the lane is back", func() bool {
					x, y := a.QP.Stats().Lanes[1], b.QP.Stats().Lanes[1]
					return x.State == "up" && y.State == "up" && x.Generation > 0
				}, a, b)
			})
		}
	}
}
