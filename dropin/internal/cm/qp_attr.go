package cm

import (
	"syscall"

	"ibverbx/verbs"
)

// access lists the remote operations allowed on the QP of a connection.
const access = verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// hopLimit of packets, as Linux's default for RoCE v2.
const hopLimit = 64

// route returns the address vector of the peer's QP.
func (i *id) route() *verbs.AHAttr {
	return &verbs.AHAttr{DGID: i.peer.GID, DLID: i.peer.LID, HopLimit: hopLimit, TrafficClass: i.tos, Port: 1}
}

// QPAttr returns the attributes that move the QP of an id to a state: INIT for an id with a device, RTR and RTS once the
// peer's parameters are known.
func (f *File) QPAttr(number uint32, to verbs.QPState) (a verbs.QPAttr, mask verbs.QPAttrMask, err error) {
	err = f.with(number, func(i *id) error {
		if i.device == nil {
			return syscall.EINVAL
		}
		known := i.state == stateReplied || i.state == stateIncoming || i.state == stateAccepted || i.state == stateConnected || i.state == stateLeaving
		a.State, mask = to, verbs.AttrState
		switch {
		case i.space == SpaceUDP: // for each state, as in the kernel
			a.Port, a.QKey = 1, i.qkey
			mask |= verbs.AttrPKeyIndex | verbs.AttrPort | verbs.AttrQKey
		case to == verbs.StateInit:
			a.Access, a.Port = access, 1
			mask |= verbs.AttrAccess | verbs.AttrPKeyIndex | verbs.AttrPort
		case to == verbs.StateRTR && known:
			a.AH = *i.route()
			a.PathMTU, a.DestQPN, a.RQPSN, a.MaxDestRdAtomic = min(i.own.MTU, i.peer.MTU), i.peer.Param.QPN, i.peer.PSN, i.resources
			mask |= verbs.AttrAV | verbs.AttrPathMTU | verbs.AttrDestQPN | verbs.AttrRQPSN | verbs.AttrMaxDestRdAtomic | verbs.AttrMinRNRTimer
		case to == verbs.StateRTS && known:
			a.SQPSN, a.MaxRdAtomic, a.Timeout, a.RetryCount, a.RNRRetry = i.own.PSN, i.depth, i.own.Timeout, i.retry, i.peer.Param.RNRRetry
			mask |= verbs.AttrSQPSN | verbs.AttrMaxRdAtomic | verbs.AttrTimeout | verbs.AttrRetryCount | verbs.AttrRNRRetry
		default:
			return syscall.EINVAL
		}
		return nil
	})
	return a, mask, err
}
