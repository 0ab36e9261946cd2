package abi

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"syscall"

	"ibverbx/dropin/internal/cm"
)

// Commands (RDMA_USER_CM_CMD_*).
const (
	cmdCreateID     = 0
	cmdDestroyID    = 1
	cmdBindIP       = 2
	cmdResolveIP    = 3
	cmdResolveRoute = 4
	cmdQueryRoute   = 5
	cmdConnect      = 6
	cmdListen       = 7
	cmdAccept       = 8
	cmdReject       = 9
	cmdDisconnect   = 10
	cmdInitQPAttr   = 11
	cmdGetEvent     = 12
	cmdSetOption    = 14
	cmdNotify       = 15
	cmdJoinIP       = 16
	cmdLeave        = 17
	cmdMigrateID    = 18
)

// The structures of rdma_user_cm.h, named after the commands. All padding is explicit.
type (
	createID struct {
		UID, Response uint64
		Space         uint16
		QPType        uint8
		_             [5]byte
	}
	destroyID struct { // and queries
		Response uint64
		ID, _    uint32
	}
	bindIP struct {
		Response uint64
		Addr     sockaddr
		ID       uint32
	}
	resolveIP struct {
		Src, Dst    sockaddr
		ID, Timeout uint32
	}
	resolveRoute struct{ ID, Timeout uint32 }
	queryRoute   struct {
		GUID     [8]byte
		Routes   [2]pathRecord
		Src, Dst sockaddr
		Paths    uint32
		Port     uint8
		_        [3]byte
		Index, _ uint32
	}
	connParam struct {
		QPN, QKey                          uint32
		Private                            [256]byte
		PrivateLen, SRQ                    uint8
		ResponderResources, InitiatorDepth uint8
		FlowControl, Retry, RNRRetry       uint8
		Valid                              uint8
	}
	connect struct {
		Param connParam
		ID, _ uint32
		ECE   [8]byte
	}
	listen struct {
		ID      uint32
		Backlog int32
	}
	accept struct {
		UID   uint64
		Param connParam
		ID, _ uint32
		ECE   [8]byte
	}
	reject struct {
		ID                 uint32
		PrivateLen, Reason uint8
		_                  [2]byte
		Private            [256]byte
	}
	oneID      struct{ ID uint32 }
	initQPAttr struct {
		Response  uint64
		ID, State uint32
	}
	event struct {
		UID      uint64
		ID, Type uint32
		Status   int32
		Param    connParam
		_        [32]byte // rdma_ucm_ud_param is larger
		_        uint32
		ECE      [8]byte
	}
	setOption struct {
		Value                   uint64
		ID, Level, Name, Length uint32
	}
	udEvent struct { // an event of datagrams
		UID        uint64
		ID, Type   uint32
		Status     int32
		QPN, QKey  uint32
		To         address
		Private    [256]byte
		PrivateLen uint8
		_          [7]byte
		_          uint32
		ECE        [8]byte
	}
	joinIP struct {
		Response, UID uint64
		Addr          sockaddr
		ID            uint32
	}
	notify    struct{ ID, Event uint32 }
	migrateID struct {
		Response uint64
		ID, FD   uint32
	}
	pathRecord struct { // ib_user_path_rec; integers of more than a byte are big-endian unless they are flags
		DGID, SGID                  [16]byte
		DLID, SLID                  uint16
		Raw                         uint32
		Flow                        uint32
		Reversible, MTU             uint32
		PKey                        uint16
		HopLimit, Class, Number, SL uint8
		MTUSelector, RateSelector   uint8
		Rate                        uint8
		LifeSelector, Life, _       uint8
	}
	address struct { // ib_uverbs_ah_attr
		DGID                     [16]byte
		Flow                     uint32
		Index, HopLimit, Class   uint8
		_                        uint8
		DLID                     uint16
		SL, Bits, Rate, IsGlobal uint8
		Port, _                  uint8
	}
	qpAttr struct { // ib_uverbs_qp_attr
		Mask, State, Current, MTU, Migration uint32
		QKey, RQPSN, SQPSN, DestQPN, Access  uint32
		To, _                                address
		_                                    [5]uint32
		PKeyIndex, _                         uint16
		_, _                                 uint8
		MaxRdAtomic, MaxDestRdAtomic         uint8
		MinRNRTimer, Port                    uint8
		Timeout, Retry, RNRRetry             uint8
		_                                    [7]byte
	}
)

// sockaddr is a sockaddr_in or sockaddr_in6.
type sockaddr [28]byte

// addrPort reads an address. A zero family returns the zero AddrPort.
func (s *sockaddr) addrPort() (netip.AddrPort, error) {
	port := binary.BigEndian.Uint16(s[2:])
	switch binary.NativeEndian.Uint16(s[:]) {
	case 0:
		return netip.AddrPort{}, nil
	case syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(s[4:8])), port), nil
	case syscall.AF_INET6:
		a := netip.AddrFrom16([16]byte(s[8:24])).Unmap()
		if zone := binary.NativeEndian.Uint32(s[24:]); zone != 0 && a.Is6() {
			a = a.WithZone(strconv.FormatUint(uint64(zone), 10))
		}
		return netip.AddrPortFrom(a, port), nil
	}
	return netip.AddrPort{}, syscall.EINVAL
}

// sockaddrOf writes an address. An invalid one is all zeros.
func sockaddrOf(a netip.AddrPort) (s sockaddr) {
	if !a.IsValid() {
		return s
	}
	binary.BigEndian.PutUint16(s[2:], a.Port())
	if a.Addr().Is4() {
		binary.NativeEndian.PutUint16(s[:], syscall.AF_INET)
		*(*[4]byte)(s[4:]) = a.Addr().As4()
		return s
	}
	binary.NativeEndian.PutUint16(s[:], syscall.AF_INET6)
	*(*[16]byte)(s[8:]) = a.Addr().As16()
	zone, _ := strconv.ParseUint(a.Addr().Zone(), 10, 32) // 0 without a zone
	binary.NativeEndian.PutUint32(s[24:], uint32(zone))
	return s
}

// param returns the parameters of a program.
func (p *connParam) param() cm.Param {
	return cm.Param{
		QPN: p.QPN, QKey: p.QKey, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth, FlowControl: p.FlowControl, Retry: p.Retry,
		RNRRetry: p.RNRRetry, SRQ: p.SRQ,
	}
}

// private returns the private data of a program.
func (p *connParam) private() []byte { return p.Private[:p.PrivateLen] }

// eventOf returns an event as a program sees it.
func eventOf(e *cm.Event) any {
	p := &e.Param
	if e.AH != nil {
		return &udEvent{
			UID: e.UID, ID: e.ID, Type: uint32(e.Type), Status: e.Status, QPN: p.QPN, QKey: p.QKey, To: addressOf(e.AH),
			Private: private(&p.Private), PrivateLen: p.Private.Len,
		}
	}
	return &event{UID: e.UID, ID: e.ID, Type: uint32(e.Type), Status: e.Status, Param: connParam{
		QPN: p.QPN, Private: private(&p.Private), PrivateLen: p.Private.Len, SRQ: p.SRQ, ResponderResources: p.ResponderResources, InitiatorDepth: p.InitiatorDepth,
		FlowControl: p.FlowControl, Retry: p.Retry, RNRRetry: p.RNRRetry,
	}}
}

func private(p *cm.Private) (b [256]byte) {
	copy(b[:], p.Data[:])
	return b
}
