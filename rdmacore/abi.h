// The part of the stable ABI of libibverbs.so.1 (version IBVERBS_1.1 and later) that this
// package uses. The names are our own. Sizes and offsets have been the same since 2006.
// abi_test.go compares each field and constant with the library's headers where they are
// installed.

#ifndef IBVERBX_ABI_H
#define IBVERBX_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum {
	VB_NAME_MAX = 64,
	VB_PATH_MAX = 256,

	VB_SRQ_LIMIT = 2, // bit in the mask of modify_srq

	VB_CQ_EX_BYTE_LEN = 1 << 0, // fields that an extended CQ must report
	VB_CQ_EX_IMM = 1 << 1,
	VB_CQ_EX_QP_NUM = 1 << 2,
	VB_CQ_EX_SRC_QP = 1 << 3,
	VB_CQ_EX_SLID = 1 << 4,
	VB_CQ_EX_SL = 1 << 5,
	VB_CQ_EX_TIMESTAMP = 1 << 7,

	VB_CQ_INIT_FLAGS = 1 << 0, // bit in comp_mask of vb_cq_init_attr_ex: flags is valid
	VB_CQ_SINGLE_THREADED = 1 << 0,

	VB_VALUES_CLOCK = 1 << 0, // bit in comp_mask of vb_values_ex
};

struct vb_context;
struct vb_cq_ex;

struct vb_gid {
	uint64_t word[2]; // the 16 bytes in order; aligned as a number
};

struct vb_gid_entry {
	struct vb_gid gid;
	uint32_t gid_index;
	uint32_t port_num;
	uint32_t gid_type;
	uint32_t ndev_ifindex;
};

struct vb_device {
	void *unused[2];
	int node_type;
	int transport_type;
	char name[VB_NAME_MAX];
	char dev_name[VB_NAME_MAX];
	char dev_path[VB_PATH_MAX];
	char ibdev_path[VB_PATH_MAX];
};

struct vb_device_attr {
	char fw_ver[64];
	uint64_t node_guid; // big-endian
	uint64_t sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int max_ee_rd_atom;
	int max_res_rd_atom;
	int max_qp_init_rd_atom;
	int max_ee_init_rd_atom;
	int atomic_cap;
	int max_ee;
	int max_rdd;
	int max_mw;
	int max_raw_ipv6_qp;
	int max_raw_ethy_qp;
	int max_mcast_grp;
	int max_mcast_qp_attach;
	int max_total_mcast_qp_attach;
	int max_ah;
	int max_fmr;
	int max_map_per_fmr;
	int max_srq;
	int max_srq_wr;
	int max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
};

// The extended attributes grow at their end. This is their beginning.
struct vb_device_attr_ex {
	struct vb_device_attr orig_attr;
	uint32_t comp_mask;
	uint64_t odp_general_caps;
	uint32_t odp_transport_caps[3];
	uint64_t completion_timestamp_mask;
	uint64_t hca_core_clock;
};

struct vb_port_attr {
	int state;
	int max_mtu;
	int active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags;
	uint32_t max_msg_sz;
	uint32_t bad_pkey_cntr;
	uint32_t qkey_viol_cntr;
	uint16_t pkey_tbl_len;
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t lmc;
	uint8_t max_vl_num;
	uint8_t sm_sl;
	uint8_t subnet_timeout;
	uint8_t init_type_reply;
	uint8_t active_width;
	uint8_t active_speed;
	uint8_t phys_state;
	uint8_t link_layer;
	uint8_t flags;
	uint16_t port_cap_flags2;
};

struct vb_pd {
	struct vb_context *context;
	uint32_t handle;
};

struct vb_mr {
	struct vb_context *context;
	struct vb_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

struct vb_global_route {
	struct vb_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
};

struct vb_ah_attr {
	struct vb_global_route grh;
	uint16_t dlid;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
};

struct vb_ah {
	struct vb_context *context;
	struct vb_pd *pd;
	uint32_t handle;
};

struct vb_comp_channel {
	struct vb_context *context;
	int fd;
	int refcnt;
};

struct vb_cq {
	struct vb_context *context;
	struct vb_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events_completed;
	uint32_t async_events_completed;
};

struct vb_poll_cq_attr {
	uint32_t comp_mask;
};

// An extended CQ starts with a plain CQ.
struct vb_cq_ex {
	struct vb_cq base;
	uint32_t comp_mask;
	int status;
	uint64_t wr_id;
	int (*start_poll)(struct vb_cq_ex *, struct vb_poll_cq_attr *);
	int (*next_poll)(struct vb_cq_ex *);
	void (*end_poll)(struct vb_cq_ex *);
	int (*read_opcode)(struct vb_cq_ex *);
	uint32_t (*read_vendor_err)(struct vb_cq_ex *);
	uint32_t (*read_byte_len)(struct vb_cq_ex *);
	uint32_t (*read_imm_data)(struct vb_cq_ex *); // big-endian
	uint32_t (*read_qp_num)(struct vb_cq_ex *);
	uint32_t (*read_src_qp)(struct vb_cq_ex *);
	unsigned int (*read_wc_flags)(struct vb_cq_ex *);
	uint32_t (*read_slid)(struct vb_cq_ex *);
	uint8_t (*read_sl)(struct vb_cq_ex *);
	uint8_t (*read_dlid_path_bits)(struct vb_cq_ex *);
	uint64_t (*read_completion_ts)(struct vb_cq_ex *);
};

struct vb_cq_init_attr_ex {
	uint32_t cqe;
	void *cq_context;
	struct vb_comp_channel *channel;
	uint32_t comp_vector;
	uint64_t wc_flags;
	uint32_t comp_mask;
	uint32_t flags;
	struct vb_pd *parent_domain;
};

// seconds and nanoseconds are those of a timespec. Drivers put the ticks of the device's clock there.
struct vb_values_ex {
	uint32_t comp_mask;
	int64_t seconds;
	int64_t nanoseconds;
};

struct vb_wc {
	uint64_t wr_id;
	uint32_t status;
	uint32_t opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data; // big-endian
	uint32_t qp_num;
	uint32_t src_qp;
	uint32_t wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

struct vb_srq_attr {
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t srq_limit;
};

struct vb_srq_init_attr {
	void *srq_context;
	struct vb_srq_attr attr;
};

struct vb_srq {
	struct vb_context *context;
	void *srq_context;
	struct vb_pd *pd;
	uint32_t handle;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct vb_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
};

struct vb_qp_init_attr {
	void *qp_context;
	struct vb_cq *send_cq;
	struct vb_cq *recv_cq;
	struct vb_srq *srq;
	struct vb_qp_cap cap;
	int qp_type;
	int sq_sig_all;
};

struct vb_qp_attr {
	int qp_state;
	int cur_qp_state;
	int path_mtu;
	int path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	unsigned int qp_access_flags;
	struct vb_qp_cap cap;
	struct vb_ah_attr ah_attr;
	struct vb_ah_attr alt_ah_attr;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint32_t rate_limit;
};

struct vb_qp {
	struct vb_context *context;
	void *qp_context;
	struct vb_pd *pd;
	struct vb_cq *send_cq;
	struct vb_cq *recv_cq;
	struct vb_srq *srq;
	uint32_t handle;
	uint32_t qp_num;
	int state;
	int qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct vb_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct vb_send_wr {
	uint64_t wr_id;
	struct vb_send_wr *next;
	struct vb_sge *sg_list;
	int num_sge;
	int opcode;
	unsigned int send_flags;
	uint32_t imm_data; // big-endian
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		struct {
			uint64_t remote_addr;
			uint64_t compare_add;
			uint64_t swap;
			uint32_t rkey;
		} atomic;
		struct {
			struct vb_ah *ah;
			uint32_t remote_qpn;
			uint32_t remote_qkey;
		} ud;
	} wr;
	uint64_t unused[7]; // XRC, memory windows, segmentation offload
};

struct vb_recv_wr {
	uint64_t wr_id;
	struct vb_recv_wr *next;
	struct vb_sge *sg_list;
	int num_sge;
};

struct vb_async_event {
	union {
		void *object; // CQ, QP or SRQ
		int port_num;
	} element;
	int event_type;
};

// The operations that every post and poll goes through. The fields named old are reserved by
// the library for programs older than IBVERBS_1.1.
struct vb_context_ops {
	void *old1[11];
	int (*poll_cq)(struct vb_cq *, int, struct vb_wc *);
	int (*req_notify_cq)(struct vb_cq *, int);
	void *old2[7];
	int (*post_srq_recv)(struct vb_srq *, struct vb_recv_wr *, struct vb_recv_wr **);
	void *old3[4];
	int (*post_send)(struct vb_qp *, struct vb_send_wr *, struct vb_send_wr **);
	int (*post_recv)(struct vb_qp *, struct vb_recv_wr *, struct vb_recv_wr **);
	void *old4[5];
};

struct vb_context {
	struct vb_device *device;
	struct vb_context_ops ops;
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};

// Newer operations are in a structure before the context, which grows at its front. size
// tells which operations exist. A context that has the structure has all bits set in
// abi_compat.
struct vb_context_ex {
	int (*query_port)(struct vb_context *, uint8_t, struct vb_port_attr *, size_t);
	void *unused1[23];
	int (*query_rt_values)(struct vb_context *, struct vb_values_ex *);
	struct vb_cq_ex *(*create_cq_ex)(struct vb_context *, struct vb_cq_init_attr_ex *);
	void *unused2;
	int (*query_device_ex)(struct vb_context *, const void *, struct vb_device_attr_ex *, size_t);
	void *unused3[10];
	uint64_t unused4;
	size_t size;
	struct vb_context context;
};

#endif
