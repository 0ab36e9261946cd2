package ibverbx

import (
	"errors"
	"fmt"

	"ibverbx/verbs"
)

// Region is memory that is registered on every rail at once.
type Region struct {
	rails  *Rails
	memory *verbs.Memory
	mrs    []verbs.MR
	addr   uint64
	length uint64
	lkeys  [MaxRails]uint32
}

// RemoteRegion is what a peer needs to reach a Region: hand it over by any means. A post
// takes what it needs of it.
type RemoteRegion struct {
	Addr   uint64   `json:"addr"`
	Length uint64   `json:"length"`
	RKeys  []uint32 `json:"rkeys"` // by the index of the rail at the owner's side
}

// Register registers m on every rail.
func (r *Rails) Register(m *verbs.Memory, access verbs.Access) (*Region, error) {
	g := &Region{rails: r, memory: m}
	for i := range r.rails {
		mr, err := r.rails[i].pd.RegisterMemory(m, access)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("register on rail %d (%s): %w", i, r.rails[i].name, err), g.Close())
		}
		g.mrs = append(g.mrs, mr)
		g.lkeys[i] = mr.LKey()
		g.addr, g.length = mr.Addr(), mr.Len()
	}
	return g, nil
}

// Bytes returns the memory.
func (g *Region) Bytes() []byte { return g.memory.Bytes() }

// Len is the number of bytes.
func (g *Region) Len() uint64 { return g.length }

// Remote returns what to give to the peer.
func (g *Region) Remote() *RemoteRegion {
	m := &RemoteRegion{Addr: g.addr, Length: g.length}
	for _, mr := range g.mrs {
		m.RKeys = append(m.RKeys, mr.RKey())
	}
	return m
}

// SGE returns a piece of the region.
func (g *Region) SGE(offset uint64, length uint32) SGE {
	return SGE{Region: g, Offset: offset, Length: length}
}

// Close deregisters the region on every rail.
func (g *Region) Close() error {
	var errs []error
	for _, mr := range g.mrs {
		errs = append(errs, mr.Close())
	}
	return errors.Join(errs...)
}
