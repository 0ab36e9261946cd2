//go:build race

package softnic

import "sync/atomic"

// kernelOrder tells the race detector what the kernel does: what happened before a packet was sent is seen by
// the one who has received it.
type kernelOrder struct{ packets atomic.Uint32 }

func (o *kernelOrder) sent()     { o.packets.Add(1) }
func (o *kernelOrder) received() { o.packets.Load() }
