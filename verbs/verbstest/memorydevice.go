package verbstest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"ibverbx/verbs"
)

// MemoryDevice simulates a GPU: the CPU cannot access its memory, and only copies move its bytes.
// Started copies are executed by the next Copy, the latest moment allowed. A test can make copies wait
// or fail. It is safe for concurrent use.
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
	// started holds copies to be executed by the next Copy.
	started []verbs.DeviceCopy
	shares  Sharing
	opened  int
}

// Sharing configures access between processes to each other's memory. The zero value is the default of a
// new MemoryDevice. All simulated processes are in this process and use the same MemoryDevice.
type Sharing struct {
	// Export enables memory handles.
	Export bool
	// Open makes the handles valid in other processes.
	Open bool
	// Copy lets copies from and to opened memory succeed.
	Copy bool
}

// span is a range of addresses, from addr up to end.
type span struct{ addr, end uint64 }

var _ verbs.MemoryDevice = (*MemoryDevice)(nil)

// Copies are the copy counters of a MemoryDevice.
type Copies struct {
	// Calls is the number of successful Copy calls.
	Calls int
	// Copies is the number of copies in these calls, including copies started before.
	Copies int
	// Bytes is the number of bytes copied.
	Bytes uint64
}

// block is an allocation.
type block struct {
	addr   uint64
	bytes  []byte
	opened bool // by its handle
}

// ErrCopy is the error of an injected copy failure.
var ErrCopy = errors.New("the copy engine failed")

// Name implements verbs.MemoryDevice.
func (d *MemoryDevice) Name() string { return "fake:0" }

// Alloc allocates zeroed device memory.
func (d *MemoryDevice) Alloc(size int) (*verbs.Memory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.add(make([]byte, size), false)
}

// add returns b as device memory.
func (d *MemoryDevice) add(b []byte, opened bool) (*verbs.Memory, error) {
	if d.next == 0 {
		d.next = 0xd000_0000_0000 // never a valid process address
	}
	addr := d.next + 0x200
	d.next += (uint64(len(b)) + 0x1fff) &^ 0xfff
	d.blocks = append(d.blocks, block{addr, b, opened})
	if opened {
		d.opened++
	}
	return verbs.NewDeviceMemory(d, addr, len(b), func() error { return d.free(addr) })
}

// Alternate allocates host and device memory alternately, for Pair.Alloc.
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
			if d.blocks[i].opened {
				d.opened--
			}
			d.blocks[i] = d.blocks[len(d.blocks)-1]
			d.blocks = d.blocks[:len(d.blocks)-1]
			return nil
		}
	}
	return fmt.Errorf("%w: nothing at %#x", verbs.ErrInvalid, addr)
}

// FailAfter makes Copy and Start fail after n more calls. A negative n disables it.
func (d *MemoryDevice) FailAfter(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail, d.after = ErrCopy, n; n < 0 {
		d.fail = nil
	}
}

// Lose makes all copies fail as on a lost device.
func (d *MemoryDevice) Lose() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail, d.after = verbs.ErrDeviceFatal, 0
}

// FailAt makes copies from and to the given device memory fail. Nil disables it.
func (d *MemoryDevice) FailAt(m *verbs.Memory) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = span{}
	if m != nil {
		d.broken = span{m.Addr(), m.Addr() + uint64(m.Len())}
	}
}

// Pinned returns the number of pinned bytes of host memory.
func (d *MemoryDevice) Pinned() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pinned
}

// Hold makes later Copy calls wait until release is called. The channel receives a value for each
// waiting call.
func (d *MemoryDevice) Hold() (waits <-chan struct{}, release func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	gate := make(chan struct{})
	d.gate, d.inside = gate, make(chan struct{}, 1024)
	return d.inside, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.gate == gate {
			d.gate = nil
		}
		close(gate)
	}
}

// Count returns the copy counters.
func (d *MemoryDevice) Count() Copies {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// Copy implements verbs.MemoryDevice. A failing call executes half of its copies, as a GPU might.
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
	if err := d.begin(copies); err != nil {
		return err
	}
	d.counts.Calls++
	d.counts.Copies += len(d.started)
	for i := range d.started {
		d.counts.Bytes += d.started[i].Len
	}
	return d.finish()
}

// Start implements verbs.MemoryDevice. A failing call executes half of its copies.
func (d *MemoryDevice) Start(copies []verbs.DeviceCopy) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.begin(copies)
}

// begin accepts copies, or executes half of them and fails.
func (d *MemoryDevice) begin(copies []verbs.DeviceCopy) error {
	var err error
	if d.fail != nil {
		if d.after--; d.after < 0 {
			copies, err = copies[:len(copies)/2], d.fail
		}
	}
	for i := range copies {
		if _, _, e := d.ends(&copies[i]); e != nil {
			copies, err = copies[:i], e
			break
		}
	}
	d.started = append(d.started, copies...)
	if err != nil {
		_ = d.finish() // the caller returns err
	}
	return err
}

// finish executes the started copies.
func (d *MemoryDevice) finish() error {
	var err error
	for i := range d.started {
		to, from, e := d.ends(&d.started[i])
		err = errors.Join(err, e)
		copy(to, from)
	}
	clear(d.started)
	d.started = d.started[:0]
	return err
}

// ends returns the two sides of a copy.
func (d *MemoryDevice) ends(c *verbs.DeviceCopy) (to, from []byte, err error) {
	to, from = c.Host, c.Host
	if c.To != 0 {
		to, err = d.at(c.To, c.Len)
	}
	if c.From != 0 && err == nil {
		from, err = d.at(c.From, c.Len)
	}
	if err != nil || uint64(len(to)) != c.Len || uint64(len(from)) != c.Len || c.To == c.From {
		return nil, nil, errors.Join(fmt.Errorf("%w: a copy of %d bytes, %d of them on the host", verbs.ErrInvalid, c.Len, len(c.Host)), err)
	}
	return to, from, nil
}

// at returns the bytes at an address.
func (d *MemoryDevice) at(addr, n uint64) ([]byte, error) {
	if addr < d.broken.end && addr+n > d.broken.addr {
		return nil, ErrCopy
	}
	for _, b := range d.blocks {
		if off := addr - b.addr; off <= uint64(len(b.bytes)) && n <= uint64(len(b.bytes))-off {
			if b.opened && !d.shares.Copy {
				return nil, ErrCopy
			}
			return b.bytes[off:][:n], nil
		}
	}
	return nil, fmt.Errorf("%w: %d bytes at %#x are not allocated", verbs.ErrInvalid, n, addr)
}

// PinHost implements verbs.MemoryDevice. Pinning does not change the speed, but the memory cannot be
// freed before unpin.
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

// DMABuf implements verbs.MemoryDevice. It is not supported.
func (d *MemoryDevice) DMABuf(uint64, uint64) (*os.File, uint64, error) {
	return nil, 0, fmt.Errorf("%w: %s exports no dma-bufs", verbs.ErrNotSupported, d.Name())
}

// Share sets the access between processes.
func (d *MemoryDevice) Share(s Sharing) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.shares = s
}

// Opened returns the number of memory ranges opened by handle.
func (d *MemoryDevice) Opened() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opened
}

// ExportMemory implements verbs.MemoryDevice.
func (d *MemoryDevice) ExportMemory(addr, n uint64) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.shares.Export {
		return nil, fmt.Errorf("%w: %s has no handles", verbs.ErrNotSupported, d.Name())
	}
	return binary.NativeEndian.AppendUint64(binary.NativeEndian.AppendUint64(nil, addr), n), nil
}

// OpenMemory implements verbs.MemoryDevice.
func (d *MemoryDevice) OpenMemory(handle []byte) (*verbs.Memory, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(handle) != 16 || !d.shares.Open {
		return nil, fmt.Errorf("%w: a handle of %d bytes that is not valid", verbs.ErrInvalid, len(handle))
	}
	addr, n := binary.NativeEndian.Uint64(handle), binary.NativeEndian.Uint64(handle[8:])
	for _, b := range d.blocks {
		if off := addr - b.addr; off < uint64(len(b.bytes)) && n > 0 && n <= uint64(len(b.bytes))-off {
			return d.add(b.bytes[off:][:n:n], true)
		}
	}
	return nil, fmt.Errorf("%w: %d bytes at %#x are not allocated", verbs.ErrInvalid, n, addr)
}
