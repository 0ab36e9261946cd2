// Shared declarations of the stand-in and its test, and the objects of the stand-in.

#ifndef IBVERBX_STANDIN_H
#define IBVERBX_STANDIN_H

#include "../abi.h"

// Kinds of counted objects, and verbs that can be made to fail. standin_test.go has the same
// lists.
enum { L_LIST, L_CONTEXT, L_PD, L_MR, L_CHANNEL, L_CQ, L_SRQ, L_QP, L_AH, L_KINDS };
enum {
	V_DEVICES, V_OPEN, V_CLOSE, V_QUERY, V_GID, V_PD, V_DEALLOC_PD, V_MR, V_DEREG, V_CHANNEL, V_CQ, V_DESTROY_CQ,
	V_ARM, V_ASYNC, V_SRQ, V_MODIFY_SRQ, V_QP, V_QUERY_QP, V_MODIFY_QP, V_DESTROY_QP, V_AH, V_FORK, V_POST, V_POLL,
	V_DMABUF, V_CLOCK,
	V_VERBS = 32
};

enum { SEEN = 8, TRIES = 8 };

// seen is a work request as the driver got it.
struct seen {
	uint64_t wr_id, remote_addr, compare_add, swap;
	uint32_t opcode, flags, imm, num_sge, rkey, ah, qpn, qkey;
	struct vb_sge sge[4];
};

// standin is the file that the test and the stand-in both map. All numbers have 64 bits.
struct standin {
	int64_t live[16];
	int64_t fail[V_VERBS]; // errno of each verb, 0 for success
	uint64_t devices;      // number of devices
	struct {
		uint64_t old_context; // contexts have no newer operations
		uint64_t no_uc;       // there are no UC QPs
		uint64_t ports;       // number of ports; 0 means 2
		uint64_t gids[2];     // rows of each port's GID table, all full; 0 means 4 rows, read one by one
	} device;
	uint64_t room;         // requests that a post accepts before it fails
	uint64_t record;       // keep requests in seen
	uint64_t endless;      // a CQ is always full of completions
	uint64_t idle;         // posts return at once and read nothing
	uint64_t status;       // of completions
	uint64_t opcode;       // of completions plus 1; 0 means that of the request
	uint64_t linger;       // a post of sends, an access to a CQ or a deregistration spins for this many loops
	uint64_t overlaps;     // posts that met another post, or the end, of their QP
	uint64_t keys, numbers, access, forks, acks, extended_calls;
	uint64_t posted, received, doorbells, polls;
	uint64_t modify_mask;
	uint64_t flow_label; // of the last address handle
	uint64_t deregs;     // calls that deregister a region
	struct {
		uint64_t no_flags;     // no extended CQ with flags is made
		uint64_t none;         // no extended CQ is made
		uint64_t timestamps;   // completions can have a timestamp
		uint64_t steps;        // extended CQs skip an entry as Soft-RoCE does
		uint64_t made;         // number of extended CQs
		uint64_t tries;        // attempts to make one
		uint64_t flags[TRIES]; // of each attempt; bit 32 says that they are valid
		uint64_t visits;       // accesses to CQs
		uint64_t overlaps;     // accesses that met another one
		uint64_t overrun;      // a CQ overruns when it is armed
	} cq;
	struct seen seen[SEEN];
	struct vb_qp_attr modify; // of the last call
	uint64_t dmabuf[4];       // offset, length, iova and fd of the last one
	char sysfs[128];          // directory of the devices' sysfs entries; empty for none
};

extern struct standin *shared;

// Objects. Each starts with the structure of libibverbs. serial distinguishes an object from a
// later one at the same address. events counts events that were read and not yet
// acknowledged.
struct s_context {
	struct vb_context_ex ex;
	int async_in; // write end of the event pipe
};

struct s_channel {
	struct vb_comp_channel channel;
	int in;
};

enum { RING = 1 << 10 };

struct s_cq {
	struct vb_cq_ex ex;
	unsigned int head, tail;
	int armed, events, polling, inside;
	uint32_t serial;
	struct vb_wc ring[RING];
};

struct s_qp {
	struct vb_qp qp;
	struct vb_qp_attr attr;
	int signal_all, events, inside;
	uint32_t serial;
};

struct s_srq {
	struct vb_srq srq;
	int events;
	uint32_t serial;
};

// news is an event in a pipe.
struct news {
	void *object;
	uint32_t serial;
	int type;
};

int standin_post_send(struct vb_qp *, struct vb_send_wr *, struct vb_send_wr **);
int standin_post_recv(struct vb_qp *, struct vb_recv_wr *, struct vb_recv_wr **);
int standin_post_srq(struct vb_srq *, struct vb_recv_wr *, struct vb_recv_wr **);
int standin_poll(struct vb_cq *, int, struct vb_wc *);
int standin_arm(struct vb_cq *, int);
void standin_clean(struct vb_qp *);
void linger(void);
void raise_event(struct vb_context *, void *object, uint32_t serial, int type);
struct vb_cq_ex *standin_create_cq_ex(struct vb_context *, struct vb_cq_init_attr_ex *);
struct vb_cq *ibv_create_cq(struct vb_context *, int, void *, struct vb_comp_channel *, int);

#endif
