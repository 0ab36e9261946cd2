// A QP that is connected to itself, for guest.c.
#ifndef IBX_GUEST_H
#define IBX_GUEST_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(cond) \
	do { \
		if (!(cond)) { \
			fprintf(stderr, "%s:%d: %s is false, errno %d (%s)\n", __FILE__, __LINE__, #cond, errno, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

enum { size = 4096 };

// guest is a QP that is connected to itself.
struct guest {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *buf;
};

static struct ibv_context *open_first(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n > 0);
	struct ibv_context *ctx = ibv_open_device(list[0]);
	CHECK(ctx);
	ibv_free_device_list(list);
	return ctx;
}

static void connect_self(struct guest *g)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	CHECK(!ibv_modify_qp(g->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = g->qp->qp_num,
				 .ah_attr = {.is_global = 1, .port_num = 1}, .max_dest_rd_atomic = 1};
	CHECK(!ibv_query_gid(g->ctx, 1, 0, &a.ah_attr.grh.dgid));
	CHECK(!ibv_modify_qp(g->qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(g->qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						IBV_QP_MAX_QP_RD_ATOMIC));
}

static void connect_new(struct guest *g)
{
	struct ibv_qp_init_attr init = {.send_cq = g->cq, .recv_cq = g->cq, .qp_type = IBV_QPT_RC,
					.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
	CHECK((g->qp = ibv_create_qp(g->pd, &init)));
	connect_self(g);
}

static struct guest make(void)
{
	struct guest g = {.ctx = open_first()};
	CHECK((g.pd = ibv_alloc_pd(g.ctx)));
	CHECK((g.channel = ibv_create_comp_channel(g.ctx)));
	CHECK((g.cq = ibv_create_cq(g.ctx, 64, &g, g.channel, 0)));
	CHECK((g.buf = calloc(2, size)));
	CHECK((g.mr = ibv_reg_mr(g.pd, g.buf, 2 * size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	connect_new(&g);
	return g;
}

static void post_write(struct guest *g, uint32_t length)
{
	struct ibv_sge sge = {.addr = (uintptr_t)g->buf, .length = length, .lkey = g->mr->lkey};
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .sg_list = &sge, .num_sge = 1}, *bad;
	wr.wr.rdma.remote_addr = (uintptr_t)g->buf + size;
	wr.wr.rdma.rkey = g->mr->rkey;
	CHECK(!ibv_post_send(g->qp, &wr, &bad));
}

static void await_one(struct guest *g)
{
	struct ibv_wc wc;
	int n;
	while (!(n = ibv_poll_cq(g->cq, 1, &wc)))
		;
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
}

static void transfer(struct guest *g, int times)
{
	while (times--) {
		post_write(g, size);
		await_one(g);
	}
}

static void destroy(struct guest *g)
{
	CHECK(!ibv_destroy_qp(g->qp));
	CHECK(!ibv_dereg_mr(g->mr));
	CHECK(!ibv_destroy_cq(g->cq));
	CHECK(!ibv_destroy_comp_channel(g->channel));
	CHECK(!ibv_dealloc_pd(g->pd));
	CHECK(!ibv_close_device(g->ctx));
}

#endif
