package nullnic

import (
	"fmt"

	"ibverbx/verbs"
)

// remoteBit distinguishes a remote key from the local key of the same region.
const remoteBit = 1 << 31

// mr is a memory region. Its keys are valid only on its own NIC, so that using a key of the wrong
// rail is detected.
type mr struct {
	nic    *NIC
	memory *verbs.Memory
	key    uint32
	closed bool
}

func (d *pd) RegisterMemory(m *verbs.Memory, _ verbs.Access) (verbs.MR, error) {
	if dev := m.Device(); dev != nil {
		return nil, fmt.Errorf("%w: a NIC of nullnic cannot copy memory of %s; register host memory", verbs.ErrNotSupported, dev.Name())
	}
	if err := m.Retain(); err != nil {
		return nil, err
	}
	d.nic.nextKey++
	r := &mr{nic: d.nic, memory: m, key: d.nic.nextKey}
	d.nic.regions[r.key] = r
	return r, nil
}

func (m *mr) Addr() uint64 { return m.memory.Addr() }
func (m *mr) Len() uint64  { return uint64(m.memory.Len()) }
func (m *mr) LKey() uint32 { return m.key }
func (m *mr) RKey() uint32 { return m.key | remoteBit }

func (m *mr) Close() error {
	if !m.closed {
		m.closed = true
		delete(m.nic.regions, m.key)
		m.memory.Release()
	}
	return nil
}

// local returns the bytes of a scatter-gather element, or false if its key or range is invalid.
func (n *NIC) local(e verbs.SGE) ([]byte, bool) { return n.bytes(e.LKey, e.Addr, uint64(e.Length)) }

// remote returns the bytes for a peer's address and remote key.
func (n *NIC) remote(key uint32, addr, length uint64) ([]byte, bool) {
	if key&remoteBit == 0 {
		return nil, false
	}
	return n.bytes(key&^remoteBit, addr, length)
}

func (n *NIC) bytes(key uint32, addr, length uint64) ([]byte, bool) {
	r := n.regions[key]
	if r == nil || addr < r.Addr() || addr-r.Addr() > r.Len() || length > r.Len()-(addr-r.Addr()) {
		return nil, false
	}
	return r.memory.Bytes()[addr-r.Addr():][:length], true
}

// gather returns a copy of the bytes of the elements.
func (n *NIC) gather(sges []verbs.SGE) ([]byte, bool) {
	var all []byte
	for _, e := range sges {
		b, ok := n.local(e)
		if !ok {
			return nil, false
		}
		all = append(all, b...)
	}
	return all, true
}

// scatter copies b to the elements. It returns false if b does not fit or an element is invalid.
func (n *NIC) scatter(sges []verbs.SGE, b []byte) bool {
	for _, e := range sges {
		if len(b) == 0 {
			break
		}
		to, ok := n.local(e)
		if !ok {
			return false
		}
		b = b[copy(to, b):]
	}
	return len(b) == 0
}
