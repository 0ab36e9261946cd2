package chunk

import (
	"runtime"
	"sync"
	"testing"
)

// TestTable: elements keep their values, even with concurrent writers, and unused ones are zero.
func TestTable(t *testing.T) {
	const n = 2*tablePage + 7
	x := NewTable[int64](n)
	var work sync.WaitGroup
	for part := range int64(4) {
		work.Go(func() {
			for k := part; k < n; k += 4 {
				*x.At(k) = k
			}
		})
	}
	work.Wait()
	for k := range x.Len() {
		if got := x.Get(k); got != k {
			t.Fatalf("element %d is %d", k, got)
		}
	}
	long := NewTable[int64](1 << 23)
	*long.At(1<<23 - 1) = 1
	if long.Get(1<<23-1) != 1 || long.Get(5) != 0 {
		t.Error("the last element is not 1, or another one not 0")
	}
}

// TestFalseSize: a file with a huge announced size uses memory for accessed chunks only.
func TestFalseSize(t *testing.T) {
	root, _ := newRoot(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	x := create(t, root, "f", 1<<43, false)
	must(t, x.WriteZero(1<<22))
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("a file of 8 TiB takes %d bytes, want at most 1 MiB", got)
	}
}
