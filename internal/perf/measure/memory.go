package measure

import (
	"cmp"
	"fmt"

	"ibverbx"
	"ibverbx/internal/closer"
	"ibverbx/verbs"
)

// HostMemory is the name for host memory in Run.Options.
const HostMemory = "host"

// Memory selects the memory for one side's buffers. The zero value is host memory.
type Memory struct {
	// Device is the name of the memory device, such as cuda:0. Empty means the host.
	Device string
	// Alloc returns size bytes and a function that frees them once they are unused. Nil means
	// verbs.AllocMemory.
	Alloc func(size int) (mem *verbs.Memory, free func() error, err error)
}

// String returns the name used in Run.Options.
func (m Memory) String() string { return cmp.Or(m.Device, HostMemory) }

// MarshalText implements encoding.TextMarshaler.
func (m Memory) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Memory) UnmarshalText(b []byte) error {
	m.Device = string(b)
	return nil
}

// take allocates memory and registers its release with closers.
func (m *Memory) take(size int, closers *closer.Stack) (mem *verbs.Memory, err error) {
	free := func() error { return mem.Free() }
	if m.Alloc != nil {
		mem, free, err = m.Alloc(size)
	} else {
		mem, err = verbs.AllocMemory(size, nil)
	}
	if err == nil {
		closers.Add(free)
	}
	return mem, err
}

// onDevice reports whether the buffers of at least one side are in device memory.
func (c *Config) onDevice() bool { return c.Memory[0].Device != "" || c.Memory[1].Device != "" }

// memoryRules refuse operations that device memory does not support.
func (c *Config) memoryRules() (rules []rule) {
	for side := range c.Memory {
		target := side == 1 || c.Bidirectional
		rules = append(rules, rule{
			c.Op == Atomic && target && c.Memory[side].Device != "", "memory", c.Memory[side].Device,
			"NICs do no atomics on memory of a device", "use --memory host at the target of atomics, or measure write, read or send",
		})
	}
	return rules
}

// memory is the registered memory of one side; buffers are cut from it.
type memory struct {
	bytes []byte // nil if the memory is in another process or on a device
	// device is the memory if it is on a device, instead of bytes; otherwise nil.
	device *verbs.Memory
	// scratch stages one message from or to device; nil if device is nil.
	scratch []byte
	used    int // bytes already assigned to buffers
	region  *ibverbx.Region
	remote  *ibverbx.RemoteRegion
	nics    string // NIC names, for errors
}

// attach uses local memory for messages of the given size, and clears it. This also takes the page
// faults before the measurement.
func (m *memory) attach(bytes []byte, mem *verbs.Memory, size int) error {
	if m.bytes = bytes; mem == nil || mem.Device() == nil {
		clear(m.bytes)
		return nil
	}
	m.device, m.scratch = mem, make([]byte, size)
	zeros := make([]byte, min(mem.Len(), 1<<20))
	for off := 0; off < mem.Len(); off += len(zeros) {
		if _, err := mem.WriteAt(zeros[:min(len(zeros), mem.Len()-off)], int64(off)); err != nil {
			return err
		}
	}
	return nil
}

// here reports whether the memory is in this process.
func (m *memory) here() bool { return m.bytes != nil || m.device != nil }

// buffer holds message slots in the memory of one side.
type buffer struct {
	*memory
	base   int // offset of the first slot in the memory
	places int // per QP
	stride int // bytes from one slot to the next
	head   int // bytes before the message in its slot
	size   int // message size in bytes
}

// buffer cuts a buffer with the given number of slots per QP from the memory.
func (m *memory) buffer(p *plan, places int) *buffer {
	b := &buffer{memory: m, base: m.used, places: places, stride: p.stride, head: p.head, size: p.size}
	m.used += p.areaBytes(places)
	return b
}

func (b *buffer) offset(queue int, message int64) int {
	return b.base + (queue*b.places+int(message%int64(b.places)))*b.stride + b.head
}

// message returns the slot of a message in host memory.
func (b *buffer) message(queue int, message int64) []byte {
	off := b.offset(queue, message)
	return b.bytes[off : off+b.size : off+b.size]
}

// load returns the bytes of a message. Bytes loaded from a device are valid until the next load or
// fill.
func (b *buffer) load(queue int, message int64) ([]byte, error) {
	if b.device == nil {
		return b.message(queue, message), nil
	}
	if _, err := b.device.ReadAt(b.scratch, int64(b.offset(queue, message))); err != nil {
		return nil, fmt.Errorf("--check: %w", err)
	}
	return b.scratch, nil
}

// fill writes the pattern of a seed to the slot of a message.
func (b *buffer) fill(queue int, message int64, seed uint64) error {
	if b.device == nil {
		fillPattern(b.message(queue, message), seed)
		return nil
	}
	fillPattern(b.scratch, seed)
	if _, err := b.device.WriteAt(b.scratch, int64(b.offset(queue, message))); err != nil {
		return fmt.Errorf("--check: %w", err)
	}
	return nil
}

// sge returns the SGE of a message's slot, with grh bytes before it.
func (b *buffer) sge(queue int, message int64, grh int) ibverbx.SGE {
	return ibverbx.SGE{Region: b.region, Offset: uint64(b.offset(queue, message) - grh), Length: uint32(b.size + grh)}
}
