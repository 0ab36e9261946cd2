// Posting work requests: each chain crosses into the core in batches.
#define _GNU_SOURCE
#include "shim.h"

#include <arpa/inet.h>

enum { post_batch = 16 };

_Static_assert(sizeof(struct ibv_sge) == sizeof(struct ibx_sge) && offsetof(struct ibv_sge, length) == offsetof(struct ibx_sge, length) &&
		       offsetof(struct ibv_sge, lkey) == offsetof(struct ibx_sge, lkey), "a list is passed to the core unchanged");

// set_sges copies SGEs, or refers to them if they are many. It returns false if there are more than the core can count.
static bool set_sges(struct ibx_sge *to, uint8_t *count, uint8_t *listed, const struct ibv_sge *from, int n)
{
	if (n < 0 || n > UINT8_MAX)
		return false;
	*count = (uint8_t)n;
	*listed = n > IBX_MAX_SGE;
	if (*listed) {
		to[0].addr = (uintptr_t)from;
		return true;
	}
	for (int i = 0; i < n; i++)
		to[i] = (struct ibx_sge){.addr = from[i].addr, .length = from[i].length, .lkey = from[i].lkey};
	return true;
}

// set_send translates a send. It returns false if the core has no such request.
static bool set_send(struct ibx_send *to, const struct ibv_send_wr *wr, enum ibv_qp_type type)
{
	to->wr_id = wr->wr_id;
	to->opcode = (uint8_t)wr->opcode;
	to->flags = (uint8_t)wr->send_flags;
	to->imm = ntohl(wr->imm_data);
	to->ah = 0;
	if (wr->send_flags & ~(unsigned int)(IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE))
		return false;
	switch (wr->opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
	case IBV_WR_RDMA_READ:
		to->remote_addr = wr->wr.rdma.remote_addr;
		to->rkey = wr->wr.rdma.rkey;
		break;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		to->remote_addr = wr->wr.atomic.remote_addr;
		to->rkey = wr->wr.atomic.rkey;
		to->compare_add = wr->wr.atomic.compare_add;
		to->swap = wr->wr.atomic.swap;
		break;
	case IBV_WR_SEND:
	case IBV_WR_SEND_WITH_IMM:
		if (type != IBV_QPT_UD)
			break;
		if (!wr->wr.ud.ah)
			return false;
		to->ah = container_of(wr->wr.ud.ah, struct ah, base)->number;
		to->remote_qpn = wr->wr.ud.remote_qpn;
		to->remote_qkey = wr->wr.ud.remote_qkey;
		break;
	default:
		return false;
	}
	return set_sges(to->sge, &to->num_sge, &to->listed, wr->sg_list, wr->num_sge);
}

static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct ibx_send batch[post_batch];
	while (wr) {
		struct ibv_send_wr *next = wr;
		int32_t n = 0, posted = 0;
		int err = 0;
		for (; next && n < post_batch; next = next->next, n++)
			if (!set_send(&batch[n], next, base->qp_type)) {
				err = EINVAL;
				break;
			}
		int rejected = n ? core.post_send(base->handle, batch, n, &posted) : 0;
		if (rejected || err) {
			while (posted--)
				wr = wr->next;
			*bad = wr;
			return rejected ? rejected : err;
		}
		wr = next;
	}
	return 0;
}

// post_recvs posts a chain of receives to a QP or an SRQ.
static int post_recvs(int32_t (*post)(uint32_t, struct ibx_recv *, int32_t, int32_t *), uint32_t handle, struct ibv_recv_wr *wr,
		      struct ibv_recv_wr **bad)
{
	struct ibx_recv batch[post_batch];
	while (wr) {
		struct ibv_recv_wr *next = wr;
		int32_t n = 0, posted = 0;
		int err = 0;
		for (; next && n < post_batch; next = next->next, n++) {
			batch[n].wr_id = next->wr_id;
			if (!set_sges(batch[n].sge, &batch[n].num_sge, &batch[n].listed, next->sg_list, next->num_sge)) {
				err = EINVAL;
				break;
			}
		}
		int rejected = n ? post(handle, batch, n, &posted) : 0;
		if (rejected || err) {
			while (posted--)
				wr = wr->next;
			*bad = wr;
			return rejected ? rejected : err;
		}
		wr = next;
	}
	return 0;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return post_recvs(core.post_recv, qp->handle, wr, bad);
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	return post_recvs(core.post_srq, srq->handle, wr, bad);
}

void ibx_post_ops(struct verbs_context *v)
{
	v->context.ops.post_send = post_send;
	v->context.ops.post_recv = post_recv;
	v->context.ops.post_srq_recv = post_srq_recv;
}
