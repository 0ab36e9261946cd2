//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import "runtime"

// Crossings returns how often the data path of a QP or CQ went into C.
func Crossings(object any) uint64 {
	switch o := object.(type) {
	case *qp:
		defer runtime.KeepAlive(o)
		return cPosts(o.h)
	case *cq:
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.cPolls
	}
	return 0
}
