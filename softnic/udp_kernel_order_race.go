//go:build race

package softnic

import "sync/atomic"

// kernelOrder shows the kernel's memory ordering to the race detector: writes made before a packet was
// sent are visible to its receiver.
type kernelOrder struct{ packets atomic.Uint32 }

func (o *kernelOrder) sent()     { o.packets.Add(1) }
func (o *kernelOrder) received() { o.packets.Load() }
