//go:build linux && cgo && (amd64 || arm64)

package main

// #cgo CFLAGS: -I${SRCDIR}/../shim
// #include "abi.h"
import "C"

import (
	"fmt"
	"math"
	"os"
	"syscall"
	"unsafe"

	"ibverbx/dropin"
	"ibverbx/dropin/internal/cm/abi"
	"ibverbx/verbs"
)

// staticAssertZero does not compile unless its argument, a constant, is 0.
type staticAssertZero [1]struct{}

// The structures of abi.h have the same layout in both languages: their last fields have the same offset, and the fields before are in the
// same order.
var (
	_ = staticAssertZero{}[unsafe.Sizeof(abiDevice{})-C.sizeof_struct_ibx_device]
	_ = staticAssertZero{}[unsafe.Offsetof(abiDevice{}.ifindex)-unsafe.Offsetof(C.struct_ibx_device{}.ifindex)]
	_ = staticAssertZero{}[unsafe.Sizeof(abiDeviceAttr{})-C.sizeof_struct_ibx_device_attr]
	_ = staticAssertZero{}[unsafe.Offsetof(abiDeviceAttr{}.maxInline)-unsafe.Offsetof(C.struct_ibx_device_attr{}.max_inline)]
	_ = staticAssertZero{}[unsafe.Sizeof(abiPortAttr{})-C.sizeof_struct_ibx_port_attr]
	_ = staticAssertZero{}[unsafe.Sizeof(abiAH{})-C.sizeof_struct_ibx_ah_attr]
	_ = staticAssertZero{}[unsafe.Offsetof(abiAH{}.port)-unsafe.Offsetof(C.struct_ibx_ah_attr{}.port)]
	_ = staticAssertZero{}[unsafe.Sizeof(abiQPAttr{})-C.sizeof_struct_ibx_qp_attr]
	_ = staticAssertZero{}[unsafe.Offsetof(abiQPAttr{}.ah)-unsafe.Offsetof(C.struct_ibx_qp_attr{}.ah)]
	_ = staticAssertZero{}[unsafe.Offsetof(abiQPAttr{}.sqdNotify)-unsafe.Offsetof(C.struct_ibx_qp_attr{}.sqd_notify)]
	_ = staticAssertZero{}[unsafe.Sizeof(abiQPConfig{})-C.sizeof_struct_ibx_qp_config]
	_ = staticAssertZero{}[unsafe.Offsetof(abiQPConfig{}.signalAll)-unsafe.Offsetof(C.struct_ibx_qp_config{}.signal_all)]
	_ = staticAssertZero{}[unsafe.Sizeof(abiEvent{})-C.sizeof_struct_ibx_event]
	_ = staticAssertZero{}[unsafe.Sizeof(abiDelivered{})-C.sizeof_struct_ibx_delivered]
	_ = staticAssertZero{}[unsafe.Sizeof(verbs.SendWR{})-C.sizeof_struct_ibx_send]
	_ = staticAssertZero{}[unsafe.Offsetof(verbs.SendWR{}.AH)-unsafe.Offsetof(C.struct_ibx_send{}.ah)]
	_ = staticAssertZero{}[unsafe.Offsetof(verbs.SendWR{}.RemoteQKey)-unsafe.Offsetof(C.struct_ibx_send{}.remote_qkey)]
	_ = staticAssertZero{}[unsafe.Offsetof(verbs.SendWR{}.NumSGE)-unsafe.Offsetof(C.struct_ibx_send{}.num_sge)]
	_ = staticAssertZero{}[unsafe.Offsetof(verbs.SendWR{}.Listed)-unsafe.Offsetof(C.struct_ibx_send{}.listed)]
	_ = staticAssertZero{}[unsafe.Offsetof(verbs.SendWR{}.SGE)-unsafe.Offsetof(C.struct_ibx_send{}.sge)]
	_ = staticAssertZero{}[unsafe.Sizeof(verbs.RecvWR{})-C.sizeof_struct_ibx_recv]
	_ = staticAssertZero{}[unsafe.Offsetof(verbs.RecvWR{}.Listed)-unsafe.Offsetof(C.struct_ibx_recv{}.listed)]
	_ = staticAssertZero{}[unsafe.Offsetof(verbs.RecvWR{}.SGE)-unsafe.Offsetof(C.struct_ibx_recv{}.sge)]
	_ = staticAssertZero{}[unsafe.Sizeof(verbs.WC{})-C.sizeof_struct_ibx_wc]
	_ = staticAssertZero{}[unsafe.Offsetof(verbs.WC{}.SL)-unsafe.Offsetof(C.struct_ibx_wc{}.sl)]
	_ = staticAssertZero{}[unsafe.Offsetof(verbs.WC{}.SrcQPN)-unsafe.Offsetof(C.struct_ibx_wc{}.src_qpn)]
	_ = staticAssertZero{}[unsafe.Offsetof(verbs.WC{}.PKeyIndex)-unsafe.Offsetof(C.struct_ibx_wc{}.pkey_index)]
	_ = staticAssertZero{}[unsafe.Offsetof(verbs.WC{}.Timestamp)-unsafe.Offsetof(C.struct_ibx_wc{}.timestamp)]
	_ = staticAssertZero{}[verbs.MaxSGE-C.IBX_MAX_SGE]
	_ = staticAssertZero{}[C.IBX_MAX_DEVICES-dropin.MaxDevices]
)

// process is the library of this process, the receiver of all C calls.
var process = &library{}

//export ibx_abi
func ibx_abi() int32 { return C.IBX_ABI }

//export ibx_start
func ibx_start(devices unsafe.Pointer, n int32) int32 {
	if err := process.start(); err != nil {
		fmt.Fprintf(os.Stderr, "ibverbx: no software NIC: %v\n", err)
		return -errno(err)
	}
	for i, d := range unsafe.Slice((*abiDevice)(devices), n)[:len(process.nics)] {
		if err := d.describe(process.nics[i]); err != nil {
			fmt.Fprintf(os.Stderr, "ibverbx: software NIC %d: %v\n", i, err)
			return -errno(err)
		}
		unsafe.Slice((*abiDevice)(devices), n)[i] = d
	}
	return int32(len(process.nics))
}

//export ibx_finish
func ibx_finish() int32 {
	err := process.finish(os.Stderr)
	if err != nil {
		fmt.Fprintf(os.Stderr, "ibverbx: %v\n", err)
	}
	return errno(err)
}

//export ibx_open
func ibx_open(device, fd int32, out *uint32) int32 {
	n, err := process.open(device, fd)
	*out = n
	return errno(err)
}

//export ibx_close
func ibx_close(n uint32) int32 { return errno(process.close(n)) }

//export ibx_query_device
func ibx_query_device(n uint32, out unsafe.Pointer) int32 {
	return errno(process.queryDevice(n, (*abiDeviceAttr)(out)))
}

//export ibx_query_port
func ibx_query_port(n uint32, port int32, out unsafe.Pointer) int32 {
	return errno(process.queryPort(n, port, (*abiPortAttr)(out)))
}

//export ibx_query_gid
func ibx_query_gid(n uint32, port, index int32, out unsafe.Pointer) int32 {
	x := process.contexts.get(n)
	if x == nil {
		return errno(gone)
	}
	row, err := x.QueryGID(int(port), int(index))
	*(*verbs.GID)(out) = row.GID
	return errno(err)
}

//export ibx_read_clock
func ibx_read_clock(n uint32, ticks, hz *uint64) int32 {
	x := process.contexts.get(n)
	if x == nil {
		return errno(gone)
	}
	c, ok := x.Context.(verbs.ClockReader)
	if !ok {
		return errno(verbs.ErrNotSupported)
	}
	var err error
	*ticks, *hz, err = c.ReadClock()
	return errno(err)
}

//export ibx_next_event
func ibx_next_event(n uint32, out unsafe.Pointer) int32 {
	return errno(process.nextEvent(n, (*abiEvent)(out)))
}

//export ibx_alloc_pd
func ibx_alloc_pd(n uint32, out *uint32) int32 {
	pd, err := process.allocPD(n)
	*out = pd
	return errno(err)
}

//export ibx_dealloc_pd
func ibx_dealloc_pd(n uint32) int32 { return errno(process.deallocPD(n)) }

// mappable reports whether a program can have memory at an address. unsafe.Slice panics if its end overflows, and the runtime stops the process
// if it finds a pointer to the first page.
func mappable(addr uintptr, length uint64) bool {
	return addr >= 4096 && length > 0 && length <= 1<<47 && addr <= math.MaxUint64-uintptr(length)
}

// checkRange returns EINVAL if a program cannot have memory at an address, and EFAULT if it has not mapped all of it, as a kernel does. Access
// to a hole would end the process.
func checkRange(addr uintptr, length uint64) error {
	if !mappable(addr, length) {
		return syscall.EINVAL
	}
	within := addr % uintptr(os.Getpagesize())
	if _, _, no := syscall.Syscall(syscall.SYS_MSYNC, addr-within, uintptr(length)+within, syscall.MS_ASYNC); no == syscall.ENOMEM {
		return syscall.EFAULT
	}
	return nil
}

//export ibx_reg_mr
func ibx_reg_mr(pd uint32, addr unsafe.Pointer, length, iova uint64, access uint32, out, key *uint32) int32 {
	if err := checkRange(uintptr(addr), length); err != nil {
		return errno(err)
	}
	n, k, err := process.register(pd, unsafe.Slice((*byte)(addr), length), iova, verbs.Access(access))
	*out, *key = n, k
	return errno(err)
}

//export ibx_rereg_mr
func ibx_rereg_mr(mr, pd uint32, addr unsafe.Pointer, length, iova uint64, access uint32) int32 {
	if err := checkRange(uintptr(addr), length); err != nil {
		return errno(err)
	}
	return errno(process.reregister(mr, pd, unsafe.Slice((*byte)(addr), length), iova, verbs.Access(access)))
}

//export ibx_dereg_mr
func ibx_dereg_mr(n uint32) int32 { return errno(process.deregister(n)) }

//export ibx_create_channel
func ibx_create_channel(_ uint32, fd int32, out *uint32) int32 {
	*out = process.channels.add(&channel{fd: int(fd)})
	return 0
}

//export ibx_destroy_channel
func ibx_destroy_channel(n uint32) int32 { return errno(process.destroyChannel(n)) }

//export ibx_take_event
func ibx_take_event(n uint32, cookie *uint64) int32 {
	h := process.channels.get(n)
	if h == nil {
		return errno(gone)
	}
	c := h.take()
	if c == nil {
		return int32(syscall.EAGAIN)
	}
	*cookie = c.cookie
	return 0
}

//export ibx_create_cq
func ibx_create_cq(ctx uint32, depth int32, ch uint32, cookie uint64, stamps int32, out *uint32, got *int32) int32 {
	n, d, err := process.createCQ(ctx, verbs.CQConfig{Depth: int(depth), Timestamp: stamps != 0}, ch, cookie)
	*out, *got = n, int32(d)
	return errno(err)
}

//export ibx_resize_cq
func ibx_resize_cq(n uint32, depth int32, got *int32) int32 {
	c := process.cqs.get(n)
	if c == nil {
		return errno(gone)
	}
	d, err := c.resize(int(depth))
	*got = int32(d)
	return errno(err)
}

//export ibx_poll_cq
func ibx_poll_cq(n uint32, wcs unsafe.Pointer, max int32) int32 {
	c := process.cqs.get(n)
	if c == nil {
		return -int32(gone)
	}
	k, err := c.Poll(unsafe.Slice((*verbs.WC)(wcs), max))
	if err != nil {
		return -errno(err)
	}
	return int32(k)
}

//export ibx_arm_cq
func ibx_arm_cq(n uint32, solicited int32) int32 {
	c := process.cqs.get(n)
	if c == nil {
		return errno(gone)
	}
	return errno(c.arm(solicited != 0))
}

//export ibx_destroy_cq
func ibx_destroy_cq(n uint32, out unsafe.Pointer) int32 {
	return errno(process.destroyCQ(n, (*abiDelivered)(out)))
}

//export ibx_create_srq
func ibx_create_srq(pd uint32, maxWR, maxSGE, limit int32, cookie uint64, out *uint32) int32 {
	n, err := process.createSRQ(pd, verbs.SRQConfig{MaxWR: int(maxWR), MaxSGE: int(maxSGE), Limit: int(limit)}, cookie)
	*out = n
	return errno(err)
}

//export ibx_limit_srq
func ibx_limit_srq(n uint32, limit int32) int32 {
	s := process.srqs.get(n)
	if s == nil {
		return errno(gone)
	}
	return errno(s.SetLimit(int(limit)))
}

//export ibx_query_srq
func ibx_query_srq(n uint32, limit *int32) int32 {
	s := process.srqs.get(n)
	if s == nil {
		return errno(gone)
	}
	*limit = int32(s.SRQ.(interface{ Limit() int }).Limit())
	return 0
}

//export ibx_post_srq
func ibx_post_srq(n uint32, wrs unsafe.Pointer, count int32, posted *int32) int32 {
	s := process.srqs.get(n)
	if s == nil {
		return errno(gone)
	}
	k, err := s.PostRecv(unsafe.Slice((*verbs.RecvWR)(wrs), count))
	*posted = int32(k)
	return errno(err)
}

//export ibx_destroy_srq
func ibx_destroy_srq(n uint32, out unsafe.Pointer) int32 {
	async, err := process.destroySRQ(n)
	*(*abiDelivered)(out) = abiDelivered{async: async}
	return errno(err)
}

//export ibx_create_qp
func ibx_create_qp(pd uint32, cfg unsafe.Pointer, out, qpn *uint32) int32 {
	n, num, err := process.createQP(pd, (*abiQPConfig)(cfg))
	*out, *qpn = n, num
	return errno(err)
}

//export ibx_modify_qp
func ibx_modify_qp(n uint32, attr unsafe.Pointer, mask uint32) int32 {
	q := process.qps.get(n)
	if q == nil {
		return errno(gone)
	}
	return errno(q.Modify((*abiQPAttr)(attr).attr(), verbs.QPAttrMask(mask)))
}

//export ibx_query_qp
func ibx_query_qp(n uint32, out unsafe.Pointer) int32 {
	q := process.qps.get(n)
	if q == nil {
		return errno(gone)
	}
	a, err := q.Query()
	(*abiQPAttr)(out).from(&a)
	return errno(err)
}

//export ibx_post_send
func ibx_post_send(n uint32, wrs unsafe.Pointer, count int32, posted *int32) int32 {
	q := process.qps.get(n)
	if q == nil {
		return errno(gone)
	}
	chain := unsafe.Slice((*verbs.SendWR)(wrs), count)
	if posted == nil && count > 1 {
		if err := q.QP.(interface{ Fits([]verbs.SendWR) error }).Fits(chain); err != nil {
			return errno(err)
		}
	}
	k, err := q.PostSend(chain)
	if posted != nil {
		*posted = int32(k)
	}
	return errno(err)
}

//export ibx_post_recv
func ibx_post_recv(n uint32, wrs unsafe.Pointer, count int32, posted *int32) int32 {
	q := process.qps.get(n)
	if q == nil {
		return errno(gone)
	}
	k, err := q.PostRecv(unsafe.Slice((*verbs.RecvWR)(wrs), count))
	*posted = int32(k)
	return errno(err)
}

//export ibx_attach_mcast
func ibx_attach_mcast(n uint32, mgid unsafe.Pointer) int32 {
	err := process.multicast(n, *(*verbs.GID)(mgid), multicaster.AttachMulticast)
	if err != nil {
		fmt.Fprintf(os.Stderr, "ibverbx: %v\n", err) // an errno does not name the valid groups
	}
	return errno(err)
}

//export ibx_detach_mcast
func ibx_detach_mcast(n uint32, mgid unsafe.Pointer) int32 {
	return errno(process.multicast(n, *(*verbs.GID)(mgid), multicaster.DetachMulticast))
}

//export ibx_destroy_qp
func ibx_destroy_qp(n uint32, out unsafe.Pointer) int32 {
	async, err := process.destroyQP(n)
	*(*abiDelivered)(out) = abiDelivered{async: async}
	return errno(err)
}

//export ibx_create_ah
func ibx_create_ah(pd uint32, attr unsafe.Pointer, out *uint32, number *uint64) int32 {
	d := process.pds.get(pd)
	if d == nil {
		return errno(gone)
	}
	a, err := d.CreateAH((*abiAH)(attr).attr())
	if err != nil {
		return errno(err)
	}
	*out, *number = process.ahs.add(&handle{a}), uint64(a.Handle())
	return 0
}

//export ibx_destroy_ah
func ibx_destroy_ah(n uint32) int32 {
	a := process.ahs.get(n)
	if a == nil {
		return errno(gone)
	}
	process.ahs.remove(n)
	return errno(a.Close())
}

//export ibx_cm_open
func ibx_cm_open(fd int32, out *uint32) int32 {
	n, err := process.openCM(int(fd))
	*out = n
	return errno(err)
}

//export ibx_cm_command
func ibx_cm_command(n uint32, cmd unsafe.Pointer, length uint32, value unsafe.Pointer, valueLength, from uint32, response unsafe.Pointer, out *uint32) int32 {
	call := abi.Call{Command: unsafe.Slice((*byte)(cmd), length), Value: unsafe.Slice((*byte)(value), valueLength)}
	b, err := process.commandCM(n, from, call)
	*out = uint32(copy(unsafe.Slice((*byte)(response), C.IBX_CM_RESPONSE), b))
	return errno(err)
}

//export ibx_cm_close
func ibx_cm_close(n uint32) int32 { return errno(process.closeCM(n)) }
