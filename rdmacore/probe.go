//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

import (
	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// probe detects the capabilities of the device by trying them: libibverbs cannot list the
// supported transports.
func (x *nicContext) probe() {
	caps := verbs.Capabilities(0)
	if x.attr.MaxSRQ > 0 {
		caps |= verbs.CapSRQ
	}
	if x.clockKHz != 0 && x.opened.extendedCQ {
		caps |= verbs.CapTimestamp
	}
	if x.opened.dmaBuf && x.probeDMABuf() {
		caps |= verbs.CapDMABuf
	}
	caps |= x.probeTransports()
	caps |= driverCaps(x.dev.Driver())
	x.caps = caps
}

// driverCaps returns the capabilities that cannot be probed without a peer: the behavior of a QP in
// the error state. CapSQD is never set: drivers of current hardware refuse SQD, and Soft-RoCE
// accepts it, but loses requests posted before the return to RTS.
func driverCaps(driver string) verbs.Capabilities {
	if driver == "rdma_rxe" {
		return 0 // a receive posted in ERR waits until the QP is reset
	}
	return verbs.CapFlushOnPost
}

// probeTransports detects optional QP types by creating a QP of each.
func (x *nicContext) probeTransports() (caps verbs.Capabilities) {
	pd, errno := cAllocPD(x.lib, x.h)
	if errno != 0 {
		return 0
	}
	defer func() { _ = cDeallocPD(x.lib, pd) }()
	cq, errno := cCreateCQ(x.lib, x.h, &cqInit{depth: 1})
	if errno != 0 {
		return 0
	}
	defer func() { _ = cDestroyCQ(x.lib, cq.h) }()
	exists := func(t verbs.QPType, srq handle) bool {
		in := qpInit{typ: t, sendCQ: cq.h, recvCQ: cq.h, srq: srq, maxSendWR: 1, maxSendSGE: 1, maxRecvSGE: 1}
		if srq == 0 {
			in.maxRecvWR = 1
		}
		q, errno := cCreateQP(x.lib, pd, &in)
		if errno != 0 {
			return false
		}
		defer cFreeQP(q.h)
		return cDestroyQP(x.lib, q.h) == 0
	}
	types := []struct {
		typ        verbs.QPType
		has, onSRQ verbs.Capabilities
	}{{verbs.RC, verbs.CapRC, 0}, {verbs.UC, verbs.CapUC, verbs.CapSRQOnUC}, {verbs.UD, verbs.CapUD, verbs.CapSRQOnUD}}
	for _, t := range types {
		if exists(t.typ, 0) {
			caps |= t.has
		}
	}
	if x.attr.MaxSRQ == 0 {
		return caps
	}
	srq, errno := cCreateSRQ(x.lib, pd, 1, 1)
	if errno != 0 {
		return caps
	}
	defer func() { _ = cDestroySRQ(x.lib, srq.h) }()
	for _, t := range types {
		if caps&t.has != 0 && t.onSRQ != 0 && exists(t.typ, srq.h) {
			caps |= t.onSRQ
		}
	}
	return caps
}

// probeDMABuf tries to register a nonexistent dma-buf. The errno shows whether the driver supports
// dma-bufs.
func (x *nicContext) probeDMABuf() bool {
	pd, errno := cAllocPD(x.lib, x.h)
	if errno != 0 {
		return false
	}
	defer func() { _ = cDeallocPD(x.lib, pd) }()
	r, errno := cRegDMABuf(x.lib, pd, 0, 4096, 0, -1, verbs.AccessLocalWrite)
	if errno == 0 {
		_ = cDeregMR(x.lib, r.mr)
		return true
	}
	return errno == unix.EBADF
}
