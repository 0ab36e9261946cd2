//go:build linux && cgo && (amd64 || arm64)

package main

// The structures of dropin/shim/seam.h, field by field. cgo.go compares the layouts.

type seamDevice struct {
	name          [64]byte
	guid          uint64
	gids, ifindex uint32
}

type seamDeviceAttr struct {
	guid                                                             uint64
	maxMRSize                                                        uint64
	fw                                                               [16]byte
	maxQP, maxQPWR, maxSGE, maxCQ, maxCQE, maxMR, maxPD              int32
	maxRdAtomic, maxInitRdAtomic, maxAH, maxSRQ, maxSRQWR, maxSRQSGE int32
	maxInline                                                        int32
}

type seamPortAttr struct {
	maxMsg                                                uint64
	state, maxMTU, activeMTU, gids, pkeys, lid, linkLayer uint32
	ifindex                                               uint32
}

type seamAH struct {
	dgid                                           [16]byte
	flowLabel                                      uint32
	dlid                                           uint16
	sgidIndex, hopLimit, trafficClass, sl, port, _ uint8
}

type seamQPAttr struct {
	state, curState, pathMTU, qkey, rqPSN, sqPSN, destQPN, access uint32
	ah                                                            seamAH
	pkeyIndex                                                     uint16
	port, maxRdAtomic, maxDestRdAtomic, minRNRTimer               uint8
	timeout, retryCount, rnrRetry, sqdNotify                      uint8
	_                                                             uint16
}

type seamQPConfig struct {
	cookie                                                             uint64
	typ, sendCQ, recvCQ, srq                                           uint32
	maxSendWR, maxRecvWR, maxSendSGE, maxRecvSGE, maxInline, signalAll uint32
}

type seamEvent struct {
	cookie    uint64
	typ, port uint32
}

type seamDelivered struct{ completion, async uint32 }
