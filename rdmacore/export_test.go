//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import "runtime"

// Crossings returns the number of data-path calls of a QP or CQ into C.
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
