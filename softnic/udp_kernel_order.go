//go:build !race

package softnic

// kernelOrder models the kernel's memory ordering: writes made before a packet was sent are visible to
// its receiver. Only the race detector needs the model.
type kernelOrder struct{}

func (*kernelOrder) sent()     {}
func (*kernelOrder) received() {}
