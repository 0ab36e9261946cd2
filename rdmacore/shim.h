// The functions that Go calls. Objects cross as numbers (uintptr_t), work requests and
// completions as arrays of the flat values of package verbs. Unless a comment says otherwise
// a function returns 0 or an errno.

#ifndef IBVERBX_SHIM_H
#define IBVERBX_SHIM_H

#include "abi.h"

// flat_send, flat_recv and flat_wc are verbs.SendWR, verbs.RecvWR and verbs.WC. cgo.go
// compares them field by field at compile time.
struct flat_send {
	uint64_t wrid;
	uint64_t remote_addr;
	uint64_t compare_add;
	uint64_t swap;
	uint64_t ah;
	uint32_t imm;
	uint32_t rkey;
	uint32_t remote_qpn;
	uint32_t remote_qkey;
	uint8_t opcode;
	uint8_t flags;
	uint8_t num_sge;
	uint8_t zero[5];
	struct vb_sge sge[4];
};

struct flat_recv {
	uint64_t wrid;
	uint8_t num_sge;
	uint8_t zero[7];
	struct vb_sge sge[4];
};

struct flat_wc {
	uint64_t wrid;
	uint8_t status;
	uint8_t opcode;
	uint8_t flags;
	uint8_t sl;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm;
	uint32_t qpn;
	uint32_t src_qpn;
	uint16_t slid;
	uint16_t pkey_index;
	uint32_t zero;
	uint64_t timestamp;
};

// Reasons for a post to stop that do not come from a driver. They follow the errnos in the low
// half of the result of the post functions.
enum {
	SHIM_BAD_OPCODE = 1 << 16,
	SHIM_BAD_SGES,
	SHIM_BAD_FLAGS,
	SHIM_TOO_LONG,
	SHIM_INLINE_OPCODE,
	SHIM_INLINE_LENGTH,
	SHIM_ATOMIC_LENGTH,
	SHIM_NO_AH,
	SHIM_STOPPED, // the gate is shut
	SHIM_BUSY,    // another thread is in the gate
};

// Results of shim_load.
enum {
	SHIM_LOADED,
	SHIM_NO_LIBRARY,
	SHIM_OLD_LIBRARY,
	SHIM_NO_MEMORY,
};

// shim_load opens a library. text receives the dynamic linker's message, or the name of the
// missing symbol.
int shim_load(const char *path, uintptr_t *lib, char *text, size_t size);
void shim_unload(uintptr_t lib);
int shim_fork_init(uintptr_t lib);

// shim_devices returns the device list for shim_device_at and shim_open, or an errno.
// shim_devices_free frees it.
struct shim_device {
	char name[VB_NAME_MAX];
	char path[VB_PATH_MAX];
	uint64_t guid; // host order
	int32_t transport;
	int32_t node;
};
int shim_devices(uintptr_t lib, uintptr_t *list, uint32_t *count);
void shim_device_at(uintptr_t lib, uintptr_t list, uint32_t index, struct shim_device *out);
void shim_devices_free(uintptr_t lib, uintptr_t list);

// shim_open opens a device of the list and makes its event descriptor non-blocking.
struct shim_opened {
	uintptr_t ctx;
	int32_t async_fd;
	int32_t vectors;
	uint32_t extended_cq;
	uint32_t dmabuf;
};
int shim_open(uintptr_t lib, uintptr_t list, uint32_t index, struct shim_opened *out);
int shim_close(uintptr_t lib, uintptr_t ctx);

// shim_query_device sets clock_khz to the frequency of the clock of timestamps, 0 if completions have
// none. shim_read_clock reads that clock.
int shim_query_device(uintptr_t lib, uintptr_t ctx, struct vb_device_attr *attr, uint64_t *clock_khz);
int shim_read_clock(uintptr_t ctx, uint64_t *ticks);
int shim_query_port(uintptr_t lib, uintptr_t ctx, uint8_t port, struct vb_port_attr *attr);
// shim_query_gid returns ENODATA for an empty row, and has_type 0 if the library does not
// report the type of a row.
int shim_query_gid(uintptr_t lib, uintptr_t ctx, uint32_t port, uint32_t index, struct vb_gid_entry *row, uint32_t *has_type);
// shim_gid_table returns the number of rows of all ports or a negative errno, which is ENOSYS
// if the library has no such call.
int64_t shim_gid_table(uintptr_t lib, uintptr_t ctx, struct vb_gid_entry *rows, size_t count);

int shim_alloc_pd(uintptr_t lib, uintptr_t ctx, uintptr_t *pd);
int shim_dealloc_pd(uintptr_t lib, uintptr_t pd);

struct shim_region {
	uintptr_t mr;
	uint32_t lkey;
	uint32_t rkey;
};
int shim_reg_mr(uintptr_t lib, uintptr_t pd, uint64_t addr, uint64_t length, uint32_t access, struct shim_region *out);
int shim_reg_dmabuf(uintptr_t lib, uintptr_t pd, uint64_t offset, uint64_t length, uint64_t iova, int fd, uint32_t access,
		    struct shim_region *out);
int shim_dereg_mr(uintptr_t lib, uintptr_t mr);

int shim_create_channel(uintptr_t lib, uintptr_t ctx, uintptr_t *channel, int32_t *fd);
// shim_destroy_channel closes the descriptor even if it fails. No CQ may use the channel.
int shim_destroy_channel(uintptr_t lib, uintptr_t channel);

// shim_create_cq creates a plain CQ, or an extended one with these flags if wc_flags is not 0.
// single_poll means that the driver's next_poll is broken. Completion events and asynchronous
// events refer to the CQ by key.
struct shim_queue {
	uintptr_t queue;
	uintptr_t key;
	uint32_t depth;
	uint32_t extended;
};
int shim_create_cq(uintptr_t lib, uintptr_t ctx, uint32_t depth, uintptr_t channel, uint32_t vector, uint64_t wc_flags,
		   uint32_t flags, uint32_t single_poll, struct shim_queue *out);
int shim_destroy_cq(uintptr_t lib, uintptr_t cq);
int shim_arm(uintptr_t cq, uint32_t solicited_only);
// shim_cq_event takes a completion event, or returns EAGAIN if there is none. The CQ of the
// event cannot be destroyed before shim_ack_cq_event.
int shim_cq_event(uintptr_t lib, uintptr_t channel, uintptr_t *key);
void shim_ack_cq_event(uintptr_t lib, uintptr_t key);

int shim_create_srq(uintptr_t lib, uintptr_t pd, uint32_t max_wr, uint32_t max_sge, struct shim_queue *out);
int shim_set_limit(uintptr_t lib, uintptr_t srq, uint32_t limit);
int shim_destroy_srq(uintptr_t lib, uintptr_t srq);

// shim_create_qp creates a QP that accepts only what legal (a bit per opcode), max_msg and its
// capabilities allow. init.send_cq, recv_cq and srq are handles of this shim.
struct shim_qp_init {
	uintptr_t send_cq;
	uintptr_t recv_cq;
	uintptr_t srq;
	uint64_t max_msg;
	struct vb_qp_cap cap;
	uint8_t type;
	uint8_t legal;
	uint8_t signal_all;
	uint8_t zero;
};
struct shim_qp_made {
	uintptr_t qp;
	uintptr_t key;
	uint32_t num;
	uint32_t max_inline;
};
int shim_create_qp(uintptr_t lib, uintptr_t pd, const struct shim_qp_init *init, struct shim_qp_made *out);
// shim_destroy_qp destroys the library's QP. The handle stays valid for posts, which a stopped
// gate rejects, until shim_free_qp.
int shim_destroy_qp(uintptr_t lib, uintptr_t qp);
void shim_free_qp(uintptr_t qp);
// shim_set_gate makes one side of a QP accept posts, or reject them with SHIM_STOPPED. While a
// thread is posting it changes nothing and returns SHIM_BUSY. Both sides of a new QP are
// stopped. Only one thread at a time may call it for a side.
int shim_set_gate(uintptr_t qp, uint32_t recv, uint32_t open);
int shim_modify_qp(uintptr_t lib, uintptr_t qp, struct vb_qp_attr *attr, int mask);
int shim_query_qp_state(uintptr_t lib, uintptr_t qp, int32_t *state);

int shim_create_ah(uintptr_t lib, uintptr_t pd, struct vb_ah_attr *attr, uintptr_t *ah);
int shim_destroy_ah(uintptr_t lib, uintptr_t ah);

// shim_async_event takes an asynchronous event, or returns EAGAIN if there is none. The object
// of the event cannot be destroyed before shim_ack_async_event.
struct shim_event {
	uintptr_t element; // key of the object, or number of the port
	int32_t type;
	int32_t zero;
};
int shim_async_event(uintptr_t lib, uintptr_t ctx, struct shim_event *out);
void shim_ack_async_event(uintptr_t lib, struct shim_event *event);

// The posts return the number of accepted requests in the high half. The low half has the
// reason why they stopped: an errno or one of the reasons above. shim_poll returns the number
// of completions or a negative errno.
int64_t shim_post_send(uintptr_t qp, uintptr_t wrs, uint32_t count);
int64_t shim_post_recv(uintptr_t qp, uintptr_t wrs, uint32_t count);
int64_t shim_post_srq(uintptr_t srq, uintptr_t wrs, uint32_t count);
int64_t shim_poll(uintptr_t cq, uintptr_t dst, uint32_t count);
// shim_posts returns how many posts went through the gates of a QP, for tests.
uint64_t shim_posts(uintptr_t qp);

#endif
