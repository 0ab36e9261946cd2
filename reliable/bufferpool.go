package reliable

import (
	"fmt"

	"ibverbx/verbs"
)

// pool is registered memory in slots of equal size. The zero value has no memory.
type pool struct {
	mem  *verbs.Memory // the memory, with mr as its only region
	mr   verbs.MR      // the region of mem, nil in the zero value
	size int           // the length of a slot in bytes
}

func newPool(pd verbs.PD, n, size int) (pool, error) {
	mem, err := verbs.AllocMemory(n*size, nil)
	if err != nil {
		return pool{}, err
	}
	mr, err := pd.RegisterMemory(mem, verbs.AccessLocalWrite)
	if err != nil {
		return pool{}, fmt.Errorf("%w (and %w)", err, mem.Free())
	}
	return pool{mem: mem, mr: mr, size: size}, nil
}

func (p *pool) slot(i int) []byte { return p.mem.Bytes()[i*p.size : (i+1)*p.size] }

func (p *pool) sge(i, n int) verbs.SGE {
	return verbs.SGE{Addr: p.mr.Addr() + uint64(i*p.size), Length: uint32(n), LKey: p.mr.LKey()}
}

func (p *pool) free() {
	if p.mr == nil {
		return
	}
	if p.mr.Close() == nil {
		_ = p.mem.Free() // mr was its only region
	}
	*p = pool{}
}

// recvQueue is a verbs.QP or a verbs.SRQ.
type recvQueue interface {
	PostRecv(wrs []verbs.RecvWR) (int, error)
}

// refill lists the receive buffers to be reposted.
type refill []verbs.RecvWR

// add appends slot i of a pool, under the wr_id id.
func (r *refill) add(id uint64, from *pool, i int) {
	wr := verbs.RecvWR{WRID: id, NumSGE: 1}
	wr.SGE[0] = from.sge(i, from.size)
	*r = append(*r, wr)
}

// post posts the list as one chain and returns the number of accepted buffers. The others stay in the list.
func (r *refill) post(to recvQueue) int {
	n, _ := to.PostRecv(*r)
	*r = (*r)[:copy(*r, (*r)[n:])]
	return n
}
