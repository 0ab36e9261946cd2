//go:build linux && !heapmem

package verbs_test

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// TestMemoryFile: shared memory is backed by a separate file of fixed size. Data written through
// the file is in the memory.
func TestMemoryFile(t *testing.T) {
	m := alloc(t, 10_000, &verbs.MemoryConfig{Shared: true, HugePages: true})
	fd, ok := m.File()
	if !ok {
		t.Fatal("shared memory has no file")
	}
	if _, err := unix.Pwrite(fd, []byte("peer"), 9_000); err != nil {
		t.Fatal(err)
	}
	if got := m.Bytes()[9_000:9_004]; !bytes.Equal(got, []byte("peer")) {
		t.Errorf("the memory has %q where the file has %q", got, "peer")
	}
	for _, size := range []int64{0, 4096, 1 << 20} {
		if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EPERM) {
			t.Errorf("ftruncate to %d = %v, want %v", size, err, unix.EPERM)
		}
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("F_GETFD = %#x, %v, want FD_CLOEXEC", flags, err)
	}
	if err := m.Free(); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err == nil {
		t.Error("the file has seals after Free, want it closed")
	}
}

// TestMemoryWithoutFile: File returns false for views, because it would expose the whole root, and
// for adopted, non-shared and zero Memory.
func TestMemoryWithoutFile(t *testing.T) {
	root := alloc(t, 8192, &verbs.MemoryConfig{Shared: true})
	view, err := root.Slice(0, 4096)
	if err != nil {
		t.Fatal(err)
	}
	adopted, err := verbs.AdoptMemory(root.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range map[string]*verbs.Memory{"a view": view, "adopted memory": adopted, "memory that is not shared": alloc(t, 4096, nil), "a zero Memory": {}} {
		if fd, ok := m.File(); ok {
			t.Errorf("%s has file %d, want none", name, fd)
		}
	}
}

// TestAllocMemoryWithoutDescriptors: a process that has run out of descriptors gets memory without
// a file.
func TestAllocMemoryWithoutDescriptors(t *testing.T) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	m, err := verbs.AllocMemory(4096, &verbs.MemoryConfig{Shared: true})
	if e := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); e != nil {
		t.Fatal(e)
	}
	if err != nil {
		t.Fatalf("AllocMemory = %v", err)
	}
	m.Bytes()[4095] = 1
	if fd, ok := m.File(); ok {
		t.Errorf("the memory has file %d, want none", fd)
	}
	if err := m.Free(); err != nil {
		t.Error(err)
	}
}
