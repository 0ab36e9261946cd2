package sim

import (
	"errors"
	"math/rand/v2"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// Pool holds memory reused by successive worlds: NIC memory and a table of random bytes. Only one
// goroutine at a time may use it.
type Pool struct {
	table []byte                  // all contents are pieces of it
	free  map[int][]*verbs.Memory // by size
}

const (
	// maxMessage is the largest request in bytes.
	maxMessage = 256 << 10
	// contentSpace is the number of contents. Content n begins at byte n of the table, so contents
	// with different numbers differ.
	contentSpace = 512 << 10
)

// NewPool returns an empty pool.
func NewPool() *Pool {
	p := &Pool{table: make([]byte, contentSpace+maxMessage), free: make(map[int][]*verbs.Memory)}
	r := rand.NewPCG(1, 2)
	for i := 0; i < len(p.table); i += 8 {
		v := r.Uint64()
		for k := range 8 {
			p.table[i+k] = byte(v >> (8 * k))
		}
	}
	return p
}

// content returns the first n bytes of a content.
func (p *Pool) content(from uint32, n int) []byte { return p.table[from:][:n] }

// take returns memory of at least size bytes.
func (p *Pool) take(size int) (*verbs.Memory, error) {
	rounded := ring.CeilPow2(max(size, 64<<10))
	if l := p.free[rounded]; len(l) > 0 {
		p.free[rounded] = l[:len(l)-1]
		return l[len(l)-1], nil
	}
	return verbs.AllocMemory(rounded, nil)
}

// give returns memory to the pool.
func (p *Pool) give(m *verbs.Memory) { p.free[m.Len()] = append(p.free[m.Len()], m) }

// Close frees the memory. It returns verbs.ErrBusy if some of it is still registered.
func (p *Pool) Close() error {
	var errs []error
	for size, l := range p.free {
		for _, m := range l {
			errs = append(errs, m.Free())
		}
		delete(p.free, size)
	}
	return errors.Join(errs...)
}
