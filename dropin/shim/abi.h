// The interface between the C shim and the Go core: flat values, and the functions that the core exports as ibx_NAME.
// Objects are numbers above 0. Functions return 0 or an errno unless they say otherwise. core/abi.go has the same
// structures; core/cgo.go checks that their layouts agree.
#ifndef IBX_ABI_H
#define IBX_ABI_H

#include <stdint.h>

// IBX_ABI changes whenever a structure or a function of this file does, so that a shim never uses the core of another build.
#define IBX_ABI 9

#define IBX_MAX_DEVICES 16
#define IBX_MAX_SGE 4

struct ibx_device {
	char name[64];
	uint64_t guid;
	// gids is the number of rows of the GID table, and ifindex the network interface of the port, 0 if it is not known.
	uint32_t gids, ifindex;
};

struct ibx_device_attr {
	uint64_t guid;
	uint64_t max_mr_size;
	char fw[16];
	int32_t max_qp, max_qp_wr, max_sge, max_cq, max_cqe, max_mr, max_pd;
	int32_t max_qp_rd_atom, max_qp_init_rd_atom, max_ah, max_srq, max_srq_wr, max_srq_sge, max_inline;
};

struct ibx_port_attr {
	uint64_t max_msg;
	uint32_t state, max_mtu, active_mtu, gids, pkeys, lid, link_layer;
	uint32_t ifindex;
};

struct ibx_ah_attr {
	uint8_t dgid[16];
	uint32_t flow_label;
	uint16_t dlid;
	uint8_t sgid_index, hop_limit, traffic_class, sl, port, reserved;
};

struct ibx_qp_attr {
	uint32_t state, cur_state, path_mtu, qkey, rq_psn, sq_psn, dest_qpn, access;
	struct ibx_ah_attr ah;
	uint16_t pkey_index;
	uint8_t port, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, timeout, retry_cnt, rnr_retry, sqd_notify;
	uint16_t reserved;
};

struct ibx_qp_config {
	uint64_t cookie;
	uint32_t type, send_cq, recv_cq, srq;
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline, signal_all;
};

struct ibx_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

// Layouts of verbs.SendWR, verbs.RecvWR and verbs.WC. With more than IBX_MAX_SGE elements listed is 1, and sge[0].addr is the address of
// an array of them.
struct ibx_send {
	uint64_t wr_id, remote_addr, compare_add, swap, ah;
	uint32_t imm, rkey, remote_qpn, remote_qkey;
	uint8_t opcode, flags, num_sge, listed, reserved[4];
	struct ibx_sge sge[IBX_MAX_SGE];
};

struct ibx_recv {
	uint64_t wr_id;
	uint8_t num_sge, listed, reserved[6];
	struct ibx_sge sge[IBX_MAX_SGE];
};

struct ibx_wc {
	uint64_t wr_id;
	uint8_t status, opcode, flags, sl;
	uint32_t vendor_err, byte_len, imm, qpn, src_qpn;
	uint16_t slid, pkey_index;
	uint32_t reserved;
	uint64_t timestamp;
};

// ibx_event is an asynchronous event. cookie is that of the affected object, and 0 for events of the device.
struct ibx_event {
	uint64_t cookie;
	uint32_t type, port;
};

// ibx_delivered counts the events of an object that the program has taken. It must acknowledge all of them
// before the object can go.
struct ibx_delivered {
	uint32_t completion, async;
};

// IBX_CM_RESPONSE is the size of the longest response of cm_command.
#define IBX_CM_RESPONSE 336

// The functions of the core: name, parameters, arguments. start returns the number of devices or a negative errno, poll_cq
// the number of completions or a negative errno. post_send posts all requests or none if posted is NULL.
#define IBX_CORE(X) \
	X(abi, (void), ()) \
	X(start, (struct ibx_device * devices, int32_t max), (devices, max)) \
	X(finish, (void), ()) \
	X(open, (int32_t device, int32_t async_fd, uint32_t *context), (device, async_fd, context)) \
	X(close, (uint32_t context), (context)) \
	X(query_device, (uint32_t context, struct ibx_device_attr * attr), (context, attr)) \
	X(query_port, (uint32_t context, int32_t port, struct ibx_port_attr *attr), (context, port, attr)) \
	X(query_gid, (uint32_t context, int32_t port, int32_t index, uint8_t *gid), (context, port, index, gid)) \
	X(read_clock, (uint32_t context, uint64_t *ticks, uint64_t *hz), (context, ticks, hz)) \
	X(next_event, (uint32_t context, struct ibx_event * event), (context, event)) \
	X(alloc_pd, (uint32_t context, uint32_t *pd), (context, pd)) \
	X(dealloc_pd, (uint32_t pd), (pd)) \
	X(reg_mr, (uint32_t pd, void *addr, uint64_t length, uint64_t iova, uint32_t access, uint32_t *mr, uint32_t *key), (pd, addr, length, iova, access, mr, key)) \
	X(rereg_mr, (uint32_t mr, uint32_t pd, void *addr, uint64_t length, uint64_t iova, uint32_t access), (mr, pd, addr, length, iova, access)) \
	X(dereg_mr, (uint32_t mr), (mr)) \
	X(create_channel, (uint32_t context, int32_t fd, uint32_t *channel), (context, fd, channel)) \
	X(destroy_channel, (uint32_t channel), (channel)) \
	X(take_event, (uint32_t channel, uint64_t *cookie), (channel, cookie)) \
	X(create_cq, (uint32_t context, int32_t depth, uint32_t channel, uint64_t cookie, int32_t stamps, uint32_t *cq, int32_t *got), (context, depth, channel, cookie, stamps, cq, got)) \
	X(resize_cq, (uint32_t cq, int32_t depth, int32_t *got), (cq, depth, got)) \
	X(poll_cq, (uint32_t cq, struct ibx_wc * wc, int32_t n), (cq, wc, n)) \
	X(arm_cq, (uint32_t cq, int32_t solicited), (cq, solicited)) \
	X(destroy_cq, (uint32_t cq, struct ibx_delivered * delivered), (cq, delivered)) \
	X(create_srq, (uint32_t pd, int32_t max_wr, int32_t max_sge, int32_t limit, uint64_t cookie, uint32_t *srq), (pd, max_wr, max_sge, limit, cookie, srq)) \
	X(limit_srq, (uint32_t srq, int32_t limit), (srq, limit)) \
	X(query_srq, (uint32_t srq, int32_t *limit), (srq, limit)) \
	X(post_srq, (uint32_t srq, struct ibx_recv * wrs, int32_t n, int32_t *posted), (srq, wrs, n, posted)) \
	X(destroy_srq, (uint32_t srq, struct ibx_delivered * delivered), (srq, delivered)) \
	X(create_qp, (uint32_t pd, struct ibx_qp_config * config, uint32_t *qp, uint32_t *qpn), (pd, config, qp, qpn)) \
	X(modify_qp, (uint32_t qp, struct ibx_qp_attr * attr, uint32_t mask), (qp, attr, mask)) \
	X(query_qp, (uint32_t qp, struct ibx_qp_attr * attr), (qp, attr)) \
	X(post_send, (uint32_t qp, struct ibx_send * wrs, int32_t n, int32_t *posted), (qp, wrs, n, posted)) \
	X(post_recv, (uint32_t qp, struct ibx_recv * wrs, int32_t n, int32_t *posted), (qp, wrs, n, posted)) \
	X(attach_mcast, (uint32_t qp, const uint8_t *mgid), (qp, mgid)) \
	X(detach_mcast, (uint32_t qp, const uint8_t *mgid), (qp, mgid)) \
	X(destroy_qp, (uint32_t qp, struct ibx_delivered * delivered), (qp, delivered)) \
	X(create_ah, (uint32_t pd, struct ibx_ah_attr * attr, uint32_t *ah, uint64_t *number), (pd, attr, ah, number)) \
	X(destroy_ah, (uint32_t ah), (ah)) \
	X(cm_open, (int32_t fd, uint32_t *file), (fd, file)) \
	X(cm_command, (uint32_t file, const void *command, uint32_t length, const void *value, uint32_t value_length, uint32_t from, void *response, uint32_t *response_length), (file, command, length, value, value_length, from, response, response_length)) \
	X(cm_close, (uint32_t file), (file))

#endif
