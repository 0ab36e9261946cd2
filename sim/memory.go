package sim

import (
	"errors"
	"math/rand/v2"

	"ibverbx/internal/ring"
	"ibverbx/verbs"
)

// Pool keeps what worlds use one after the other: memory for NICs, and a table of random
// bytes that all contents are taken from. It is for one goroutine at a time.
type Pool struct {
	table []byte
	free  map[int][]*verbs.Memory // by size
}

// Contents are pieces of a table: two that begin at different places have nothing in
// common, and to compare one costs as much as to compare two buffers.
const (
	maxMessage   = 256 << 10
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

// content returns n bytes of the content that begins at from.
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

// give takes memory back.
func (p *Pool) give(m *verbs.Memory) { p.free[m.Len()] = append(p.free[m.Len()], m) }

// Close frees the memory. It fails if a world has left some of it registered.
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
