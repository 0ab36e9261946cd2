//go:build linux && cgo && !386 && !arm && !mips && !mipsle

package rdmacore

// #cgo CFLAGS: -O2 -Wall -fno-strict-aliasing
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"syscall"
	"unsafe"

	"ibverbx/verbs"
)

// handle is the address of an object that C allocated. Go never dereferences it.
type handle uintptr

// assertZero does not compile unless its argument, a constant, is 0.
type assertZero [1]struct{}

// The flat values have the same layout in both languages.
var (
	_ = assertZero{}[unsafe.Sizeof(verbs.SendWR{})-unsafe.Sizeof(C.struct_flat_send{})]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.WRID)-unsafe.Offsetof(C.struct_flat_send{}.wrid)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.RemoteAddr)-unsafe.Offsetof(C.struct_flat_send{}.remote_addr)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.CompareAdd)-unsafe.Offsetof(C.struct_flat_send{}.compare_add)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.Swap)-unsafe.Offsetof(C.struct_flat_send{}.swap)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.AH)-unsafe.Offsetof(C.struct_flat_send{}.ah)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.Imm)-unsafe.Offsetof(C.struct_flat_send{}.imm)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.RKey)-unsafe.Offsetof(C.struct_flat_send{}.rkey)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.RemoteQPN)-unsafe.Offsetof(C.struct_flat_send{}.remote_qpn)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.RemoteQKey)-unsafe.Offsetof(C.struct_flat_send{}.remote_qkey)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.Opcode)-unsafe.Offsetof(C.struct_flat_send{}.opcode)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.Flags)-unsafe.Offsetof(C.struct_flat_send{}.flags)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.NumSGE)-unsafe.Offsetof(C.struct_flat_send{}.num_sge)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SendWR{}.SGE)-unsafe.Offsetof(C.struct_flat_send{}.sge)]

	_ = assertZero{}[unsafe.Sizeof(verbs.RecvWR{})-unsafe.Sizeof(C.struct_flat_recv{})]
	_ = assertZero{}[unsafe.Offsetof(verbs.RecvWR{}.WRID)-unsafe.Offsetof(C.struct_flat_recv{}.wrid)]
	_ = assertZero{}[unsafe.Offsetof(verbs.RecvWR{}.NumSGE)-unsafe.Offsetof(C.struct_flat_recv{}.num_sge)]
	_ = assertZero{}[unsafe.Offsetof(verbs.RecvWR{}.SGE)-unsafe.Offsetof(C.struct_flat_recv{}.sge)]

	_ = assertZero{}[unsafe.Sizeof(verbs.SGE{})-unsafe.Sizeof(C.struct_vb_sge{})]
	_ = assertZero{}[unsafe.Offsetof(verbs.SGE{}.Addr)-unsafe.Offsetof(C.struct_vb_sge{}.addr)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SGE{}.Length)-unsafe.Offsetof(C.struct_vb_sge{}.length)]
	_ = assertZero{}[unsafe.Offsetof(verbs.SGE{}.LKey)-unsafe.Offsetof(C.struct_vb_sge{}.lkey)]
	_ = assertZero{}[verbs.MaxSGE-len(C.struct_flat_send{}.sge)]
	_ = assertZero{}[verbs.MaxSGE-len(C.struct_flat_recv{}.sge)]

	_ = assertZero{}[unsafe.Sizeof(verbs.WC{})-unsafe.Sizeof(C.struct_flat_wc{})]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.WRID)-unsafe.Offsetof(C.struct_flat_wc{}.wrid)]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.Status)-unsafe.Offsetof(C.struct_flat_wc{}.status)]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.Opcode)-unsafe.Offsetof(C.struct_flat_wc{}.opcode)]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.Flags)-unsafe.Offsetof(C.struct_flat_wc{}.flags)]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.SL)-unsafe.Offsetof(C.struct_flat_wc{}.sl)]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.VendorErr)-unsafe.Offsetof(C.struct_flat_wc{}.vendor_err)]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.ByteLen)-unsafe.Offsetof(C.struct_flat_wc{}.byte_len)]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.Imm)-unsafe.Offsetof(C.struct_flat_wc{}.imm)]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.QPN)-unsafe.Offsetof(C.struct_flat_wc{}.qpn)]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.SrcQPN)-unsafe.Offsetof(C.struct_flat_wc{}.src_qpn)]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.SLID)-unsafe.Offsetof(C.struct_flat_wc{}.slid)]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.PKeyIndex)-unsafe.Offsetof(C.struct_flat_wc{}.pkey_index)]
	_ = assertZero{}[unsafe.Offsetof(verbs.WC{}.Timestamp)-unsafe.Offsetof(C.struct_flat_wc{}.timestamp)]
)

// Reasons of the shim, rather than a driver, for stopping a post.
const (
	badOpcode    = C.SHIM_BAD_OPCODE
	badSGEs      = C.SHIM_BAD_SGES
	badFlags     = C.SHIM_BAD_FLAGS
	tooLong      = C.SHIM_TOO_LONG
	inlineOpcode = C.SHIM_INLINE_OPCODE
	inlineLength = C.SHIM_INLINE_LENGTH
	atomicLength = C.SHIM_ATOMIC_LENGTH
	noAH         = C.SHIM_NO_AH
	stopped      = C.SHIM_STOPPED
	busy         = C.SHIM_BUSY
)

// Fields that an extended CQ reports.
const (
	cqFields    = C.VB_CQ_EX_BYTE_LEN | C.VB_CQ_EX_IMM | C.VB_CQ_EX_QP_NUM | C.VB_CQ_EX_SRC_QP | C.VB_CQ_EX_SLID | C.VB_CQ_EX_SL
	cqTimestamp = C.VB_CQ_EX_TIMESTAMP

	cqSingleThreaded = C.VB_CQ_SINGLE_THREADED // a flag of extended CQs
)

func (h handle) c() C.uintptr_t { return C.uintptr_t(h) }

// flag converts a bool to C.
func flag(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}

// The data path. Addresses of Go memory are passed as numbers, because cgo would check every
// request behind a typed pointer. The caller keeps the memory alive, and on the heap, until the
// call returns. Numbers do not escape, which makes noescape useless, and nocallback would cost two
// calls.

func cPostSend(qp handle, wrs uintptr, n int) int64 {
	return int64(C.shim_post_send(qp.c(), C.uintptr_t(wrs), C.uint32_t(n)))
}

func cPostRecv(qp handle, wrs uintptr, n int) int64 {
	return int64(C.shim_post_recv(qp.c(), C.uintptr_t(wrs), C.uint32_t(n)))
}

func cPostSRQ(srq handle, wrs uintptr, n int) int64 {
	return int64(C.shim_post_srq(srq.c(), C.uintptr_t(wrs), C.uint32_t(n)))
}

func cPoll(cq handle, dst uintptr, n int) int64 {
	return int64(C.shim_poll(cq.c(), C.uintptr_t(dst), C.uint32_t(n)))
}

// loadResult is the outcome of cLoad.
type loadResult int

const (
	loaded     loadResult = C.SHIM_LOADED
	noLibrary  loadResult = C.SHIM_NO_LIBRARY
	oldLibrary loadResult = C.SHIM_OLD_LIBRARY
)

// cLoad opens a library. The text is the dynamic linker's message or the missing symbol.
func cLoad(path string) (lib handle, text string, res loadResult) {
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	var (
		out C.uintptr_t
		buf [512]C.char
	)
	res = loadResult(C.shim_load(p, &out, &buf[0], C.size_t(len(buf))))
	return handle(out), C.GoString(&buf[0]), res
}

func cUnload(lib handle) { C.shim_unload(lib.c()) }

func cForkInit(lib handle) syscall.Errno { return syscall.Errno(C.shim_fork_init(lib.c())) }

// deviceInfo is an entry of the library's device list.
type deviceInfo struct {
	name, path string
	guid       verbs.GUID
	transport  int
}

// cDevices returns the devices and the list that holds them, for cOpen.
func cDevices(lib handle) (list handle, devices []deviceInfo, errno syscall.Errno) {
	var l C.uintptr_t
	var n C.uint32_t
	if e := C.shim_devices(lib.c(), &l, &n); e != 0 {
		return 0, nil, syscall.Errno(e)
	}
	for i := range n {
		var d C.struct_shim_device
		C.shim_device_at(lib.c(), l, i, &d)
		devices = append(devices, deviceInfo{
			name: C.GoString(&d.name[0]), path: C.GoString(&d.path[0]), guid: verbs.GUID(d.guid), transport: int(d.transport),
		})
	}
	return handle(l), devices, 0
}

func cFreeDevices(lib, list handle) { C.shim_devices_free(lib.c(), list.c()) }

// opened is an open device.
type opened struct {
	ctx              handle
	asyncFD, vectors int
	extendedCQ       bool
	dmaBuf           bool
}

func cOpen(lib, list handle, index int) (opened, syscall.Errno) {
	var o C.struct_shim_opened
	e := C.shim_open(lib.c(), list.c(), C.uint32_t(index), &o)
	return opened{
		ctx: handle(o.ctx), asyncFD: int(o.async_fd), vectors: int(o.vectors), extendedCQ: o.extended_cq != 0, dmaBuf: o.dmabuf != 0,
	}, syscall.Errno(e)
}

func cClose(lib, ctx handle) syscall.Errno { return syscall.Errno(C.shim_close(lib.c(), ctx.c())) }

// cQueryDevice returns the attributes and the frequency of the timestamp clock, 0 without
// timestamps.
func cQueryDevice(lib, ctx handle) (a verbs.DeviceAttr, clockKHz uint64, errno syscall.Errno) {
	var d C.struct_vb_device_attr
	var khz C.uint64_t
	if e := C.shim_query_device(lib.c(), ctx.c(), &d, &khz); e != 0 {
		return a, 0, syscall.Errno(e)
	}
	return verbs.DeviceAttr{
		FWVersion:         C.GoString(&d.fw_ver[0]),
		NodeGUID:          guid(uint64(d.node_guid)),
		SysImageGUID:      guid(uint64(d.sys_image_guid)),
		VendorID:          uint32(d.vendor_id),
		VendorPartID:      uint32(d.vendor_part_id),
		HWVersion:         uint32(d.hw_ver),
		Ports:             int(d.phys_port_cnt),
		MaxMRSize:         uint64(d.max_mr_size),
		MaxMR:             int(d.max_mr),
		MaxPD:             int(d.max_pd),
		MaxQP:             int(d.max_qp),
		MaxQPWR:           int(d.max_qp_wr),
		MaxSGE:            min(int(d.max_sge), verbs.MaxSGE),
		MaxCQ:             int(d.max_cq),
		MaxCQE:            int(d.max_cqe),
		MaxSRQ:            int(d.max_srq),
		MaxSRQWR:          int(d.max_srq_wr),
		MaxSRQSGE:         min(int(d.max_srq_sge), verbs.MaxSGE),
		MaxAH:             int(d.max_ah),
		MaxQPRdAtomic:     int(d.max_qp_rd_atom),
		MaxQPInitRdAtomic: int(d.max_qp_init_rd_atom),
		Atomic:            verbs.AtomicCap(d.atomic_cap),
	}, uint64(khz), 0
}

func cReadClock(ctx handle) (ticks uint64, errno syscall.Errno) {
	var t C.uint64_t
	e := C.shim_read_clock(ctx.c(), &t)
	return uint64(t), syscall.Errno(e)
}

func cQueryPort(lib, ctx handle, port int) (verbs.PortAttr, syscall.Errno) {
	var p C.struct_vb_port_attr
	if e := C.shim_query_port(lib.c(), ctx.c(), C.uint8_t(port), &p); e != 0 {
		return verbs.PortAttr{}, syscall.Errno(e)
	}
	return verbs.PortAttr{
		State:     verbs.PortState(p.state),
		MaxMTU:    verbs.MTU(p.max_mtu),
		ActiveMTU: verbs.MTU(p.active_mtu),
		GIDs:      int(p.gid_tbl_len),
		PKeys:     int(p.pkey_tbl_len),
		MaxMsg:    uint64(p.max_msg_sz),
		LID:       uint16(p.lid),
		SMLID:     uint16(p.sm_lid),
		LMC:       uint8(p.lmc),
		LinkLayer: linkLayer(uint8(p.link_layer)),
		SpeedMbps: portSpeed(uint8(p.active_width), uint8(p.active_speed)),
	}, 0
}

// gidRow is a row of a GID table in the library's form.
type gidRow struct {
	verbs.GIDEntry
	port    int
	ifindex int
	hasType bool
}

func toGIDRow(r *C.struct_vb_gid_entry) gidRow {
	return gidRow{
		GIDEntry: verbs.GIDEntry{GID: *(*verbs.GID)(unsafe.Pointer(&r.gid)), Index: int(r.gid_index), Type: verbs.GIDType(r.gid_type)},
		port:     int(r.port_num), ifindex: int(r.ndev_ifindex), hasType: true,
	}
}

func cQueryGID(lib, ctx handle, port, index int) (gidRow, syscall.Errno) {
	var (
		r       C.struct_vb_gid_entry
		hasType C.uint32_t
	)
	e := C.shim_query_gid(lib.c(), ctx.c(), C.uint32_t(port), C.uint32_t(index), &r, &hasType)
	row := toGIDRow(&r)
	row.Index, row.port, row.hasType = index, port, hasType != 0
	return row, syscall.Errno(e)
}

// cGIDTable returns the non-empty rows of all ports, or ENOSYS if the library lacks the call.
func cGIDTable(lib, ctx handle, limit int) ([]gidRow, syscall.Errno) {
	raw := make([]C.struct_vb_gid_entry, max(limit, 1))
	n := C.shim_gid_table(lib.c(), ctx.c(), &raw[0], C.size_t(len(raw)))
	if n < 0 {
		return nil, syscall.Errno(-n)
	}
	rows := make([]gidRow, 0, n)
	for i := range raw[:n] {
		rows = append(rows, toGIDRow(&raw[i]))
	}
	return rows, 0
}

func cAllocPD(lib, ctx handle) (handle, syscall.Errno) {
	var pd C.uintptr_t
	e := C.shim_alloc_pd(lib.c(), ctx.c(), &pd)
	return handle(pd), syscall.Errno(e)
}

func cDeallocPD(lib, pd handle) syscall.Errno {
	return syscall.Errno(C.shim_dealloc_pd(lib.c(), pd.c()))
}

// region is a registered region.
type region struct {
	mr         handle
	lkey, rkey uint32
}

func cRegMR(lib, pd handle, addr, length uint64, access verbs.Access) (region, syscall.Errno) {
	var r C.struct_shim_region
	e := C.shim_reg_mr(lib.c(), pd.c(), C.uint64_t(addr), C.uint64_t(length), C.uint32_t(access), &r)
	return region{mr: handle(r.mr), lkey: uint32(r.lkey), rkey: uint32(r.rkey)}, syscall.Errno(e)
}

func cRegDMABuf(lib, pd handle, offset, length, iova uint64, fd int, access verbs.Access) (region, syscall.Errno) {
	var r C.struct_shim_region
	e := C.shim_reg_dmabuf(lib.c(), pd.c(), C.uint64_t(offset), C.uint64_t(length), C.uint64_t(iova), C.int(fd), C.uint32_t(access), &r)
	return region{mr: handle(r.mr), lkey: uint32(r.lkey), rkey: uint32(r.rkey)}, syscall.Errno(e)
}

func cDeregMR(lib, mr handle) syscall.Errno {
	return syscall.Errno(C.shim_dereg_mr(lib.c(), mr.c()))
}

func cCreateChannel(lib, ctx handle) (channel handle, fd int, errno syscall.Errno) {
	var ch C.uintptr_t
	var d C.int32_t
	e := C.shim_create_channel(lib.c(), ctx.c(), &ch, &d)
	return handle(ch), int(d), syscall.Errno(e)
}

func cDestroyChannel(lib, channel handle) syscall.Errno {
	return syscall.Errno(C.shim_destroy_channel(lib.c(), channel.c()))
}

// queue is a CQ or an SRQ. Events refer to it by its key.
type queue struct {
	h, key handle
	depth  int
}

// cqInit holds the settings of a new CQ. It is plain if fields is 0; flags and singlePoll are then ignored.
// singlePoll is for drivers whose ibv_next_poll is broken.
type cqInit struct {
	depth, vector int
	channel       handle
	fields        uint64
	flags         uint32
	singlePoll    bool
}

func cCreateCQ(lib, ctx handle, in *cqInit) (queue, syscall.Errno) {
	var q C.struct_shim_queue
	e := C.shim_create_cq(lib.c(), ctx.c(), C.uint32_t(in.depth), in.channel.c(), C.uint32_t(in.vector), C.uint64_t(in.fields),
		C.uint32_t(in.flags), flag(in.singlePoll), &q)
	return queue{h: handle(q.queue), key: handle(q.key), depth: int(q.depth)}, syscall.Errno(e)
}

func cDestroyCQ(lib, cq handle) syscall.Errno {
	return syscall.Errno(C.shim_destroy_cq(lib.c(), cq.c()))
}

func cArm(cq handle, solicitedOnly bool) syscall.Errno {
	return syscall.Errno(C.shim_arm(cq.c(), flag(solicitedOnly)))
}

func cCQEvent(lib, channel handle) (key handle, errno syscall.Errno) {
	var k C.uintptr_t
	e := C.shim_cq_event(lib.c(), channel.c(), &k)
	return handle(k), syscall.Errno(e)
}

func cAckCQEvent(lib, key handle) { C.shim_ack_cq_event(lib.c(), key.c()) }

func cCreateSRQ(lib, pd handle, maxWR, maxSGE int) (queue, syscall.Errno) {
	var q C.struct_shim_queue
	e := C.shim_create_srq(lib.c(), pd.c(), C.uint32_t(maxWR), C.uint32_t(maxSGE), &q)
	return queue{h: handle(q.queue), key: handle(q.key), depth: int(q.depth)}, syscall.Errno(e)
}

func cSetLimit(lib, srq handle, limit int) syscall.Errno {
	return syscall.Errno(C.shim_set_limit(lib.c(), srq.c(), C.uint32_t(limit)))
}

func cDestroySRQ(lib, srq handle) syscall.Errno {
	return syscall.Errno(C.shim_destroy_srq(lib.c(), srq.c()))
}

// qpInit holds the settings of a new QP.
type qpInit struct {
	typ                  verbs.QPType
	sendCQ, recvCQ, srq  handle
	maxSendWR, maxRecvWR int
	maxSendSGE           int
	maxRecvSGE           int
	maxInline            int
	maxMsg               uint64
	legal                uint8 // bit i: opcode i may be posted
	signalAll            bool
}

// createdQP is a QP. Events refer to it by its key.
type createdQP struct {
	h, key    handle
	num       uint32
	maxInline int
}

func cCreateQP(lib, pd handle, in *qpInit) (createdQP, syscall.Errno) {
	init := C.struct_shim_qp_init{
		send_cq: in.sendCQ.c(), recv_cq: in.recvCQ.c(), srq: in.srq.c(), max_msg: C.uint64_t(in.maxMsg),
		cap: C.struct_vb_qp_cap{
			max_send_wr: C.uint32_t(in.maxSendWR), max_recv_wr: C.uint32_t(in.maxRecvWR),
			max_send_sge: C.uint32_t(in.maxSendSGE), max_recv_sge: C.uint32_t(in.maxRecvSGE), max_inline_data: C.uint32_t(in.maxInline),
		},
		_type: C.uint8_t(in.typ), legal: C.uint8_t(in.legal), signal_all: C.uint8_t(flag(in.signalAll)),
	}
	var made C.struct_shim_qp_made
	e := C.shim_create_qp(lib.c(), pd.c(), &init, &made)
	return createdQP{h: handle(made.qp), key: handle(made.key), num: uint32(made.num), maxInline: int(made.max_inline)}, syscall.Errno(e)
}

func cDestroyQP(lib, qp handle) syscall.Errno {
	return syscall.Errno(C.shim_destroy_qp(lib.c(), qp.c()))
}

func cFreeQP(qp handle) { C.shim_free_qp(qp.c()) }

// cSetGate returns false while another goroutine is posting.
func cSetGate(qp handle, side gateSide, open bool) bool {
	return C.shim_set_gate(qp.c(), C.uint32_t(side), flag(open)) == 0
}

func cPosts(qp handle) uint64 { return uint64(C.shim_posts(qp.c())) }

func toAHAttr(a *verbs.AHAttr, global bool) (out C.struct_vb_ah_attr) {
	*(*verbs.GID)(unsafe.Pointer(&out.grh.dgid)) = a.DGID
	out.grh.flow_label = C.uint32_t(a.FlowLabel)
	out.grh.sgid_index = C.uint8_t(a.SGIDIndex)
	out.grh.hop_limit = C.uint8_t(a.HopLimit)
	out.grh.traffic_class = C.uint8_t(a.TrafficClass)
	out.dlid = C.uint16_t(a.DLID)
	out.sl = C.uint8_t(a.SL)
	out.port_num = C.uint8_t(a.Port)
	if global {
		out.is_global = 1
	}
	return out
}

// cModifyQP changes the attributes in mask. global is set if packets carry a GRH.
func cModifyQP(lib, qp handle, a *verbs.QPAttr, global bool, mask verbs.QPAttrMask) syscall.Errno {
	attr := C.struct_vb_qp_attr{
		qp_state: C.int(a.State), cur_qp_state: C.int(a.CurState), path_mtu: C.int(a.PathMTU),
		qkey: C.uint32_t(a.QKey), rq_psn: C.uint32_t(a.RQPSN), sq_psn: C.uint32_t(a.SQPSN), dest_qp_num: C.uint32_t(a.DestQPN),
		qp_access_flags: C.uint(a.Access), ah_attr: toAHAttr(&a.AH, global), pkey_index: C.uint16_t(a.PKeyIndex),
		max_rd_atomic: C.uint8_t(a.MaxRdAtomic), max_dest_rd_atomic: C.uint8_t(a.MaxDestRdAtomic),
		min_rnr_timer: C.uint8_t(a.MinRNRTimer), port_num: C.uint8_t(a.Port), timeout: C.uint8_t(a.Timeout),
		retry_cnt: C.uint8_t(a.RetryCount), rnr_retry: C.uint8_t(a.RNRRetry),
	}
	if a.SQDNotify {
		attr.en_sqd_async_notify = 1
	}
	return syscall.Errno(C.shim_modify_qp(lib.c(), qp.c(), &attr, C.int(mask)))
}

func cQPState(lib, qp handle) (verbs.QPState, syscall.Errno) {
	var s C.int32_t
	e := C.shim_query_qp_state(lib.c(), qp.c(), &s)
	return verbs.QPState(s), syscall.Errno(e)
}

func cCreateAH(lib, pd handle, a *verbs.AHAttr, global bool) (handle, syscall.Errno) {
	var h C.uintptr_t
	attr := toAHAttr(a, global)
	e := C.shim_create_ah(lib.c(), pd.c(), &attr, &h)
	return handle(h), syscall.Errno(e)
}

func cDestroyAH(lib, ah handle) syscall.Errno {
	return syscall.Errno(C.shim_destroy_ah(lib.c(), ah.c()))
}

// asyncEvent is an event in the library's form. element is a key or a port.
type asyncEvent struct {
	element handle
	typ     int32
}

func cAsyncEvent(lib, ctx handle) (asyncEvent, syscall.Errno) {
	var ev C.struct_shim_event
	e := C.shim_async_event(lib.c(), ctx.c(), &ev)
	return asyncEvent{element: handle(ev.element), typ: int32(ev._type)}, syscall.Errno(e)
}

func cAckAsyncEvent(lib handle, ev asyncEvent) {
	e := C.struct_shim_event{element: ev.element.c(), _type: C.int32_t(ev.typ)}
	C.shim_ack_async_event(lib.c(), &e)
}
