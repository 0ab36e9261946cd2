//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

// Crossings returns how often the data path of a QP or CQ went into C.
func Crossings(object any) uint64 {
	switch o := object.(type) {
	case *qp:
		o.send.mu.Lock()
		defer o.send.mu.Unlock()
		o.recv.mu.Lock()
		defer o.recv.mu.Unlock()
		return o.send.crossings + o.recv.crossings
	case *cq:
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.crossings
	}
	return 0
}
