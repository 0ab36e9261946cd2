//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"errors"

	"ibverbx/verbs"
)

// describe fills in the shim's description of an unopened NIC.
func (d *abiDevice) describe(of device) error {
	d.guid = uint64(of.nic.GUID())
	copy(d.name[:len(d.name)-1], of.nic.Name())
	ctx, err := of.nic.Open()
	if err != nil {
		return err
	}
	port, err := ctx.QueryPort(1)
	if err != nil {
		return errors.Join(err, ctx.Close())
	}
	d.gids, d.ifindex = uint32(port.GIDs), interfaceOf(of.addr)
	return ctx.Close()
}

func (l *library) queryDevice(n uint32, to *abiDeviceAttr) error {
	x := l.contexts.get(n)
	if x == nil {
		return gone
	}
	a, err := x.QueryDevice()
	if err != nil {
		return err
	}
	*to = abiDeviceAttr{
		guid: uint64(a.NodeGUID), maxMRSize: a.MaxMRSize,
		maxQP: int32(a.MaxQP), maxQPWR: int32(a.MaxQPWR), maxSGE: int32(a.MaxSGE), maxCQ: int32(a.MaxCQ), maxCQE: int32(a.MaxCQE),
		maxMR: int32(a.MaxMR), maxPD: int32(a.MaxPD), maxRdAtomic: int32(a.MaxQPRdAtomic), maxInitRdAtomic: int32(a.MaxQPInitRdAtomic),
		maxAH: int32(a.MaxAH), maxSRQ: int32(a.MaxSRQ), maxSRQWR: int32(a.MaxSRQWR), maxSRQSGE: int32(a.MaxSRQSGE),
		maxInline: int32(a.MaxInline),
	}
	copy(to.fw[:len(to.fw)-1], a.FWVersion)
	return nil
}

func (l *library) queryPort(n uint32, port int32, to *abiPortAttr) error {
	x := l.contexts.get(n)
	if x == nil {
		return gone
	}
	a, err := x.QueryPort(int(port))
	if err != nil {
		return err
	}
	if a.LID == 0 {
		a.LID = x.lid
	}
	*to = abiPortAttr{
		maxMsg: a.MaxMsg, state: uint32(a.State), maxMTU: uint32(a.MaxMTU), activeMTU: uint32(a.ActiveMTU),
		gids: uint32(a.GIDs), pkeys: uint32(a.PKeys), lid: uint32(a.LID), linkLayer: uint32(a.LinkLayer), ifindex: x.ifindex,
	}
	return nil
}

// entropy is the first DLID that is not a NIC's UDP port. RoCE programs set the DLID to a UDP source port in this range, to choose among
// equal paths.
const entropy = 0xc000

// attr returns an address vector of package verbs.
func (a *abiAH) attr() verbs.AHAttr {
	to := verbs.AHAttr{
		DGID: a.dgid, SGIDIndex: int(a.sgidIndex), FlowLabel: a.flowLabel, HopLimit: a.hopLimit, TrafficClass: a.trafficClass,
		DLID: a.dlid, SL: a.sl, Port: a.port,
	}
	if to.DLID >= entropy {
		if to.FlowLabel == 0 {
			to.FlowLabel = uint32(to.DLID)
		}
		to.DLID = 0
	}
	return to
}

func (a *abiAH) from(v *verbs.AHAttr) {
	*a = abiAH{
		dgid: v.DGID, flowLabel: v.FlowLabel, dlid: v.DLID, sgidIndex: uint8(v.SGIDIndex), hopLimit: v.HopLimit,
		trafficClass: v.TrafficClass, sl: v.SL, port: v.Port,
	}
}

// attr returns QP attributes of package verbs.
func (a *abiQPAttr) attr() verbs.QPAttr {
	return verbs.QPAttr{
		State: verbs.QPState(a.state), CurState: verbs.QPState(a.curState), PathMTU: verbs.MTU(a.pathMTU), QKey: a.qkey,
		RQPSN: a.rqPSN, SQPSN: a.sqPSN, DestQPN: a.destQPN, Access: verbs.Access(a.access), AH: a.ah.attr(),
		PKeyIndex: a.pkeyIndex, Port: a.port, MaxRdAtomic: a.maxRdAtomic, MaxDestRdAtomic: a.maxDestRdAtomic,
		MinRNRTimer: a.minRNRTimer, Timeout: a.timeout, RetryCount: a.retryCount, RNRRetry: a.rnrRetry, SQDNotify: a.sqdNotify != 0,
	}
}

func (a *abiQPAttr) from(v *verbs.QPAttr) {
	*a = abiQPAttr{
		state: uint32(v.State), curState: uint32(v.CurState), pathMTU: uint32(v.PathMTU), qkey: v.QKey,
		rqPSN: v.RQPSN, sqPSN: v.SQPSN, destQPN: v.DestQPN, access: uint32(v.Access),
		pkeyIndex: v.PKeyIndex, port: v.Port, maxRdAtomic: v.MaxRdAtomic, maxDestRdAtomic: v.MaxDestRdAtomic,
		minRNRTimer: v.MinRNRTimer, timeout: v.Timeout, retryCount: v.RetryCount, rnrRetry: v.RNRRetry,
	}
	a.ah.from(&v.AH)
}
