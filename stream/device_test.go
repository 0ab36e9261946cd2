package stream

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"ibverbx/cuda/cudatest"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// sendMemory sends memory over a stream and receives it into other memory of the same size.
func sendMemory(t *testing.T, p *pair, to, from *verbs.Memory) (sent, received error) {
	t.Helper()
	here, there := p.dial(t)
	done := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.NewOffsetWriter(to, 0), there)
		if err != nil {
			_ = there.Reset() // otherwise the sender waits for credit
		}
		done <- err
	}()
	_, sent = io.Copy(here, io.NewSectionReader(from, 0, int64(from.Len())))
	if sent == nil {
		sent = here.CloseWrite()
	} else {
		_ = here.Reset() // or the receiver waits for bytes
	}
	return sent, <-done
}

// checkMemory moves data from one memory to another through a stream, and back.
func checkMemory(t *testing.T, a, b *verbs.Memory) {
	t.Helper()
	for name, n := range map[string]*network{"memory": memoryNetwork(2), "udp": {}} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, n, Config{Ring: 64 << 10})
			for i, m := range [][2]*verbs.Memory{{a, b}, {b, a}} {
				want, got := make([]byte, a.Len()), make([]byte, a.Len())
				enginetest.Fill(want, uint64(i))
				_, err := m[0].WriteAt(want, 0)
				wantOK(t, "WriteAt", err)
				sent, received := sendMemory(t, p, m[1], m[0])
				wantOK(t, "the sender's Copy", sent)
				wantOK(t, "the receiver's Copy", received)
				if _, err := m[1].ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
					t.Errorf("ReadAt = %v, want nil and the bytes that were sent", err)
				}
			}
		})
	}
}

// TestDeviceMemory: a stream can carry data of any memory through io.SectionReader and io.OffsetWriter. A
// device failure fails the copy with the device's error.
func TestDeviceMemory(t *testing.T) {
	const size = 1<<20 + 17
	d := new(verbstest.MemoryDevice)
	onDevice, err := d.Alloc(size)
	wantOK(t, "Alloc", err)
	onHost, err := verbs.AllocMemory(size, nil)
	wantOK(t, "AllocMemory", err)
	t.Cleanup(func() { wantOK(t, "Free", errors.Join(onDevice.Free(), onHost.Free())) })
	checkMemory(t, onDevice, onHost)
	for what, m := range map[string][2]*verbs.Memory{"source": {onHost, onDevice}, "target": {onDevice, onHost}} {
		p := newPair(t, memoryNetwork(1), Config{Ring: 64 << 10})
		d.FailAfter(1)
		sent, received := sendMemory(t, p, m[0], m[1])
		d.FailAfter(-1)
		if err := errors.Join(sent, received); !errors.Is(err, verbstest.ErrCopy) {
			t.Errorf("a %s that fails: got %v, want the error of the device", what, err)
		}
	}
}

// TestGPUMemory: the same with two GPU buffers.
func TestGPUMemory(t *testing.T) {
	const size = 1<<20 + 17
	g := cudatest.Open(t)
	checkMemory(t, cudatest.Alloc(t, g, size), cudatest.Alloc(t, g, size))
}
