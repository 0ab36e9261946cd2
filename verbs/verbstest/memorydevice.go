package verbstest

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"ibverbx/verbs"
)

// MemoryDevice stands in for a GPU: its memory has addresses that no CPU can access, and copies are all that
// moves its bytes. A test can make copies wait or fail. It is safe for concurrent use.
type MemoryDevice struct {
	mu     sync.Mutex
	turns  int // calls of Alternate
	blocks []block
	next   uint64
	counts Copies
	fail   error
	after  int
	gate   chan struct{}
	inside chan struct{}
	broken span
	pinned int
}

// span is a range of addresses, from addr up to end.
type span struct{ addr, end uint64 }

var _ verbs.MemoryDevice = (*MemoryDevice)(nil)

// Copies counts the copies of a MemoryDevice.
type Copies struct {
	// Calls is the number of calls of Copy that succeeded.
	Calls int
	// Copies is the number of copies in them.
	Copies int
	// Bytes is the number of bytes in them.
	Bytes uint64
}

// block is an allocation.
type block struct {
	addr  uint64
	bytes []byte
}

// ErrCopy is the error of a MemoryDevice that fails.
var ErrCopy = errors.New("the copy engine failed")

// Name implements verbs.MemoryDevice.
func (d *MemoryDevice) Name() string { return "fake:0" }

// Alloc returns memory of the device, filled with zeroes.
func (d *MemoryDevice) Alloc(size int) (*verbs.Memory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next == 0 {
		d.next = 0xd000_0000_0000 // no address of a process
	}
	addr := d.next + 0x200
	d.next += (uint64(size) + 0x1fff) &^ 0xfff
	d.blocks = append(d.blocks, block{addr, make([]byte, size)})
	return verbs.NewDeviceMemory(d, addr, size, func() error { return d.free(addr) })
}

// Alternate returns memory of the host and of the device by turns, for Pair.Alloc.
func (d *MemoryDevice) Alternate(size int) (*verbs.Memory, error) {
	d.mu.Lock()
	d.turns++
	onHost := d.turns%2 == 1
	d.mu.Unlock()
	if onHost {
		return verbs.AllocMemory(size, nil)
	}
	return d.Alloc(size)
}

func (d *MemoryDevice) free(addr uint64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.blocks {
		if d.blocks[i].addr == addr {
			d.blocks[i] = d.blocks[len(d.blocks)-1]
			d.blocks = d.blocks[:len(d.blocks)-1]
			return nil
		}
	}
	return fmt.Errorf("%w: nothing at %#x", verbs.ErrInvalid, addr)
}

// FailAfter makes calls of Copy fail after n more. A negative n ends that.
func (d *MemoryDevice) FailAfter(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail, d.after = ErrCopy, n; n < 0 {
		d.fail = nil
	}
}

// FailAt makes copies from and to memory of the device fail. Nil ends that.
func (d *MemoryDevice) FailAt(m *verbs.Memory) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = span{}
	if m != nil {
		d.broken = span{m.Addr(), m.Addr() + uint64(m.Len())}
	}
}

// Pinned returns how many bytes of host memory are pinned.
func (d *MemoryDevice) Pinned() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pinned
}

// Hold makes calls of Copy wait until release is called. The channel tells of each that waits.
func (d *MemoryDevice) Hold() (waits <-chan struct{}, release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.gate, d.inside = gate, make(chan struct{}, 1024)
	return d.inside, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.gate = nil
		close(gate)
	}
}

// Count returns what has been copied.
func (d *MemoryDevice) Count() Copies {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// Copy implements verbs.MemoryDevice. A call that fails has done half of its copies, as a GPU may have.
func (d *MemoryDevice) Copy(copies []verbs.DeviceCopy) error {
	d.mu.Lock()
	gate := d.gate
	if gate != nil {
		d.inside <- struct{}{}
	}
	d.mu.Unlock()
	if gate != nil {
		<-gate
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var fail error
	if d.fail != nil {
		if d.after--; d.after < 0 {
			copies, fail = copies[:len(copies)/2], d.fail
		}
	}
	n := uint64(0)
	for _, c := range copies {
		to, from := c.Host, c.Host
		var err error
		if c.To != 0 {
			to, err = d.at(c.To, c.Len)
		}
		if c.From != 0 && err == nil {
			from, err = d.at(c.From, c.Len)
		}
		if err != nil || uint64(len(to)) != c.Len || uint64(len(from)) != c.Len || c.To == c.From {
			return errors.Join(fmt.Errorf("%w: a copy of %d bytes, %d of them on the host", verbs.ErrInvalid, c.Len, len(c.Host)), err)
		}
		copy(to, from)
		n += c.Len
	}
	if fail == nil {
		d.counts.Calls++
		d.counts.Copies += len(copies)
		d.counts.Bytes += n
	}
	return fail
}

// at returns the bytes at an address.
func (d *MemoryDevice) at(addr, n uint64) ([]byte, error) {
	if addr < d.broken.end && addr+n > d.broken.addr {
		return nil, ErrCopy
	}
	for _, b := range d.blocks {
		if off := addr - b.addr; off <= uint64(len(b.bytes)) && n <= uint64(len(b.bytes))-off {
			return b.bytes[off:][:n], nil
		}
	}
	return nil, fmt.Errorf("%w: %d bytes at %#x are not allocated", verbs.ErrInvalid, n, addr)
}

// PinHost implements verbs.MemoryDevice. All memory is equally fast. The memory cannot be freed before unpin.
func (d *MemoryDevice) PinHost(mem *verbs.Memory) (unpin func() error, err error) {
	if err := mem.Retain(); err != nil {
		return nil, err
	}
	d.pin(mem.Len())
	return func() error { d.pin(-mem.Len()); mem.Release(); return nil }, nil
}

func (d *MemoryDevice) pin(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pinned += n
}

// DMABuf implements verbs.MemoryDevice. There is none.
func (d *MemoryDevice) DMABuf(uint64, uint64) (*os.File, uint64, error) {
	return nil, 0, fmt.Errorf("%w: %s exports no dma-bufs", verbs.ErrNotSupported, d.Name())
}
