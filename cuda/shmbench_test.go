//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package cuda_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"ibverbx/verbs"
)

// shmWrites is a chain of WRITEs to another process: its regions, the size of a block in bytes and
// the number of blocks.
type shmWrites struct{ own, theirs, block, blocks int }

// BenchmarkGPUShm measures WRITEs to another process on this host, alternating with staged WRITEs
// and with the GPU's own copies. "staged" and "copy" are the median ratios to them within one run.
func BenchmarkGPUShm(b *testing.B) {
	const size = 64 << 20
	var sides [2]*near // direct and staged
	for i := range sides {
		sides[i] = startFarOf(b, onGPUNear(b), nil, size)
		pin, err := sides[i].gpu.Pin(sides[i].mem[inHost])
		ok(b, err, "Pin")
		defer func() { ok(b, pin.Close(), "Close") }()
	}
	for region := range farRegions {
		sides[1].ask(order{Do: "hide", Region: region})
		sides[0].awaitShared(region)
	}
	other, err := sides[0].gpu.Alloc(size)
	ok(b, err, "Alloc")
	defer func() { ok(b, other.Free(), "Free") }()
	for _, w := range []shmWrites{
		{inDevice, inDevice, 4 << 10, 1000},
		{inDevice, inDevice, 64 << 10, 1000},
		{inDevice, inDevice, 1 << 20, 32},
		{inDevice, inDevice, 16 << 20, 4},
		{inHost, inDevice, 64 << 10, 1000},
		{inHost, inDevice, 16 << 20, 4},
		{inDevice, inHost, 64 << 10, 1000},
		{inDevice, inHost, 16 << 20, 4},
	} {
		b.Run(fmt.Sprintf("%s to %s/%dx%d", regionNames[w.own], regionNames[w.theirs], w.blocks, w.block), func(b *testing.B) {
			w.on(b, sides[1])
			w.on(b, sides[0])
			var toStaged, toCopy []float64
			var total time.Duration
			for b.Loop() {
				d := w.on(b, sides[0])
				total += d
				toStaged = append(toStaged, float64(w.on(b, sides[1]))/float64(d))
				toCopy = append(toCopy, float64(w.copied(b, sides[0], other))/float64(d))
			}
			slices.Sort(toStaged)
			slices.Sort(toCopy)
			b.ReportMetric(float64(len(toCopy)*w.blocks*w.block)/1e6/total.Seconds(), "MB/s")
			b.ReportMetric(toStaged[len(toStaged)/2], "staged")
			b.ReportMetric(toCopy[len(toCopy)/2], "copy")
		})
	}
}

// on executes the WRITEs on one side and returns the duration.
func (w *shmWrites) on(b *testing.B, n *near) time.Duration {
	b.Helper()
	wrs := make([]verbs.SendWR, w.blocks)
	for i := range wrs {
		wrs[i] = n.request(verbs.OpRDMAWrite, w.own, w.theirs, w.block)
		wrs[i].SGE[0].Addr += uint64(i*w.block) - 3
		wrs[i].RemoteAddr += uint64(i*w.block) - 7
		wrs[i].Flags = 0
	}
	wrs[w.blocks-1].Flags = verbs.SendSignaled
	began := time.Now()
	if s := n.do(wrs...); s != verbs.StatusSuccess {
		b.Fatal(s)
	}
	return time.Since(began)
}

// copied copies the same number of bytes with one GPU copy, and returns the duration.
func (w *shmWrites) copied(b *testing.B, n *near, other *verbs.Memory) time.Duration {
	b.Helper()
	began, total := time.Now(), w.blocks*w.block
	var err error
	switch inHost {
	case w.own:
		_, err = other.WriteAt(n.mem[inHost].Bytes()[:total], 0)
	case w.theirs:
		_, err = other.ReadAt(n.mem[inHost].Bytes()[:total], 0)
	default:
		err = other.CopyFrom(0, n.mem[inDevice], 0, total)
	}
	ok(b, err, "copy")
	return time.Since(began)
}
