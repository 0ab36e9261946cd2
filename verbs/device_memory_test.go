package verbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// TestDeviceMemory: device memory has an address, a length and views, but Bytes is nil.
func TestDeviceMemory(t *testing.T) {
	d := new(verbstest.MemoryDevice)
	m := deviceMemory(t, d, 1000)
	view, err := m.Slice(100, 50)
	if err != nil {
		t.Fatal(err)
	}
	if m.Bytes() != nil || m.Len() != 1000 || m.Device() != verbs.MemoryDevice(d) || view.Bytes() != nil || view.Len() != 50 || view.Addr() != m.Addr()+100 {
		t.Errorf("memory of %d bytes at %#x, view of %d bytes at %#x; want 1000 and 50, 100 behind the start, without bytes",
			m.Len(), m.Addr(), view.Len(), view.Addr())
	}
	if _, err := m.Slice(951, 50); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Slice beyond the end = %v, want ErrInvalid", err)
	}
	if _, err := view.WriteAt([]byte("abc"), 47); err != nil {
		t.Errorf("WriteAt = %v, want nil", err)
	}
	got := make([]byte, 3)
	if _, err := m.ReadAt(got, 147); err != nil || string(got) != "abc" {
		t.Errorf("ReadAt = %v and %q, want nil and abc", err, got)
	}
	if err := view.Free(); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("Free of a view = %v, want ErrInvalid", err)
	}
	for _, bad := range []func() (*verbs.Memory, error){
		func() (*verbs.Memory, error) { return verbs.NewDeviceMemory(nil, 1, 1, func() error { return nil }) },
		func() (*verbs.Memory, error) { return verbs.NewDeviceMemory(d, 0, 1, func() error { return nil }) },
		func() (*verbs.Memory, error) { return verbs.NewDeviceMemory(d, 1, 0, func() error { return nil }) },
		func() (*verbs.Memory, error) {
			return verbs.NewDeviceMemory(d, 1<<64-1, 2, func() error { return nil })
		},
		func() (*verbs.Memory, error) { return verbs.NewDeviceMemory(d, 1, 1, nil) },
	} {
		if _, err := bad(); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("NewDeviceMemory = %v, want ErrInvalid", err)
		}
	}
}

func deviceMemory(t *testing.T, d *verbstest.MemoryDevice, size int) *verbs.Memory {
	t.Helper()
	m, err := d.Alloc(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Free(); err != nil {
			t.Errorf("Free = %v, want nil", err)
		}
	})
	return m
}

// TestCopyFrom copies between host memory and device memory, in every combination.
func TestCopyFrom(t *testing.T) {
	d := new(verbstest.MemoryDevice)
	host := func() *verbs.Memory {
		m, err := verbs.AllocMemory(100, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Free() })
		return m
	}
	all := []*verbs.Memory{host(), deviceMemory(t, d, 100), host(), deviceMemory(t, d, 100)}
	for i, to := range all {
		for k, from := range all {
			if i == k {
				continue
			}
			want, got := []byte(fmt.Sprintf("%d to %d", k, i)), make([]byte, 6)
			_, err := from.WriteAt(want, 20)
			err = errors.Join(err, to.CopyFrom(60, from, 20, len(want)))
			if _, e := to.ReadAt(got, 60); errors.Join(err, e) != nil || !bytes.Equal(got, want) {
				t.Errorf("from %d to %d: %v and %q, want nil and %q", k, i, errors.Join(err, e), got, want)
			}
			for _, bad := range []error{
				to.CopyFrom(96, from, 0, 5), to.CopyFrom(0, from, 96, 5), to.CopyFrom(-1, from, 0, 5), to.CopyFrom(0, from, 0, -1), to.CopyFrom(0, nil, 0, 1),
			} {
				if !errors.Is(bad, verbs.ErrInvalid) {
					t.Errorf("CopyFrom outside of the memory = %v, want ErrInvalid", bad)
				}
			}
		}
	}
}

// TestDeviceMemoryFree: memory cannot be freed while it is registered or being copied. A failed
// copy returns an error. After a device loss, Free returns the error and the memory counts as
// freed.
func TestDeviceMemoryFree(t *testing.T) {
	d := new(verbstest.MemoryDevice)
	m := deviceMemory(t, d, 100)
	waits, release := d.Hold()
	done := make(chan error, 1)
	go func() { _, err := m.WriteAt([]byte("abc"), 0); done <- err }()
	<-waits
	if err := m.Free(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("Free during a copy = %v, want ErrBusy", err)
	}
	release()
	if err := <-done; err != nil {
		t.Errorf("WriteAt = %v, want nil", err)
	}
	d.FailAfter(0)
	if _, err := m.ReadAt(make([]byte, 3), 0); !errors.Is(err, verbstest.ErrCopy) {
		t.Errorf("ReadAt = %v, want the device's error", err)
	}
	d.FailAfter(-1)
	lost := 0
	gone, err := verbs.NewDeviceMemory(d, 4096, 10, func() error { lost++; return verbs.ErrDeviceFatal })
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Free(); !errors.Is(err, verbs.ErrDeviceFatal) {
		t.Errorf("Free of lost memory = %v, want ErrDeviceFatal", err)
	}
	if err := gone.Free(); err != nil || lost != 1 {
		t.Errorf("second Free = %v after %d, want nil after 1", err, lost)
	}
	if _, err := gone.WriteAt([]byte{1}, 0); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("WriteAt after Free = %v, want ErrClosed", err)
	}
	host, err := verbs.AllocMemory(10, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := host.DMABuf(); !errors.Is(err, verbs.ErrNotSupported) {
		t.Errorf("DMABuf of host memory = %v, want ErrNotSupported", err)
	}
	if err := host.Free(); err != nil {
		t.Errorf("Free = %v, want nil", err)
	}
}
