// The requests that ibv_wr_start, ibv_wr_* and ibv_wr_complete collect and post as one chain.
#define _GNU_SOURCE
#include "shim.h"

#include <arpa/inet.h>

struct chain {
	// collecting is held from wr_start to wr_complete or wr_abort.
	pthread_mutex_t collecting;
	// err is the first error of a request since wr_start.
	int err;
	int used, size;
	struct ibx_send *sends;
	// bytes hold inline data and long lists of SGEs: those of request i begin at starts[i].
	size_t filled, room;
	char *bytes;
	size_t *starts;
};

static struct chain *chain_of(struct ibv_qp_ex *ex) { return container_of(ex, struct qp, ex)->chain; }

static void wr_start(struct ibv_qp_ex *ex)
{
	struct chain *c = chain_of(ex);
	pthread_mutex_lock(&c->collecting);
	c->err = c->used = 0;
	c->filled = 0;
}

static void wr_abort(struct ibv_qp_ex *ex) { pthread_mutex_unlock(&chain_of(ex)->collecting); }

static int wr_complete(struct ibv_qp_ex *ex)
{
	struct chain *c = chain_of(ex);
	int err = c->err;
	for (int i = 0; i < c->used; i++)
		if ((c->sends[i].flags & IBV_SEND_INLINE && c->sends[i].num_sge) || c->sends[i].listed)
			c->sends[i].sge[0].addr = (uintptr_t)(c->bytes + c->starts[i]);
	if (!err && c->used)
		err = core.post_send(ex->qp_base.handle, c->sends, c->used, NULL);
	pthread_mutex_unlock(&c->collecting);
	return err;
}

static bool grow(struct chain *c)
{
	int size = c->size ? 2 * c->size : 16;
	struct ibx_send *sends = realloc(c->sends, size * sizeof(*sends));
	if (sends)
		c->sends = sends;
	size_t *starts = realloc(c->starts, size * sizeof(*starts));
	if (starts)
		c->starts = starts;
	if (!sends || !starts)
		return false;
	c->size = size;
	return true;
}

// add returns a new request, or NULL after an error, which wr_complete reports.
static struct ibx_send *add(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode)
{
	struct chain *c = chain_of(ex);
	const unsigned int known = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
	if (c->err)
		return NULL;
	if (ex->wr_flags & ~known) {
		c->err = EINVAL;
		return NULL;
	}
	if (c->used == c->size && !grow(c)) {
		c->err = ENOMEM;
		return NULL;
	}
	struct ibx_send *s = &c->sends[c->used++];
	*s = (struct ibx_send){.wr_id = ex->wr_id, .opcode = (uint8_t)opcode, .flags = (uint8_t)ex->wr_flags};
	return s;
}

// last returns the request that the setters complete, or NULL.
static struct ibx_send *last(struct ibv_qp_ex *ex)
{
	struct chain *c = chain_of(ex);
	return c->err || !c->used ? NULL : &c->sends[c->used - 1];
}

static void wr_rdma(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t addr, __be32 imm)
{
	struct ibx_send *s = add(ex, opcode);
	if (s) {
		s->rkey = rkey;
		s->remote_addr = addr;
		s->imm = ntohl(imm);
	}
}

static void wr_rdma_write(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) { wr_rdma(ex, IBV_WR_RDMA_WRITE, rkey, addr, 0); }
static void wr_rdma_read(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr) { wr_rdma(ex, IBV_WR_RDMA_READ, rkey, addr, 0); }

static void wr_rdma_write_imm(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, __be32 imm)
{
	wr_rdma(ex, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}

static void wr_atomic(struct ibv_qp_ex *ex, enum ibv_wr_opcode opcode, uint32_t rkey, uint64_t addr, uint64_t compare_add, uint64_t swap)
{
	struct ibx_send *s = add(ex, opcode);
	if (s) {
		s->rkey = rkey;
		s->remote_addr = addr;
		s->compare_add = compare_add;
		s->swap = swap;
	}
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	wr_atomic(ex, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr, compare, swap);
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *ex, uint32_t rkey, uint64_t addr, uint64_t addend)
{
	wr_atomic(ex, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr, addend, 0);
}

static void wr_send(struct ibv_qp_ex *ex) { add(ex, IBV_WR_SEND); }

static void wr_send_imm(struct ibv_qp_ex *ex, __be32 imm)
{
	struct ibx_send *s = add(ex, IBV_WR_SEND_WITH_IMM);
	if (s)
		s->imm = ntohl(imm);
}

static void wr_set_ud_addr(struct ibv_qp_ex *ex, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct ibx_send *s = last(ex);
	if (s) {
		s->ah = container_of(ah, struct ah, base)->number;
		s->remote_qpn = qpn;
		s->remote_qkey = qkey;
	}
}

// stash returns room for n bytes of the last request, or NULL after an error.
static char *stash(struct chain *c, size_t n)
{
	size_t begin = (c->filled + 7) & ~(size_t)7; // aligned for SGEs
	if (begin + n > c->room) {
		size_t room = 2 * (begin + n);
		char *bytes = realloc(c->bytes, room);
		if (!bytes) {
			c->err = ENOMEM;
			return NULL;
		}
		c->bytes = bytes;
		c->room = room;
	}
	c->starts[c->used - 1] = begin;
	c->filled = begin + n;
	return c->bytes + begin;
}

static void wr_set_sge_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_sge *list)
{
	struct ibx_send *s = last(ex);
	if (!s)
		return;
	if (n > UINT8_MAX) {
		chain_of(ex)->err = EINVAL;
		return;
	}
	s->num_sge = (uint8_t)n;
	s->listed = n > IBX_MAX_SGE;
	if (s->listed) {
		char *at = stash(chain_of(ex), n * sizeof(*list));
		if (at)
			memcpy(at, list, n * sizeof(*list));
		return;
	}
	for (size_t i = 0; i < n; i++)
		s->sge[i] = (struct ibx_sge){.addr = list[i].addr, .length = list[i].length, .lkey = list[i].lkey};
}

static void wr_set_sge(struct ibv_qp_ex *ex, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge one = {.addr = addr, .length = length, .lkey = lkey};
	wr_set_sge_list(ex, 1, &one);
}

static void wr_set_inline_data_list(struct ibv_qp_ex *ex, size_t n, const struct ibv_data_buf *list)
{
	struct chain *c = chain_of(ex);
	struct ibx_send *s = last(ex);
	size_t total = 0;
	if (!s)
		return;
	for (size_t i = 0; i < n; i++)
		total += list[i].length;
	if (total > container_of(ex, struct qp, ex)->init.cap.max_inline_data) {
		c->err = EINVAL;
		return;
	}
	char *at = stash(c, total);
	if (!at)
		return;
	for (size_t i = 0; i < n; i++) {
		memcpy(at, list[i].addr, list[i].length);
		at += list[i].length;
	}
	s->flags |= IBV_SEND_INLINE;
	s->num_sge = total > 0;
	s->sge[0] = (struct ibx_sge){.length = (uint32_t)total};
}

static void wr_set_inline_data(struct ibv_qp_ex *ex, void *addr, size_t length)
{
	struct ibv_data_buf one = {.addr = addr, .length = length};
	wr_set_inline_data_list(ex, 1, &one);
}

// legal_ops are the operations of a transport.
static uint64_t legal_ops(enum ibv_qp_type type)
{
	const uint64_t sends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	const uint64_t writes = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
	const uint64_t answered = IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	return type == IBV_QPT_UD ? sends : type == IBV_QPT_UC ? sends | writes : sends | writes | answered;
}

int ibx_chain_init(struct qp *qp, uint64_t send_ops)
{
	struct ibv_qp_ex *ex = &qp->ex;
	if (send_ops & ~legal_ops(ex->qp_base.qp_type))
		return EOPNOTSUPP;
	qp->chain = calloc(1, sizeof(*qp->chain));
	if (!qp->chain)
		return ENOMEM;
	pthread_mutex_init(&qp->chain->collecting, NULL);
	ex->wr_start = wr_start;
	ex->wr_complete = wr_complete;
	ex->wr_abort = wr_abort;
	ex->wr_rdma_write = wr_rdma_write;
	ex->wr_rdma_write_imm = wr_rdma_write_imm;
	ex->wr_rdma_read = wr_rdma_read;
	ex->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	ex->wr_atomic_fetch_add = wr_atomic_fetch_add;
	ex->wr_send = wr_send;
	ex->wr_send_imm = wr_send_imm;
	ex->wr_set_ud_addr = wr_set_ud_addr;
	ex->wr_set_sge = wr_set_sge;
	ex->wr_set_sge_list = wr_set_sge_list;
	ex->wr_set_inline_data = wr_set_inline_data;
	ex->wr_set_inline_data_list = wr_set_inline_data_list;
	return 0;
}

void ibx_chain_free(struct qp *qp)
{
	if (!qp->chain)
		return;
	free(qp->chain->sends);
	free(qp->chain->starts);
	free(qp->chain->bytes);
	free(qp->chain);
}
