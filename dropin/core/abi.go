//go:build linux && cgo && (amd64 || arm64)

package main

// The structures of dropin/shim/abi.h, field by field. cgo.go compares the layouts.

type abiDevice struct {
	name          [64]byte
	guid          uint64
	gids, ifindex uint32
}

type abiDeviceAttr struct {
	guid                                                             uint64
	maxMRSize                                                        uint64
	fw                                                               [16]byte
	maxQP, maxQPWR, maxSGE, maxCQ, maxCQE, maxMR, maxPD              int32
	maxRdAtomic, maxInitRdAtomic, maxAH, maxSRQ, maxSRQWR, maxSRQSGE int32
	maxInline                                                        int32
}

type abiPortAttr struct {
	maxMsg                                                uint64
	state, maxMTU, activeMTU, gids, pkeys, lid, linkLayer uint32
	ifindex                                               uint32
}

type abiAH struct {
	dgid                                           [16]byte
	flowLabel                                      uint32
	dlid                                           uint16
	sgidIndex, hopLimit, trafficClass, sl, port, _ uint8
}

type abiQPAttr struct {
	state, curState, pathMTU, qkey, rqPSN, sqPSN, destQPN, access uint32
	ah                                                            abiAH
	pkeyIndex                                                     uint16
	port, maxRdAtomic, maxDestRdAtomic, minRNRTimer               uint8
	timeout, retryCount, rnrRetry, sqdNotify                      uint8
	_                                                             uint16
}

type abiQPConfig struct {
	cookie                                                             uint64
	typ, sendCQ, recvCQ, srq                                           uint32
	maxSendWR, maxRecvWR, maxSendSGE, maxRecvSGE, maxInline, signalAll uint32
}

type abiEvent struct {
	cookie    uint64
	typ, port uint32
}

type abiDelivered struct{ completion, async uint32 }
