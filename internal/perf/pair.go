package perf

import (
	"errors"

	"ibverbx"
	"ibverbx/verbs"
)

// poster is a QP as a flow needs it: a VirtualQP, or a UC or UD QP in its clothes.
type poster interface {
	PostSend(wrs []ibverbx.SendWR) (n int, err error)
	PostRecv(wrs []ibverbx.RecvWR) (n int, err error)
}

// end is one end of a row: QPs that share a completion queue, and registered memory.
type end interface {
	// Poll takes completions of sends and receives, as VirtualCQ.Poll does.
	Poll(dst []ibverbx.WC) (n int, err error)
	posters() []poster
	// register makes memory known to the devices. It is called once. local is what an
	// SGE names; remote is for the other end.
	register(mem *verbs.Memory) (local *ibverbx.Region, remote *ibverbx.RemoteRegion, err error)
	// lanes says what the QPs did so far.
	lanes() []ibverbx.LaneStats
	// failure adds to an error what is known about its cause.
	failure(err error) error
}

// pair is both ends of a row, connected, with their memory. What it opens is closed by
// close, in reverse order.
type pair struct {
	ends    [2]end
	memory  [2]memory
	closers []func() error
}

// openPair makes and connects the ends of a row and gives them memory.
func openPair(rails *[2][]ibverbx.RailConfig, c *Config, p *plan) (pr *pair, err error) {
	pr = &pair{}
	if c.virtual() {
		err = pr.openVirtual(rails, c, p)
	} else {
		err = pr.openPlain(rails, c, p)
	}
	for side := range pr.ends {
		if err == nil {
			err = pr.newMemory(side, deviceNames(rails[side]), p)
		}
	}
	if err != nil {
		return nil, errors.Join(err, pr.close())
	}
	return pr, nil
}

func (pr *pair) onClose(f func() error) { pr.closers = append(pr.closers, f) }

// close closes everything, also after an error, and returns all errors.
func (pr *pair) close() error {
	var errs []error
	for i := len(pr.closers) - 1; i >= 0; i-- {
		errs = append(errs, pr.closers[i]())
	}
	pr.closers = nil
	return errors.Join(errs...)
}

// memory is the registered memory of one end, from which buffers are cut.
type memory struct {
	bytes  []byte
	used   int
	region *ibverbx.Region
	remote *ibverbx.RemoteRegion
	device string
}

// newMemory allocates, registers and touches what the flows need at one end.
func (pr *pair) newMemory(side int, device string, p *plan) error {
	mem, err := verbs.AllocMemory(p.endBytes(side), nil)
	if err != nil {
		return err
	}
	pr.onClose(mem.Free)
	m := &pr.memory[side]
	if m.region, m.remote, err = pr.ends[side].register(mem); err != nil {
		return err
	}
	m.bytes, m.device = mem.Bytes(), device
	clear(m.bytes) // the first touch is the system's work, not the NIC's
	return nil
}

// buffer is places for messages in the memory of one end, so many per QP.
type buffer struct {
	*memory
	base         int
	places       int // per QP
	stride, head int
	size         int
}

// buffer cuts so many places per QP from the memory.
func (m *memory) buffer(p *plan, places int) *buffer {
	b := &buffer{memory: m, base: m.used, places: places, stride: p.stride, head: p.head, size: p.size}
	m.used += p.areaBytes(places)
	return b
}

func (b *buffer) offset(queue int, message int64) int {
	return b.base + (queue*b.places+int(message%int64(b.places)))*b.stride + b.head
}

// message returns the bytes of a message: where it stands or will stand.
func (b *buffer) message(queue int, message int64) []byte {
	off := b.offset(queue, message)
	return b.bytes[off : off+b.size : off+b.size]
}

// sge names the place of a message, with grh bytes before it.
func (b *buffer) sge(queue int, message int64, grh int) ibverbx.SGE {
	return ibverbx.SGE{Region: b.region, Offset: uint64(b.offset(queue, message) - grh), Length: uint32(b.size + grh)}
}
