package failover_test

import (
	"testing"
	"time"

	"ibverbx"
	"ibverbx/cuda/cudatest"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// device has memory that the CPU cannot access.
type device interface {
	Alloc(n int) (*verbs.Memory, error)
}

// onDevice returns an allocator of device memory.
func onDevice(d device) allocator {
	return func(t *testing.T, h *enginetest.Host, n int) (*ibverbx.Region, *verbs.Memory) {
		t.Helper()
		m, err := d.Alloc(n)
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, m.Free()) })
		r, err := h.Rails.Register(m, verbs.AccessAll)
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, r.Close()) })
		return r, m
	}
}

// TestDeviceFailsOver: WRITEs, SENDs and READs between device memory over two rails, one of which is lost
// midway. The other rail's lanes read the source again, and every byte arrives.
func TestDeviceFailsOver(t *testing.T) { failOverOn(t, onDevice(new(verbstest.MemoryDevice))) }

// TestGPUFailsOver is TestDeviceFailsOver between two GPU buffers.
func TestGPUFailsOver(t *testing.T) { failOverOn(t, onDevice(cudatest.Open(t))) }

func failOverOn(t *testing.T, alloc allocator) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		remoteTransfer(t, newDuo(t, 2, ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 4096}), alloc)
	})
}

// TestDeviceOverReliable: the same with rails that package reliable wraps, one of two or both.
func TestDeviceOverReliable(t *testing.T) { wrappedTransfer(t, onDevice(new(verbstest.MemoryDevice))) }

// TestGPUOverReliable is TestDeviceOverReliable between two GPU buffers.
func TestGPUOverReliable(t *testing.T) { wrappedTransfer(t, onDevice(cudatest.Open(t))) }

// allocator returns a region of n bytes on a host, inaccessible to the engine, and its memory.
type allocator func(t *testing.T, h *enginetest.Host, n int) (*ibverbx.Region, *verbs.Memory)

// remoteTransfer writes and sends from host 0 to host 1, reads the data back, and loses rail 1 midway.
func remoteTransfer(t *testing.T, d *duo, alloc allocator) {
	t.Helper()
	const messages, size, half = 8, 40_000, 8 * 40_000
	local, source := alloc(t, d.hosts[0], 2*half)
	remote, target := alloc(t, d.hosts[1], 2*half)
	content, got := make([]byte, 2*half), make([]byte, 2*half)
	move := func(m *verbs.Memory, copies func(*verbs.Memory, []byte, int64) (int, error), b []byte) {
		t.Helper()
		_, err := copies(m, b, 0)
		enginetest.Must(t, err)
	}
	enginetest.Fill(content, 4)
	move(source, (*verbs.Memory).WriteAt, content)
	for i := range messages {
		at := uint64(i * size)
		wr := ibverbx.SendWR{WRID: uint64(2 * i), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Remote: remote.Remote(), RemoteOffset: at}
		wr.SetSGE(local.SGE(at, size))
		d.hosts[1].PostRecv(ibverbx.RecvWR{WRID: uint64(2 * i)})
		d.hosts[0].PostSend(wr)
		recv := ibverbx.RecvWR{WRID: uint64(2*i + 1)}
		recv.SetSGE(remote.SGE(half+at, size/2), remote.SGE(half+at+size/2, size/2))
		d.hosts[1].PostRecv(recv)
		wr = ibverbx.SendWR{WRID: uint64(2*i + 1), Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		wr.SetSGE(local.SGE(half+at, size))
		d.hosts[0].PostSend(wr)
		if d.step(); i == messages/2 {
			d.links[1].Cut(d.hosts[0].NICs[1], d.hosts[1].NICs[1])
			d.links[1].Cut(d.hosts[1].NICs[1], d.hosts[0].NICs[1])
		}
	}
	d.until("all have arrived", func() bool { return len(d.got[0]) == 2*messages && len(d.got[1]) == 2*messages })
	for i, side := range d.got {
		for k, wc := range side {
			if wc.Err() != nil || wc.WRID != uint64(k) {
				t.Fatalf("completion %d of host %d is of %d: %v", k, i, wc.WRID, wc.Err())
			}
		}
	}
	move(target, (*verbs.Memory).ReadAt, got)
	if at := enginetest.FirstDifference(content, got); at >= 0 {
		t.Fatalf("WRITEs and SENDs differ at %d of %d", at, len(got))
	}
	enginetest.Fill(content, 5)
	move(target, (*verbs.Memory).WriteAt, content)
	read := ibverbx.SendWR{WRID: 2 * messages, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: remote.Remote()}
	read.SetSGE(local.SGE(0, 2*half))
	d.hosts[0].PostSend(read)
	d.until("the READ has ended", func() bool { return len(d.got[0]) > 2*messages })
	move(source, (*verbs.Memory).ReadAt, got)
	if wc, at := d.got[0][2*messages], enginetest.FirstDifference(content, got); wc.Err() != nil || at >= 0 {
		t.Errorf("READ = %v, and the bytes differ at %d", wc.Err(), at)
	}
	d.links[1].Restore(d.hosts[0].NICs[1], d.hosts[1].NICs[1])
	d.links[1].Restore(d.hosts[1].NICs[1], d.hosts[0].NICs[1])
	d.until("all lanes are back", d.allUp)
	replayed := uint64(0)
	for _, l := range d.hosts[0].QP.Stats().Lanes {
		replayed += l.Replayed
	}
	if replayed == 0 {
		t.Error("no request was sent again, want those that were lost with rail 1")
	}
}

// wrappedTransfer is remoteTransfer over rails that lose 1 % of their packets. Package reliable wraps one of two,
// or both.
func wrappedTransfer(t *testing.T, alloc allocator) {
	wrap := &reliable.Config{Paths: 4, ChunkBytes: 4096, GiveUp: int64(100 * time.Millisecond)}
	ud := &reliable.Config{Carrier: verbs.UD, Paths: 4, GiveUp: int64(100 * time.Millisecond)}
	for name, wraps := range map[string][]*reliable.Config{"both": {wrap, wrap}, "one": {nil, wrap}, "datagrams": {ud, ud}} {
		t.Run(name, func(t *testing.T) {
			d, _ := newDuoOver(t, wraps, ibverbx.Config{Lanes: 4, FragmentSize: 16384}, ibverbx.CQConfig{Waker: verbs.NewWaker()})
			for i, l := range d.links { // of all packets between the hosts
				for k := range 2 {
					enginetest.Must(t, l.Impair(d.hosts[k].NICs[i], d.hosts[1-k].NICs[i], softnic.Impairment{Delay: 30 * time.Microsecond, Loss: 0.01}))
				}
			}
			remoteTransfer(t, d, alloc)
		})
	}
}
