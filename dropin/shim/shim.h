// What the files of the shim share. The shim has the ABI of libibverbs and nothing else: all behaviour is in the core.
#ifndef IBX_SHIM_H
#define IBX_SHIM_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "loader.h"
#include "abi.h"

// core holds the functions of the Go core. They are valid once ibx_load has returned 0. In a forked child each
// returns ENODEV.
struct ibx_core {
#define FIELD(name, params, args) int32_t(*name) params;
	IBX_CORE(FIELD)
#undef FIELD
};
extern struct ibx_core core;

// ibx_load loads the core once and returns 0 or an errno.
int ibx_load(void);
// ibx_devices are the devices of the core, and ibx_num_devices their number. Both are valid after ibx_load.
extern struct ibx_device ibx_devices[IBX_MAX_DEVICES];
extern int ibx_num_devices;

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))

// context is an open device. libibverbs finds the extended functions in front of ibv_context.
struct context {
	struct verbs_context verbs;
	uint32_t handle;
	// ipv6 says that the GRH of datagrams is a header of IPv6.
	bool ipv6;
	// loopback is the address of the port if it is a loopback address of IPv4, and 0 otherwise.
	union ibv_gid loopback;
};

struct pd {
	struct ibv_pd base;
	// parent is the domain of a parent domain, NULL if it is an ordinary one.
	struct pd *parent;
	// children counts the parent domains made of this one.
	int children;
};

struct channel {
	struct ibv_comp_channel base;
	uint32_t handle;
};

struct cq {
	// ex is an extended CQ, whose first part is that of an ordinary one.
	struct ibv_cq_ex ex;
	// wc is the completion that the program is reading.
	struct ibx_wc wc;
	// reading is held from start_poll to end_poll unless the CQ is for one thread.
	pthread_mutex_t reading;
	bool single;
};

struct srq {
	struct ibv_srq base;
	struct ibv_srq_attr attr;
};

struct ah {
	struct ibv_ah base;
	uint64_t number;
};

struct chain; // the requests that ibv_wr_* collects (chain.c)

struct qp {
	// ex is an extended QP, whose first part is that of an ordinary one.
	struct ibv_qp_ex ex;
	struct ibv_qp_init_attr init;
	// chain is NULL if the QP was not created with send operations.
	struct chain *chain;
};

static inline struct context *to_context(struct ibv_context *c) { return container_of(c, struct context, verbs.context); }
static inline struct pd *to_pd(struct ibv_pd *p) { return container_of(p, struct pd, base); }
static inline struct cq *to_cq(struct ibv_cq *c) { return (struct cq *)c; }
static inline struct srq *to_srq(struct ibv_srq *s) { return container_of(s, struct srq, base); }
static inline struct qp *to_qp(struct ibv_qp *q) { return container_of(q, struct qp, ex.qp_base); }
static inline uint32_t ctx_handle(struct ibv_context *c) { return to_context(c)->handle; }

// fail sets errno and returns NULL.
static inline void *fail(int err)
{
	errno = err;
	return NULL;
}

// ibx_ops fills in the functions of a context.
void ibx_memory_ops(struct verbs_context *v);
void ibx_cq_ops(struct verbs_context *v);
void ibx_qp_ops(struct verbs_context *v);
void ibx_srq_ops(struct verbs_context *v);
void ibx_post_ops(struct verbs_context *v);
void ibx_device_ops(struct verbs_context *v);

// ibx_take reads a token of an event descriptor. It returns 0, or -1 and errno, and blocks if the descriptor does.
int ibx_take(int fd);
// ibx_await_acks waits until the program has acknowledged as many events as it has taken.
void ibx_await_acks(pthread_mutex_t *mutex, pthread_cond_t *cond, uint32_t *acked, uint32_t taken);

void ibx_ah_from(struct ibv_context *base, struct ibx_ah_attr *to, const struct ibv_ah_attr *from);
void ibx_ah_to(struct ibv_ah_attr *to, const struct ibx_ah_attr *from);

// The chain of an extended QP.
int ibx_chain_init(struct qp *qp, uint64_t send_ops);
void ibx_chain_free(struct qp *qp);

#endif
