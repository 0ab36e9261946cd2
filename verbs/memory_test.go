package verbs_test

import (
	"bytes"
	"errors"
	"os"
	"sync"
	"testing"

	"ibverbx/verbs"
)

const maxInt = int(^uint(0) >> 1)

func alloc(t *testing.T, size int, cfg *verbs.MemoryConfig) *verbs.Memory {
	t.Helper()
	m, err := verbs.AllocMemory(size, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Free(); err != nil {
			t.Errorf("Free = %v", err)
		}
	})
	return m
}

func TestAllocMemory(t *testing.T) {
	page := os.Getpagesize()
	for _, size := range []int{1, 63, 64, page - 1, page, page + 1, 3*page + 17, 1 << 20, 2<<20 + 1} {
		for _, cfg := range []*verbs.MemoryConfig{nil, {}, {HugePages: true}} {
			m := alloc(t, size, cfg)
			if m.Len() != size || len(m.Bytes()) != size || cap(m.Bytes()) != size {
				t.Fatalf("%d bytes, %+v: Len %d, len %d, cap %d", size, cfg, m.Len(), len(m.Bytes()), cap(m.Bytes()))
			}
			if m.Addr() == 0 || m.Addr()%uint64(page) != 0 {
				t.Fatalf("%d bytes, %+v: address %#x is not aligned to pages of %d", size, cfg, m.Addr(), page)
			}
			if m.HugePages() && m.Addr()%(2<<20) != 0 {
				t.Fatalf("%d bytes in huge pages at %#x", size, m.Addr())
			}
			if i := bytes.IndexFunc(m.Bytes(), func(r rune) bool { return r != 0 }); i >= 0 {
				t.Fatalf("%d bytes, %+v: byte %d is not zero", size, cfg, i)
			}
			for i := range m.Bytes() {
				m.Bytes()[i] = 0xff
			}
		}
	}
}

func TestAllocMemorySizes(t *testing.T) {
	for _, size := range []int{0, -1, -maxInt - 1, maxInt, maxInt - 1} {
		m, err := verbs.AllocMemory(size, nil)
		var op *verbs.OpError
		if m != nil || !errors.Is(err, verbs.ErrInvalid) || !errors.As(err, &op) {
			t.Errorf("AllocMemory(%d) = %v, %v, want an *OpError with %v", size, m, err, verbs.ErrInvalid)
		}
	}
}

// Explicit huge pages are rare on test machines, so requesting them must not fail.
func TestHugePagesFallBack(t *testing.T) {
	m := alloc(t, 5<<20, &verbs.MemoryConfig{HugePages: true})
	t.Logf("explicit huge pages: %v", m.HugePages())
	b := m.Bytes()
	b[0], b[len(b)-1] = 1, 2
	if err := m.Free(); err != nil {
		t.Fatalf("Free = %v", err)
	}
}

func TestMemoryFree(t *testing.T) {
	m := alloc(t, 100, nil)
	for range 2 {
		if err := m.Retain(); err != nil {
			t.Fatalf("Retain = %v", err)
		}
	}
	for n := 2; n > 0; n-- {
		if err := m.Free(); !errors.Is(err, verbs.ErrBusy) {
			t.Fatalf("Free with %d registrations = %v, want %v", n, err, verbs.ErrBusy)
		}
		m.Bytes()[99] = byte(n) // it is still mapped
		m.Release()
	}
	for range 2 {
		if err := m.Free(); err != nil {
			t.Fatalf("Free = %v", err)
		}
	}
	if err := m.Retain(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Retain after Free = %v, want %v", err, verbs.ErrClosed)
	}
}

func TestReleaseWithoutRetain(t *testing.T) {
	m := alloc(t, 1, nil)
	defer func() {
		if recover() == nil {
			t.Error("Release without Retain did not panic")
		}
		// The panic must not leave the lock held.
		if err := m.Retain(); err != nil {
			t.Errorf("Retain = %v", err)
		}
		m.Release()
	}()
	m.Release()
}

func TestMemorySlice(t *testing.T) {
	m := alloc(t, 1000, nil)
	tests := []struct {
		off, n int
		ok     bool
	}{
		{0, 1000, true},
		{0, 1, true},
		{999, 1, true},
		{500, 500, true},
		{0, 0, false},
		{0, -1, false},
		{-1, 1, false},
		{-1, 1001, false},
		{0, 1001, false},
		{1000, 1, false},
		{501, 500, false},
		{maxInt, 1, false},
		{1, maxInt, false},
		{maxInt, maxInt, false},
	}
	for _, tt := range tests {
		v, err := m.Slice(tt.off, tt.n)
		if (err == nil) != tt.ok || (err != nil && !errors.Is(err, verbs.ErrInvalid)) {
			t.Errorf("Slice(%d, %d) = %v, want ok %v", tt.off, tt.n, err, tt.ok)
		}
		if err == nil && (v.Addr() != m.Addr()+uint64(tt.off) || v.Len() != tt.n || cap(v.Bytes()) != tt.n) {
			t.Errorf("Slice(%d, %d) is %d bytes (cap %d) at %+d", tt.off, tt.n, v.Len(), cap(v.Bytes()), v.Addr()-m.Addr())
		}
	}
}

// Registering a view, or a view of a view, retains the whole root.
func TestMemorySliceHoldsItsRoot(t *testing.T) {
	m := alloc(t, 1000, nil)
	v, err := m.Slice(100, 500)
	if err != nil {
		t.Fatal(err)
	}
	vv, err := v.Slice(10, 20)
	if err != nil {
		t.Fatal(err)
	}
	if want := m.Addr() + 110; vv.Addr() != want {
		t.Errorf("view of a view at %#x, want %#x", vv.Addr(), want)
	}
	if err := vv.Retain(); err != nil {
		t.Fatal(err)
	}
	if err := m.Free(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Free of the root = %v, want %v", err, verbs.ErrBusy)
	}
	if err := v.Free(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Free of a view = %v, want %v", err, verbs.ErrInvalid)
	}
	vv.Release()
	if err := m.Free(); err != nil {
		t.Errorf("Free = %v", err)
	}
	if err := v.Retain(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("Retain of a view of freed memory = %v, want %v", err, verbs.ErrClosed)
	}
}

func TestAdoptMemory(t *testing.T) {
	if _, err := verbs.AdoptMemory(nil); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("AdoptMemory(nil) = %v, want %v", err, verbs.ErrInvalid)
	}
	owner := alloc(t, 4096, nil)
	m, err := verbs.AdoptMemory(owner.Bytes()[:100])
	if err != nil {
		t.Fatal(err)
	}
	if m.Addr() != owner.Addr() || m.Len() != 100 || cap(m.Bytes()) != 100 {
		t.Errorf("adopted %d bytes (cap %d) at %#x, want 100 at %#x", m.Len(), cap(m.Bytes()), m.Addr(), owner.Addr())
	}
	if err := m.Retain(); err != nil {
		t.Fatal(err)
	}
	if err := m.Free(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Free = %v, want %v", err, verbs.ErrBusy)
	}
	m.Release()
	if err := m.Free(); err != nil {
		t.Errorf("Free = %v", err)
	}
	owner.Bytes()[0] = 1 // Free does not unmap adopted memory
}

// Registrations may race with Free, but never succeed on freed memory.
func TestMemoryConcurrency(t *testing.T) {
	m, err := verbs.AllocMemory(4096, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if err := m.Retain(); err != nil {
					if !errors.Is(err, verbs.ErrClosed) {
						t.Errorf("Retain = %v", err)
					}
					return
				}
				_ = m.Bytes()[0]
				m.Release()
			}
		})
	}
	wg.Go(func() {
		for {
			if err := m.Free(); err == nil {
				return
			} else if !errors.Is(err, verbs.ErrBusy) {
				t.Errorf("Free = %v", err)
				return
			}
		}
	})
	wg.Wait()
}
