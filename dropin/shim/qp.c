// Queue pairs and address handles.
#define _GNU_SOURCE
#include "shim.h"

#include <arpa/inet.h>

// ibx_ah_from translates an address. RoCE has no addresses without a GID; between processes that share a loopback address, the LID, which is
// a UDP port, is enough.
void ibx_ah_from(struct ibv_context *base, struct ibx_ah_attr *to, const struct ibv_ah_attr *from)
{
	*to = (struct ibx_ah_attr){.dlid = from->dlid, .sl = from->sl, .port = from->port_num};
	if (!from->is_global) {
		if (from->dlid)
			memcpy(to->dgid, to_context(base)->loopback.raw, sizeof(to->dgid));
		return;
	}
	memcpy(to->dgid, from->grh.dgid.raw, sizeof(to->dgid));
	to->flow_label = from->grh.flow_label & 0xfffff;
	to->sgid_index = from->grh.sgid_index;
	to->hop_limit = from->grh.hop_limit;
	to->traffic_class = from->grh.traffic_class;
}

void ibx_ah_to(struct ibv_ah_attr *to, const struct ibx_ah_attr *from)
{
	*to = (struct ibv_ah_attr){.dlid = from->dlid, .sl = from->sl, .port_num = from->port, .is_global = 1};
	memcpy(to->grh.dgid.raw, from->dgid, sizeof(from->dgid));
	to->grh.flow_label = from->flow_label;
	to->grh.sgid_index = from->sgid_index;
	to->grh.hop_limit = from->hop_limit;
	to->grh.traffic_class = from->traffic_class;
}

// new_qp makes a QP, of which every one has the size of an extended one.
static struct qp *new_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	if (!init->send_cq || !init->recv_cq)
		return fail(EINVAL);
	struct qp *q = calloc(1, sizeof(*q));
	if (!q)
		return fail(ENOMEM);
	// The send queue of a NIC has space for inline data in place of an SGE. Programs such as rdma_xclient use it without a request.
	const uint32_t inline_space = 16;
	if (init->cap.max_inline_data < inline_space)
		init->cap.max_inline_data = inline_space;
	struct ibv_qp *base = &q->ex.qp_base;
	struct ibx_qp_config cfg = {
		.cookie = (uintptr_t)base,
		.type = init->qp_type,
		.send_cq = init->send_cq->handle,
		.recv_cq = init->recv_cq->handle,
		.srq = init->srq ? init->srq->handle : 0,
		.max_send_wr = init->cap.max_send_wr,
		.max_recv_wr = init->srq ? 0 : init->cap.max_recv_wr,
		.max_send_sge = init->cap.max_send_sge,
		.max_recv_sge = init->srq ? 0 : init->cap.max_recv_sge,
		.max_inline = init->cap.max_inline_data,
		.signal_all = init->sq_sig_all != 0,
	};
	int err = core.create_qp(pd->handle, &cfg, &base->handle, &base->qp_num);
	if (err) {
		free(q);
		return fail(err);
	}
	if (init->srq)
		init->cap.max_recv_wr = init->cap.max_recv_sge = 0;
	base->context = pd->context;
	base->qp_context = init->qp_context;
	base->pd = pd;
	base->send_cq = init->send_cq;
	base->recv_cq = init->recv_cq;
	base->srq = init->srq;
	base->state = IBV_QPS_RESET;
	base->qp_type = init->qp_type;
	pthread_mutex_init(&base->mutex, NULL);
	pthread_cond_init(&base->cond, NULL);
	q->init = *init;
	return q;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct qp *q = new_qp(pd, init);
	return q ? &q->ex.qp_base : NULL;
}

static struct ibv_qp *create_qp_ex(struct ibv_context *base, struct ibv_qp_init_attr_ex *init)
{
	(void)base;
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	if (init->comp_mask & ~known || (init->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && init->create_flags))
		return fail(EOPNOTSUPP);
	if (!(init->comp_mask & IBV_QP_INIT_ATTR_PD))
		return fail(EINVAL);
	// ibv_qp_init_attr is how ibv_qp_init_attr_ex begins.
	struct qp *q = new_qp(init->pd, (struct ibv_qp_init_attr *)init);
	if (!q || !(init->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))
		return q ? &q->ex.qp_base : NULL;
	int err = ibx_chain_init(q, init->send_ops_flags);
	if (err) {
		ibv_destroy_qp(&q->ex.qp_base);
		return fail(err);
	}
	return &q->ex.qp_base;
}

struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *base) { return to_qp(base)->chain ? &to_qp(base)->ex : NULL; }

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
	struct ibx_qp_attr a = {
		.state = attr->qp_state,
		.cur_state = attr->cur_qp_state,
		.path_mtu = attr->path_mtu,
		.qkey = attr->qkey,
		.rq_psn = attr->rq_psn & 0xffffff, // hardware takes 24 bits
		.sq_psn = attr->sq_psn & 0xffffff,
		.dest_qpn = attr->dest_qp_num,
		.access = attr->qp_access_flags,
		.pkey_index = attr->pkey_index,
		.port = attr->port_num,
		.max_rd_atomic = attr->max_rd_atomic,
		.max_dest_rd_atomic = attr->max_dest_rd_atomic,
		.min_rnr_timer = attr->min_rnr_timer,
		.timeout = attr->timeout,
		.retry_cnt = attr->retry_cnt,
		.rnr_retry = attr->rnr_retry,
		.sqd_notify = attr->en_sqd_async_notify,
	};
	if (mask & IBV_QP_AV)
		ibx_ah_from(base->context, &a.ah, &attr->ah_attr);
	int err = core.modify_qp(base->handle, &a, (uint32_t)mask);
	if (!err && mask & IBV_QP_STATE)
		base->state = attr->qp_state;
	return err;
}

int ibv_query_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	(void)mask; // everything is cheap to tell
	struct qp *q = to_qp(base);
	struct ibx_qp_attr a;
	int err = core.query_qp(base->handle, &a);
	if (err)
		return err;
	*attr = (struct ibv_qp_attr){
		.qp_state = a.state,
		.cur_qp_state = a.state,
		.path_mtu = a.path_mtu,
		.qkey = a.qkey,
		.rq_psn = a.rq_psn,
		.sq_psn = a.sq_psn,
		.dest_qp_num = a.dest_qpn,
		.qp_access_flags = a.access,
		.cap = q->init.cap,
		.pkey_index = a.pkey_index,
		.port_num = a.port,
		.max_rd_atomic = a.max_rd_atomic,
		.max_dest_rd_atomic = a.max_dest_rd_atomic,
		.min_rnr_timer = a.min_rnr_timer,
		.timeout = a.timeout,
		.retry_cnt = a.retry_cnt,
		.rnr_retry = a.rnr_retry,
	};
	ibx_ah_to(&attr->ah_attr, &a.ah);
	base->state = a.state;
	*init = q->init;
	return 0;
}

int ibv_destroy_qp(struct ibv_qp *base)
{
	struct ibx_delivered taken;
	int err = core.destroy_qp(base->handle, &taken);
	if (err)
		return err;
	ibx_await_acks(&base->mutex, &base->cond, &base->events_completed, taken.async);
	ibx_chain_free(to_qp(base));
	free(to_qp(base));
	return 0;
}

int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp, (void)op, (void)flags;
	return 0; // large copies bypass the caches, in no promised order
}

// Drivers without enhanced connection establishment do not succeed with nothing: librdmacm rejects an ECE without a vendor.
int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp, (void)ece;
	return errno = EOPNOTSUPP;
}

int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece)
{
	(void)qp, (void)ece;
	return errno = EOPNOTSUPP;
}

// A group has no LID: the packets are those of IP multicast.
int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)lid;
	return core.attach_mcast(qp->handle, gid->raw);
}

int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)lid;
	return core.detach_mcast(qp->handle, gid->raw);
}

struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	struct ah *ah = calloc(1, sizeof(*ah));
	if (!ah)
		return fail(ENOMEM);
	struct ibx_ah_attr a;
	ibx_ah_from(pd->context, &a, attr);
	int err = core.create_ah(pd->handle, &a, &ah->base.handle, &ah->number);
	if (err) {
		free(ah);
		return fail(err);
	}
	ah->base.context = pd->context;
	ah->base.pd = pd;
	return &ah->base;
}

int ibv_destroy_ah(struct ibv_ah *base)
{
	int err = core.destroy_ah(base->handle);
	if (!err)
		free(container_of(base, struct ah, base));
	return err;
}

// find_gid returns the row of the GID table that holds an address, -1 if none does.
static int find_gid(struct ibv_context *base, uint8_t port, const uint8_t *gid)
{
	union ibv_gid row;
	for (int i = 0; !ibv_query_gid(base, port, i, &row); i++)
		if (!memcmp(row.raw, gid, sizeof(row.raw)))
			return i;
	return -1;
}

static void map_ipv4(uint8_t *gid, const uint8_t *addr)
{
	memset(gid, 0, 16);
	gid[10] = gid[11] = 0xff;
	memcpy(gid + 12, addr, 4);
}

// ibv_init_ah_from_wc makes the address of a reply. Over IPv4 the second half of the 40 bytes is the IP header.
int ibv_init_ah_from_wc(struct ibv_context *base, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *attr)
{
	const uint8_t *ip = (const uint8_t *)grh + 20;
	uint8_t own[16];
	memset(attr, 0, sizeof(*attr));
	attr->port_num = port;
	attr->dlid = wc->slid;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	attr->is_global = 1;
	attr->grh.hop_limit = 0xff;
	if (ntohl(grh->version_tclass_flow) >> 28 == 6) {
		memcpy(attr->grh.dgid.raw, grh->sgid.raw, 16);
		memcpy(own, grh->dgid.raw, 16);
		attr->grh.flow_label = ntohl(grh->version_tclass_flow) & 0xfffff;
		attr->grh.traffic_class = ntohl(grh->version_tclass_flow) >> 20 & 0xff;
	} else {
		map_ipv4(attr->grh.dgid.raw, ip + 12);
		map_ipv4(own, ip + 16);
		attr->grh.traffic_class = ip[1];
	}
	int row = find_gid(base, port, own);
	if (row < 0)
		return -1;
	attr->grh.sgid_index = (uint8_t)row;
	return 0;
}

struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr attr;
	if (ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr))
		return NULL;
	return ibv_create_ah(pd, &attr);
}

// ibv_resolve_eth_l2_from_gid has no answer: packets leave through sockets, below which the kernel finds the way.
int ibv_resolve_eth_l2_from_gid(struct ibv_context *base, struct ibv_ah_attr *attr, uint8_t eth_mac[6], uint16_t *vid)
{
	(void)base, (void)attr, (void)eth_mac, (void)vid;
	errno = EOPNOTSUPP;
	return -1;
}

void ibx_qp_ops(struct verbs_context *v) { v->create_qp_ex = create_qp_ex; }
